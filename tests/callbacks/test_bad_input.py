"""Each mistake is refused before any training time is lost, with what to do."""

import pytest
import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from tests.callbacks.models import DIM, Gen, Untrained, bandit, fid, fit, loaders, trainer
from tm_bandit import OptimisticFID
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.errors import InputError


def refused(tmp_path, callback, match, module=None, data=None, **kwargs):
    with pytest.raises(InputError, match=match):
        fit(tmp_path, callback, module=module or Untrained(), data=data, num_sanity_val_steps=0, **kwargs)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"budget": 0}, "`budget` to be an integer of at least 1, but got 0"),
        ({"budget": 5, "batch_size": 10}, "at least one pull"),
        ({"budget": "2min"}, "a number of samples per validation, but got '2min'; times are for ModelSelector"),
        ({"batch_size": 0}, "batch_size"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"max_arms": 0}, "max_arms"),
        ({"every_n_epochs": 0}, "every_n_epochs"),
        ({"policy": "lucky"}, "lucky"),
        ({"stop": "soon"}, "stop"),
        ({"goal": "fun"}, "goal"),
        ({"seed": -1}, "seed"),
        ({"key": "a:b"}, "key"),
        ({"store": "cloud"}, "store"),
        ({"dirpath": "s3://bucket/run"}, "mounted"),
        ({"variants": {}}, "variants"),
        ({"variants": {"a/b": {}}}, "a/b"),
        ({"variants": {"a": 3.0}}, "dictionary"),
        ({"metric": MeanMetric()}, "OptimisticFID"),
    ],
)
def test_arguments(settings, match):
    with pytest.raises(InputError, match=match):
        BanditCheckpoint(**{"metric": fid(), "budget": 60, "batch_size": 10, **settings})


def test_no_way_to_sample(tmp_path):
    module = type("Mute", (Untrained,), {"sample": None})()
    refused(tmp_path, bandit(tmp_path), r"method `sample\(num_samples\)`.*sampler=", module)
    refused(tmp_path, bandit(tmp_path, sampler="draw"), "draw")


@pytest.mark.parametrize(
    ("output", "match"),
    [
        (lambda n: torch.zeros(n, DIM + 1), f"shape \\(n, {DIM}\\)"),
        (lambda n: torch.zeros(n), "one sample per entry"),
        (lambda n: torch.zeros(n + 1, DIM), "Expected 10 samples, but got 11"),
        (lambda n: "no tensor", "str"),
        (lambda n: 1 / 0, "ZeroDivisionError"),
        (lambda n: torch.zeros(n, DIM, dtype=torch.long), "floating"),
    ],
)
def test_output_that_the_metric_refuses(tmp_path, output, match):
    callback = bandit(tmp_path, sampler=lambda module, n, generator: output(n), chunk_size=10)
    refused(tmp_path, callback, match)


def test_a_variant_that_the_sampler_does_not_know(tmp_path):
    refused(tmp_path, bandit(tmp_path, variants={"": {}, "hot": {"heat": 1.0}}), "variant 'hot'.*heat")


def test_images_of_the_wrong_kind_for_a_named_network(tmp_path):
    class Images(Untrained):
        def sample(self, num_samples):
            return torch.rand(num_samples, 1, 8, 8)

    class Rgb(nn.Module):
        def forward(self, images):
            return images[:, 2].flatten(1)

    metric = OptimisticFID(feature=Rgb(), bound="authors")
    refused(tmp_path, bandit(tmp_path, metric=metric, real=lambda batch: torch.rand(8, 3, 2, 2)), "sampler", Images())


@pytest.mark.parametrize(
    ("batch", "real", "match"),
    [
        (TensorDataset(torch.arange(16)), None, "found none in a list of a tensor of shape"),
        (TensorDataset(torch.randn(16, DIM)), 1, "real=1"),
        (TensorDataset(torch.randn(16, DIM)), "image", "real='image'"),
        (TensorDataset(torch.randn(16, DIM)), lambda batch: None, "found none"),
        ([{"sound": torch.randn(DIM)}] * 16, None, "found none in a mapping with the keys .'sound'"),
        (TensorDataset(torch.full((16, DIM), torch.nan)), None, "finite"),
    ],
)
def test_no_reference_and_no_real_images(tmp_path, batch, real, match):
    callback = bandit(tmp_path, metric=fid(with_reference=False), real=real)
    refused(tmp_path, callback, match, data=(loaders()[0], DataLoader(batch, 8)))


def test_metric_attached_to_the_module(tmp_path):
    module, metric = Untrained(), fid()
    module.score = metric
    refused(tmp_path, bandit(tmp_path, metric=metric), "attribute of Untrained", module)


def test_sharded_strategies(tmp_path):
    run = trainer(tmp_path, bandit(tmp_path))
    run.strategy.__class__ = type("Sharded", (type(run.strategy), FSDPStrategy), {})
    with pytest.raises(InputError, match="Sharded; use strategy='ddp'"):
        run.callbacks[-1].setup(run, Gen(), "fit")


def test_trainer_of_the_other_package(tmp_path):
    other = pytest.importorskip("pytorch_lightning")

    class Other(other.LightningModule):
        def training_step(self, batch, batch_idx):
            raise AssertionError("training began")

        def validation_step(self, batch, batch_idx):
            pass

        def configure_optimizers(self):
            return None

    run = other.Trainer(
        default_root_dir=tmp_path, logger=False, enable_progress_bar=False, callbacks=[bandit(tmp_path)], max_epochs=1
    )
    with pytest.raises(InputError, match=r"Trainer of `lightning\.pytorch`, but got one of pytorch_lightning"):
        run.fit(Other(), *loaders())


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "taken").write_text("a file")
    refused(tmp_path, bandit(tmp_path / "taken" / "arms"), "folder for the arms")
