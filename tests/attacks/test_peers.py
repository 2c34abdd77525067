"""What the test suites of torchmetrics and Lightning ask of a metric and a callback, asked of ours."""

import math
import os
import warnings
from pathlib import Path

import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.inception import InceptionScore
from torchmetrics.image.kid import KernelInceptionDistance
from torchmetrics.wrappers import FeatureShare

from tests._make import class_probs
from tests.callbacks.models import DIM, bandit, fid, fit
from tests.callbacks.models import loaders as make_loaders
from tm_bandit import ModelSelector, OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.callbacks._reference import first_batch
from tm_bandit.errors import InputError

# What Lightning itself says when nobody did anything wrong here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*the `log_every_n_steps` interval"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]


def unit(dim=4):
    return ReferenceStatistics(torch.zeros(dim), torch.eye(dim))


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    callback = BanditCheckpoint(metric=OptimisticIS("none"), budget=10, batch_size=5, dirpath="~/arms")
    assert Path(callback.dirpath) == tmp_path / "arms"


@pytest.mark.parametrize("mode", ["max_size", "min_size", "max_size_cycle", "sequential"])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_first_batch_is_what_the_validation_will_see(mode, workers):
    loaders = {
        name: DataLoader(torch.arange(6.0)[:, None] + at, batch_size=3, num_workers=workers)
        for at, name in enumerate("ab")
    }
    combined = CombinedLoader(loaders, mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = next(iter(combined))[0]
    found = first_batch(CombinedLoader(loaders, mode))
    if mode == "sequential":
        assert torch.equal(found, seen)
    else:
        assert set(found) == set(seen) == {"a", "b"}
        assert all(torch.equal(found[name], seen[name]) for name in seen)


@pytest.mark.slow
def test_real_gets_the_batches_of_all_parallel_loaders(tmp_path):
    batches = []

    def real(batch):
        batches.append(sorted(batch))
        return batch["images"][0]

    data = [(row, 0) for row in 1 + torch.randn(40, DIM)]
    loaders = {"labels": DataLoader(torch.arange(40.0), 10), "images": DataLoader(data, 10)}
    train = make_loaders()[0]
    fit(
        tmp_path,
        bandit(tmp_path, metric=fid(with_reference=False), real=real),
        data=(train, CombinedLoader(loaders, "max_size")),
        max_epochs=1,
    )
    assert batches
    assert set(map(tuple, batches)) == {("images", "labels")}


@pytest.mark.parametrize("metric", [OptimisticFID("none", unit(), bound="none"), OptimisticIS("none", bound="none")])
def test_without_a_bound_the_table_has_no_ends_either(metric):
    arms = {"a": lambda n, generator: torch.rand(n, 4, generator=generator).softmax(1).double()}
    selector = ModelSelector(metric, arms, policy="greedy", budget=50, samples="features")
    result = selector.run(progress=False)
    row = result.table()[0]
    assert (row["lower"], row["upper"]) == (-math.inf, math.inf)
    assert result.history["lower"] == [-math.inf] * len(result.history["lower"])
    copy = metric.clone()
    copy.update_rows(class_probs(20, 4))
    assert tuple(map(float, copy.bounds())) == (-math.inf, math.inf)


def test_the_dtype_is_that_of_the_values():
    metric = OptimisticIS("none")
    metric.update_probs(class_probs(20))
    for dtype in (torch.float64, torch.float32, torch.float16):
        metric.set_dtype(dtype)
        assert metric.dtype == metric.compute().dtype == dtype
    assert metric.float().dtype == torch.float16  # as in torchmetrics, only `set_dtype` changes it


@pytest.mark.parametrize("feature", [[1, 2], 2.5, {}, object(), "inception"])
def test_a_feature_of_an_unknown_kind(feature):
    for metric in (OptimisticFID, OptimisticIS):
        with pytest.raises(TypeError, match="feature") as error:
            metric(feature=feature)
        assert isinstance(error.value, InputError)


def test_an_unknown_layer_is_a_wrong_value():
    with pytest.raises(InputError) as error:
        OptimisticFID(feature=100)
    assert not isinstance(error.value, TypeError)


class Doubled(nn.Module):
    num_features = 4

    def forward(self, x):
        return 2 * x.float()


@pytest.mark.filterwarnings("ignore:.*The network to share:UserWarning", "ignore:.*large memory footprint:UserWarning")
@pytest.mark.parametrize(
    "first",
    [
        lambda: InceptionScore(feature=Doubled()),
        lambda: KernelInceptionDistance(feature=Doubled(), subsets=2, subset_size=5),
        lambda: FrechetInceptionDistance(feature=Doubled()),
        lambda: OptimisticIS(feature=Doubled()),
    ],
)
def test_a_network_of_another_metric_is_not_taken_for_ours(first):
    images = torch.rand(20, 4)
    ours = OptimisticFID(feature=nn.Identity(), reference=unit(), bound="none")
    share = FeatureShare({"a": first(), "ours": ours})
    share["ours"].update(images)
    plain = OptimisticFID(feature=nn.Identity(), reference=unit(), bound="none")
    plain.update(images)
    assert torch.equal(ours.compute(), plain.compute())


@pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning")
def test_lightning_cli_makes_a_network_from_the_name_of_its_class():
    from jsonargparse import ArgumentParser
    from torchmetrics import Metric

    parser = ArgumentParser()
    parser.add_subclass_arguments(Metric, "metric")
    for name in ("OptimisticFID", "OptimisticIS"):
        words = [f"--metric=tm_bandit.{name}", "--metric.bound=none"]
        made = parser.instantiate_classes(parser.parse_args([*words, "--metric.feature=torch.nn.Flatten"])).metric
        assert made.extractor_name == "module:Flatten"
        made = parser.instantiate_classes(parser.parse_args([*words, "--metric.feature=none"])).metric
        assert made.extractor_name == "none"
        assert parser.parse_args([*words, "--metric.feature=768"]).metric.init_args.feature in (768, "768")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_the_table(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    from lightning.pytorch.loggers import MLFlowLogger

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = MLFlowLogger(save_dir=str(tmp_path / "mlruns"))
    callback = bandit(tmp_path)
    fit(tmp_path, callback, logger=logger, max_epochs=1)
    found = [Path(folder) / name for folder, _, names in os.walk(tmp_path / "mlruns") for name in names]
    tables = [path for path in found if path.name == "bandit.md"]
    assert [path.read_text() for path in tables] == [callback.result.to_markdown()]


def test_what_is_free_of_order_is_the_estimate():
    """The docstring promises it of the estimate, not of the witness, whose folds follow the order."""
    rows = 2 + torch.randn(60, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = []
    for order in (torch.arange(60), torch.arange(60).flip(0)):
        metric = OptimisticFID("none", unit())
        for part in rows[order].split(7):
            metric.update_features(part)
        values.append((float(metric.estimate()), float(metric.compute())))
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-12)
    assert values[0][1] != values[1][1]
    assert "estimate depends neither on the order of samples" in OptimisticFID.__doc__
