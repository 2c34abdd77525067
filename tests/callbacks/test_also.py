"""Other metrics on the same samples, and the kernel distance as the metric of a training run."""

import lightning.pytorch as pl
import pytest
import torch
from torchmetrics import MeanMetric, MetricCollection

from tests.callbacks.models import bandit, fid, fit
from tm_bandit import OptimisticKID, OptimisticMean, ReferenceStatistics
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.errors import InputError


class Notes(pl.Callback):
    """What was logged at the end of every validation."""

    def __init__(self):
        self.logged = []

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.logged.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def others():
    return MetricCollection({"mean": OptimisticMean(lambda x: x.flatten(1).mean(1)), "plain": MeanMetric()})


def test_other_metrics_are_logged_at_no_further_sampling_cost(tmp_path):
    seen = []

    def sampler(module, n, *, generator):
        batch = module.sample(n)
        seen.append(batch)
        return batch

    callback, notes = bandit(tmp_path / "arms", also=others(), sampler=sampler), Notes()
    fit(tmp_path, callback, notes, max_epochs=2)
    alone = bandit(tmp_path / "alone")
    fit(tmp_path, alone, max_epochs=2)
    assert callback.result.num_samples == alone.result.num_samples
    assert callback.result.best == alone.result.best
    # The first validation has one arm, which is the newest and the best one; before it there was a rehearsal. Both
    # validations make six pulls of one chunk.
    first, begin = notes.logged[0], len(seen) - 12
    assert "bandit/raw" in first
    expected = float(torch.cat(seen[begin : begin + 6]).double().flatten(1).mean())
    for word in ("current", "best"):
        assert first[f"bandit/{word}/mean"] == pytest.approx(expected, rel=1e-5)
        assert first[f"bandit/{word}/plain"] == pytest.approx(expected, rel=1e-5)
    assert {"bandit/current/mean", "bandit/best/mean"} <= set(notes.logged[-1])


def test_a_companion_that_fails_does_not_end_the_training(tmp_path):
    def broken(samples):
        raise OSError("no network")

    callback = bandit(tmp_path / "arms", also=OptimisticMean(broken))
    with pytest.warns(UserWarning, match="could not take samples of step8 .no network"):
        fit(tmp_path, callback, max_epochs=1)
    assert callback.best_arm == "step8"


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_other_metrics_get_the_conditions_of_their_samples(tmp_path, kind):
    def distance(samples, labels):
        return (samples[:, 0] - torch.tensor([float(label) for label in labels])).square()

    def sampler(module, n, *, generator, conditions):
        labels = torch.tensor([float(label) for label in conditions])
        return module(torch.randn(n, 4, generator=generator)) + labels[:, None]

    def score():
        return OptimisticMean(distance, higher_is_better=False)

    also = MetricCollection({"again": score(), "plain": OptimisticMean(lambda x: x[:, 0]), "mean": MeanMetric()})
    settings = {"conditions": kind([1, 5, 2]), "sampler": sampler, "chunk_size": 4, "also": also}
    callback, notes = bandit(tmp_path / "arms", score(), **settings), Notes()
    fit(tmp_path, callback, notes, max_epochs=2)
    last = notes.logged[-1]
    estimates = {row["arm"]: row["estimate"] for row in callback.result.table()}
    assert last["bandit/best/again"] == pytest.approx(estimates[callback.best_arm], rel=1e-5)
    assert last["bandit/best/plain"] != pytest.approx(last["bandit/best/mean"])


def test_what_cannot_be_computed_from_samples_is_refused(tmp_path):
    for also, text in [
        (OptimisticMean(lambda images, prompts: images.mean(1)), "which needs conditions; give conditions="),
        (fid(with_reference=False), "to have a reference, but got OptimisticFID, which has none"),
        ("fid", "MetricCollection or a metric, but got str"),
    ]:
        with pytest.raises(InputError, match=text):
            bandit(tmp_path, also=also)


def test_selection_by_kernel_distance_and_by_a_mean(tmp_path):
    rows = fid().reference
    given = ReferenceStatistics.from_features(
        torch.randn(100, rows.num_features, generator=torch.Generator().manual_seed(0)) + rows.mean, keep_rows=True
    )
    for name, metric in {
        "kid": OptimisticKID("none", given),
        "collected": OptimisticKID("none"),
        "mean": OptimisticMean(lambda x: x.square().sum(1), higher_is_better=False),
    }.items():
        callback = BanditCheckpoint(metric, budget=60, batch_size=10, dirpath=tmp_path / name)
        fit(tmp_path / name, callback, max_epochs=2)
        assert callback.best_arm in ("step8", "step16")
        assert callback.best_model_score.isfinite()
    again = BanditCheckpoint(OptimisticKID("none"), budget=60, batch_size=10, dirpath=tmp_path / "again")
    fit(tmp_path / "again", again, max_epochs=2)
    stored = ReferenceStatistics.load(next((tmp_path / "again").rglob("reference.npz")))
    assert len(stored.rows) == stored.num_samples
