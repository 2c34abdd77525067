"""A flow-matching model of scikit-learn's digits whose training goes wrong is caught in time."""

import torch

from tests.callbacks.models import fit
from tm_bandit import OptimisticFID, ReferenceStatistics
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.demo.digits import load_digits, train_classifier
from tm_bandit.demo.flow import DigitFlow, DigitsData

VALIDATIONS = 10
BUDGET = 150


class Accident(DigitFlow):
    """The learning rate falls, the model gets good, and then somebody multiplies the rate by eight."""

    def __init__(self):
        super().__init__(width=96, depth=2)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=3e-3)

        def rate(step):
            return 1.0 if step < 200 else 0.3 if step < 280 else 8.0

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def many_rows(path, classifier, samples):
    """Rows of a checkpoint, drawn with seeds that have nothing to do with those of the selection."""
    module = Accident.load_from_checkpoint(path).eval()
    generator = torch.Generator().manual_seed(1_000_003)
    return torch.cat([classifier(module.sample(1000, generator=generator)) for _ in range(samples // 1000)])


def distance(rows, reference):
    metric = OptimisticFID(feature="none", reference=reference, bound="none")
    metric.update_features(rows)
    return metric.estimate().item()


def test_the_good_checkpoint_is_kept(tmp_path):
    classifier = train_classifier(load_digits(), steps=150)
    data = DigitsData()
    reference = ReferenceStatistics.from_features(classifier(data.digits.images))
    callback = BanditCheckpoint(
        OptimisticFID(feature=classifier, reference=reference),
        budget=BUDGET,
        batch_size=10,
        max_arms=VALIDATIONS,
        dirpath=tmp_path,
    )
    # Ten steps per epoch, a validation every four epochs.
    loaders = data.train_dataloader(), data.val_dataloader()
    fit(
        tmp_path,
        callback,
        module=Accident,
        data=loaders,
        max_epochs=4 * VALIDATIONS,
        check_val_every_n_epoch=4,
        num_sanity_val_steps=0,
    )
    arms = callback.result.num_samples
    assert len(arms) == VALIDATIONS
    # A hundred times the samples that an arm got on average.
    rows = {name: many_rows(tmp_path / f"{name}.ckpt", classifier, 100 * BUDGET) for name in arms}
    truth = {name: distance(values, reference) for name, values in rows.items()}
    best, chosen = min(truth, key=truth.get), callback.best_arm
    # Up, then down.
    assert truth["step40"] > 1.5 * truth[best]
    assert truth["step320"] > 1.2 * truth[best]
    assert 40 < int(best.removeprefix("step")) < 320
    # Plain evaluation of a checkpoint takes as many samples as there are real images, at the least.
    assert sum(arms.values()) <= VALIDATIONS * len(data.digits.images) / 5
    # The noise of a plain evaluation with as many samples as the chosen arm got.
    estimates = torch.tensor([distance(part, reference) for part in rows[best].split(arms[chosen])[:20]])
    assert truth[chosen] - truth[best] <= 2 * estimates.std()
