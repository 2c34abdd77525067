"""Both metrics inside what torchmetrics and Lightning put around metrics."""

import pickle

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection, MetricTracker
from torchmetrics.image.fid import NoTrainInceptionV3
from torchmetrics.wrappers import FeatureShare

from tests._inception import random_images, random_weights_file
from tm_bandit import OptimisticFID, OptimisticIS, OptimisticKID, ReferenceStatistics

DIM = 6


def reference(dim=DIM):
    return ReferenceStatistics(torch.zeros(dim), torch.eye(dim))


def rows(num=20, seed=0):
    return torch.randn(num, DIM, generator=torch.Generator().manual_seed(seed)) + 0.5


def both(**kwargs):
    network = nn.Identity()
    return {
        "fid": OptimisticFID(feature=network, reference=reference(), bound="authors", **kwargs),
        "is": OptimisticIS(feature=network, bound="paper", **kwargs),
    }


def alone(batches):
    metrics = both()
    for metric in metrics.values():
        for batch in batches:
            metric.update(batch)
    return {name: float(metric.compute()) for name, metric in metrics.items()}


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory):
    return random_weights_file(tmp_path_factory.getbasetemp())


@pytest.fixture
def calls(monkeypatch):
    seen = []
    forward = NoTrainInceptionV3._torch_fidelity_forward

    def counted(self, x):
        seen.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(NoTrainInceptionV3, "_torch_fidelity_forward", counted)
    return seen


def test_a_collection_gives_what_each_metric_gives_alone():
    collection = MetricCollection(both())
    batches = [rows(seed=seed) for seed in range(3)]
    for batch in batches:
        collection.update(batch)
    assert {name: float(value) for name, value in collection.compute().items()} == pytest.approx(alone(batches))
    assert all(len(group) == 1 for group in collection.compute_groups.values())


def test_forward_of_a_collection():
    collection = MetricCollection(both())
    first = collection(rows(seed=1))
    assert {name: float(value) for name, value in first.items()} == pytest.approx(alone([rows(seed=1)]))
    collection(rows(seed=2))
    both_batches = alone([rows(seed=1), rows(seed=2)])
    assert {name: float(value) for name, value in collection.compute().items()} == pytest.approx(both_batches)


def test_metrics_of_one_class_are_not_merged():
    """Their states agree after one batch, but not for ever: a paper bound folds rows that a witness keeps."""
    collection = MetricCollection(
        {
            "paper": OptimisticIS(feature="none", bound="paper"),
            "none": OptimisticIS(feature="none", bound="none"),
            "fid": OptimisticFID(feature="none", reference=reference(), bound="none"),
            "other": OptimisticFID(
                feature="none", reference=ReferenceStatistics(torch.ones(DIM), torch.eye(DIM)), bound="none"
            ),
        }
    )
    for seed in range(3):
        collection.update(rows(seed=seed).softmax(dim=1))
    values = {name: float(value) for name, value in collection.compute().items()}
    assert values["paper"] > values["none"]
    assert values["fid"] != pytest.approx(values["other"])
    assert len(collection.compute_groups) == 4


def test_real_samples_reach_both_and_spoil_neither():
    metrics = {
        "fid": OptimisticFID(feature=nn.Identity(), bound="none"),
        "is": OptimisticIS(feature=nn.Identity(), bound="none"),
    }
    collection = MetricCollection(metrics)
    collection.update(rows(50, seed=1), real=True)
    collection.update(rows(20, seed=2), real=False)
    assert {name: metric.num_samples for name, metric in collection.items()} == {"fid": 20, "is": 20}
    assert float(collection.compute()["is"]) == pytest.approx(alone_is(rows(20, seed=2)))


def alone_is(batch):
    metric = OptimisticIS(feature=nn.Identity(), bound="none")
    metric.update(batch)
    return float(metric.compute())


def test_one_inception_pass_for_both(weights_file, calls):
    collection = MetricCollection(
        {
            "fid": OptimisticFID(feature=2048, bound="none", feature_extractor_weights_path=weights_file),
            "is": OptimisticIS(bound="none", feature_extractor_weights_path=weights_file),
        }
    )
    images = random_images(2)
    collection.update(images)
    assert calls == [2]
    assert torch.isfinite(collection["is"].estimate())
    collection.update(random_images(1, seed=1))
    assert calls == [2, 1]
    assert {metric.num_samples for metric in collection.values()} == {3}
    with torch.inference_mode():  # as in a validation loop
        collection.update(random_images(1, seed=2))
    assert calls == [2, 1, 1]


