"""A small flow-matching model of the digits: the generator whose checkpoints the demo chooses between."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tm_bandit.demo.digits import NUM_CLASSES, load_digits

#: Of a digit; and waves by which the network sees the time, enough for twenty steps.
_PIXELS, _FREQUENCIES = 64, 8


class VelocityField(nn.Module):
    """A residual network that maps (noisy image, time, label) to a velocity; label 10 means "any digit"."""

    def __init__(self, width: int = 192, depth: int = 3) -> None:
        super().__init__()
        self.label = nn.Embedding(NUM_CLASSES + 1, width)
        self.time = nn.Linear(2 * _FREQUENCIES, width)
        self.inlet = nn.Linear(_PIXELS, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.outlet = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, _PIXELS))

    def forward(self, x: Tensor, time: Tensor, label: Tensor) -> Tensor:
        """Return velocities of shape ``(N, 64)`` for ``x`` of shape ``(N, 64)``, ``time`` and ``label`` of ``(N,)``."""
        angle = time[:, None] * (2.0 ** torch.arange(_FREQUENCIES, device=x.device) * (math.pi / 4))
        condition = self.time(torch.cat([angle.sin(), angle.cos()], 1)) + self.label(label)
        hidden = self.inlet(x)
        for block in self.blocks:
            hidden = hidden + block(hidden + condition)
        velocity: Tensor = self.outlet(hidden)
        return velocity


class DigitsData(pl.LightningDataModule):
    """The training and the held-out digits as loaders of ``(images, labels)``.

    Args:
        batch_size: of both loaders.
        seed: of the split.
    """

    def __init__(self, batch_size: int = 128, seed: int = 0) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.digits = load_digits(seed)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Shuffled; the incomplete last batch is dropped."""
        data = TensorDataset(self.digits.train_images, self.digits.train_labels)
        return DataLoader(data, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """The held-out digits."""
        return DataLoader(TensorDataset(self.digits.test_images, self.digits.test_labels), self.batch_size)


class DigitFlow(pl.LightningModule):
    """Flow matching with straight paths from noise to data, on 8 x 8 digits.

    The learning rate follows cosine cycles with warm restarts. Each restart throws the weights off, so the last
    checkpoint is not the best one, which makes choosing worthwhile.

    Args:
        lr: the learning rate at the start of a cycle.
        cycle: length of a cycle in steps.
        width: width of the network.
        depth: number of its residual blocks.
    """

    def __init__(self, lr: float = 4e-3, cycle: int = 300, width: int = 192, depth: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.field = VelocityField(width, depth)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Regress the velocity ``image - noise`` at a random time; one label in ten is hidden."""
        images, labels = batch
        data = 2 * images.flatten(1) - 1
        noise, time = torch.randn_like(data), torch.rand(len(data), device=data.device)
        hidden = torch.rand(len(data), device=data.device) < 0.1
        point = torch.lerp(noise, data, time[:, None])
        velocity = self.field(point, time, labels.masked_fill(hidden, NUM_CLASSES))
        return F.mse_loss(velocity, data - noise)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Do nothing: Lightning runs a validation only for modules that have this method."""

    def configure_optimizers(self) -> Any:
        """Adam with warm restarts."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])
        schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, self.hparams["cycle"])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @torch.no_grad()
    def sample(
        self, num_samples: int, *, steps: int = 8, guidance_scale: float = 1.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw images of shape ``(num_samples, 1, 8, 8)`` with pixels in ``[0, 1]``, labels at random.

        Args:
            num_samples: how many.
            steps: number of Heun steps from noise to image.
            guidance_scale: 1 is the plain model; larger values push samples toward their label (and cost twice).
            generator: source of randomness; the global one if not given.
        """
        label = torch.randint(NUM_CLASSES, (num_samples,), generator=generator, device=self.device)
        x = torch.randn(num_samples, _PIXELS, generator=generator, device=self.device)
        times = torch.linspace(0, 1, steps + 1).tolist()
        for start, end in pairwise(times):
            here = self._velocity(x, start, label, guidance_scale)
            there = self._velocity(x + (end - start) * here, end, label, guidance_scale)
            x = x + (end - start) * (here + there) / 2
        return (x.clamp(-1, 1) + 1).div(2).reshape(num_samples, 1, 8, 8)

    def _velocity(self, x: Tensor, time: float, label: Tensor, guidance_scale: float) -> Tensor:
        moment = x.new_full((len(x),), time)
        velocity: Tensor = self.field(x, moment, label)
        if guidance_scale == 1.0:
            return velocity
        anything: Tensor = self.field(x, moment, torch.full_like(label, NUM_CLASSES))
        return torch.lerp(anything, velocity, guidance_scale)
