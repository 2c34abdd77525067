"""Small modules and data that the tests of the callback share; importable, so that spawned processes find them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tm_bandit import OptimisticFID, ReferenceStatistics
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.selection import SelectionResult

DIM = 4


class Gen(pl.LightningModule):
    """A linear generator of points in ``DIM`` dimensions that is trained toward ``N(target, I)``.

    It has all that a sampler could disturb: dropout (global RNG), batch norm (buffers that change in training mode), a
    buffer that is not saved but matters, and tied weights.
    """

    def __init__(self, lr: float = 0.05, target: float = 1.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Linear(DIM, DIM)
        self.tied = nn.Linear(DIM, DIM)
        self.tied.weight = self.net.weight
        self.norm = nn.BatchNorm1d(DIM, affine=False)
        self.drop = nn.Dropout(0.2)
        self.register_buffer("gain", torch.ones(()), persistent=False)
        self.calls: list[int] = []

    def forward(self, noise):
        return self.gain * self.net(noise) + self.tied.bias

    def training_step(self, batch, batch_idx):
        noise = torch.randn(len(batch[0]), DIM, device=self.device)
        self.gain.mul_(1.0001)
        fake = self(self.drop(noise)) + 0.01 * self.norm(noise)
        return ((fake.mean(0) - self.hparams.target) ** 2).sum() + ((fake.std(0) - 1) ** 2).sum()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        pass

    def sample(self, num_samples: int, scale: float = 1.0):
        self.calls.append(num_samples)
        return scale * self(torch.randn(num_samples, DIM, device=self.device))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class Stuck(Gen):
    """A sampler that ignores its seed."""

    def sample(self, num_samples: int):
        return self(torch.randn(num_samples, DIM, generator=torch.Generator().manual_seed(0)))


class Untrained(Gen):
    """Fails the test if a single training step is made."""

    def training_step(self, batch, batch_idx):
        raise AssertionError("training began")


class Failing(Gen):
    """Cannot be written to a checkpoint."""

    def on_save_checkpoint(self, checkpoint):
        raise RuntimeError("not today")


class Rude(Gen):
    """A sampler that leaves everything it can in another state."""

    def sample(self, num_samples: int, scale: float = 1.0):
        self.train()
        self.norm(torch.randn(8, DIM))
        self.gain.add_(0.1)
        for parameter in self.parameters():
            parameter.requires_grad_(True)
        with torch.enable_grad():
            self(torch.randn(2, DIM)).sum().backward()
        return super().sample(num_samples, scale).detach()


def reference(shift: float = 1.0) -> ReferenceStatistics:
    return ReferenceStatistics(torch.full((DIM,), shift), torch.eye(DIM), 10_000)


def fid(bound: str = "authors", with_reference: bool = True) -> OptimisticFID:
    return OptimisticFID(feature=nn.Identity(), reference=reference() if with_reference else None, bound=bound)


def loaders(train: int = 64, val: int = 16, batch_size: int = 8) -> tuple[DataLoader, DataLoader]:
    generator = torch.Generator().manual_seed(0)
    points = 1.0 + torch.randn(train + val, DIM, generator=generator)
    return (
        DataLoader(TensorDataset(points[:train]), batch_size, shuffle=True),
        DataLoader(TensorDataset(points[train:]), batch_size),
    )


def bandit(tmp_path=None, metric: OptimisticFID | None = None, **kwargs) -> BanditCheckpoint:
    settings = {"budget": 60, "batch_size": 10, "dirpath": None if tmp_path is None else str(tmp_path), **kwargs}
    return BanditCheckpoint(metric or fid(), **settings)


def trainer(tmp_path, *callbacks, **kwargs) -> pl.Trainer:
    settings = {
        "default_root_dir": str(tmp_path),
        "accelerator": "cpu",
        "max_epochs": 2,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": list(callbacks),
        **kwargs,
    }
    if not callbacks:
        settings["enable_checkpointing"] = False
    return pl.Trainer(**settings)


def fit(tmp_path, *callbacks, module=Gen, data=None, ckpt_path=None, **kwargs) -> pl.Trainer:
    """Train a module, or a new one of a class, from a fixed seed and return the Trainer."""
    pl.seed_everything(7, verbose=False)
    run = trainer(tmp_path, *callbacks, **kwargs)
    run.fit(module() if isinstance(module, type) else module, *(data or loaders()), ckpt_path=ckpt_path)
    return run


class Calm(Gen):
    """Its training is a function of the data and the step alone, so it can be resumed bit by bit."""

    def training_step(self, batch, batch_idx):
        return ((self(batch[0]) - batch[0].roll(1, 0)) ** 2).mean() * (1 + self.global_step % 3)


def calm_loaders() -> tuple[DataLoader, DataLoader]:
    train, val = loaders()
    return DataLoader(train.dataset, 8), val


def assert_same_result(one: SelectionResult, two: SelectionResult) -> None:
    """The same choices, exactly; the same numbers, up to the rounding of sums that were saved and taken up again."""

    def compare(first, second):
        assert type(first) is type(second)
        if isinstance(first, dict):
            assert first.keys() == second.keys()
            for key in first:
                compare(first[key], second[key])
        elif isinstance(first, list):
            assert len(first) == len(second)
            for item, other in zip(first, second, strict=True):
                compare(item, other)
        elif isinstance(first, float):
            assert math.isclose(first, second, rel_tol=1e-9), (first, second)
        else:
            assert first == second

    compare(json.loads(one.to_json()), json.loads(two.to_json()))


class CliData(pl.LightningDataModule):
    def train_dataloader(self):
        return loaders()[0]

    def val_dataloader(self):
        return loaders()[1]


def function_sampler(pl_module, n, *, generator, scale=1.0):
    return scale * pl_module(torch.randn(n, DIM, generator=generator))


class ClassSampler:
    def __init__(self, shift: float = 0.0) -> None:
        self.shift = shift

    def __call__(self, pl_module, n, *, generator, scale=1.0):
        return self.shift + function_sampler(pl_module, n, generator=generator, scale=scale)


class Drifting(Gen):
    """It is best after its first epoch, by far: each epoch moves it away from what the metric wants."""

    def on_validation_start(self):
        self.drift()

    def on_save_checkpoint(self, checkpoint):
        pass

    def drift(self):
        with torch.no_grad():
            self.net.weight.copy_(torch.eye(DIM))
            self.net.bias.fill_(0.5 + self.distance(self.trainer.global_step // 8))
            self.tied.bias.fill_(0.5)

    def distance(self, epoch):
        return epoch - 1


class Improving(Drifting):
    """Each epoch brings it closer."""

    def distance(self, epoch):
        return 10 - epoch


def race(folder, module, *callbacks, max_epochs=4, ckpt_path=None, data=None, **kwargs):
    """Train with small batches, so that every validation samples the older arms, and they are read from their files."""
    settings = {"budget": 200, "batch_size": 10, "policy": "random", "max_arms": 2, **kwargs.pop("bandit", {})}
    callback = bandit(Path(folder) / "arms", **settings)
    last = ModelCheckpoint(Path(folder) / "last", save_last=True, save_top_k=-1, filename="{step}")
    done = fit(
        folder,
        callback,
        last,
        *callbacks,
        module=module,
        data=data,
        max_epochs=max_epochs,
        ckpt_path=ckpt_path,
        **kwargs,
    )
    return callback, done


def assert_first_is_kept(callback):
    assert callback.best_arm == "step8"
    assert Path(callback.best_model_path).name == "step8.ckpt"
    assert callback.best_model_score.item() < 1.0
    saved = torch.load(callback.best_model_path, weights_only=False)
    assert saved["tm_bandit"]["tag"]
    assert callback.result.num_samples["step8"] > 250, "it was read from its file and sampled in every validation"
    assert not [reason for reason in callback.result.retired.values() if "room" not in reason]


class OneFolder(Logger):
    """A logger that has one folder for all runs, as those of Weights & Biases and MLflow."""

    def __init__(self, save_dir, version):
        super().__init__()
        self._dir, self._version = str(save_dir), version

    name = "project"
    version = property(lambda self: self._version)
    save_dir = property(lambda self: self._dir)
    log_dir = save_dir

    def log_metrics(self, metrics, step=None):
        pass

    def log_hyperparams(self, *args, **kwargs):
        pass


def idle(tmp_path, module, *callbacks, **kwargs) -> pl.Trainer:
    """A Trainer that holds a module and does not train: enough for what a callback asks of it."""
    held = trainer(tmp_path, *callbacks, **kwargs)
    held.strategy.connect(module)
    module.trainer = held
    return held