def test_float_images_are_passed_once_too(weights_file, calls):
    metrics = [
        OptimisticFID(feature=2048, bound="none", normalize=True, feature_extractor_weights_path=weights_file),
        OptimisticIS(bound="none", normalize=True, feature_extractor_weights_path=weights_file),
    ]
    images = random_images(1).float() / 255
    for metric in metrics:
        metric.update(images)
    assert calls == [1]


def test_feature_share(weights_file, calls):
    """torchmetrics' own way of sharing puts a cache in the place that `feature_network` names."""
    metrics = {
        "fid": OptimisticFID(feature=2048, bound="none", feature_extractor_weights_path=weights_file),
        "is": OptimisticIS(bound="none", feature_extractor_weights_path=weights_file),
    }
    plain = OptimisticIS(bound="none", feature_extractor_weights_path=weights_file)
    images = random_images(2)
    plain.update(images)
    calls.clear()
    share = FeatureShare(metrics)
    share.update(images.clone())
    assert calls == [2]
    assert metrics["fid"].num_features == 2048  # each still gets its own layer
    assert metrics["is"].num_classes == 1008
    assert torch.equal(metrics["is"].compute(), plain.compute())
    # Their cache must not reach other metrics of this network: it takes a refilled buffer for a batch that it knows.
    buffer = random_images(1, seed=3)
    plain.reset()
    plain.update(buffer)
    buffer.copy_(random_images(1, seed=4))
    plain.update(buffer)
    assert calls == [2, 1, 1]
    assert torch.equal(pickle.loads(pickle.dumps(metrics["is"])).compute(), metrics["is"].compute())


def test_feature_share_of_a_module():
    seen = []

    class Rows(nn.Module):
        def forward(self, inputs):
            seen.append(len(inputs))
            return inputs

    module, other = Rows(), Rows()
    reference = ReferenceStatistics.from_features(rows(seed=9), keep_rows=True)
    metrics = [OptimisticFID(module, reference, bound="none"), OptimisticKID(module, reference)]
    share = FeatureShare([*metrics, OptimisticIS(other, bound="none")])
    share.update(rows())
    assert seen == [len(rows())] * 2  # that of the third is another one
    alone = OptimisticKID("none", reference)
    alone.update(rows())
    assert float(metrics[1].compute()) == float(alone.compute())


def test_tracker():
    tracker = MetricTracker(MetricCollection(both()), maximize=[False, True])
    for epoch in range(3):
        tracker.increment()
        tracker.update(rows(seed=epoch))
    assert tracker.n_steps == 3
    assert len(tracker.compute_all()["fid"]) == 3
    expected = [alone([rows(seed=epoch)])["is"] for epoch in range(3)]
    best, which = tracker.best_metric(return_step=True)
    assert best["is"] == pytest.approx(max(expected))
    assert which["is"] == expected.index(max(expected))


def test_tracker_of_a_single_metric_knows_the_direction():
    tracker = MetricTracker(OptimisticIS(feature="none", bound="none"))
    for sharpness in (0.1, 3.0, 1.0):
        tracker.increment()
        tracker.update((sharpness * rows()).softmax(dim=1))
    assert tracker.best_metric(return_step=True)[1] == 1


class Validated(LightningModule):
    """Scores its validation batches and logs the metric objects, as Lightning recommends."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)
        metrics = both()
        self.fid, self.score = metrics["fid"], metrics["is"]

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.fid.update(batch)
        self.score.update(batch)
        self.log("fid", self.fid)
        self.log("is", self.score)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning")
def test_inside_a_lightning_module(tmp_path):
    model = Validated()
    data = DataLoader(rows(40), batch_size=20)
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data, data)
    expected = alone([rows(40)[:20], rows(40)[20:]])
    # One value per epoch, of that epoch's samples alone: Lightning resets the metrics in between.
    assert {name: float(trainer.callback_metrics[name]) for name in ("fid", "is")} == pytest.approx(expected, rel=1e-5)
    assert sum(parameter.numel() for parameter in model.parameters()) == DIM * DIM + DIM
    assert set(model.state_dict()) == {"layer.weight", "layer.bias"}
