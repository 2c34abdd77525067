"""Arms as pools of rows: the demo's checkpoints, real CIFAR-10 checkpoints, and simulated near ties and rare modes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.scenarios import data_folder
from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics
from tm_bandit.functional.frechet import frechet_distance

#: A pick counts as right if its distance is at most so many times that of the best arm.
WITHIN = 1.02


class Pool(NamedTuple):
    """Arms as rows that are drawn with replacement, so the truth is exact; equal rows of arms have the same noise."""

    names: list[str]
    rows: Tensor
    reference: ReferenceStatistics
    truth: Tensor
    within: float = WITHIN

    @classmethod
    def of(cls, names: Sequence[str], rows: Tensor, reference: ReferenceStatistics) -> Pool:
        """Compute the truth."""
        mean, covariance = reference.mean, reference.covariance
        truth = [
            float(frechet_distance(arm.double().mean(0), torch.cov(arm.double().T, correction=0), mean, covariance))
            for arm in rows
        ]
        return cls(list(names), rows, reference, torch.tensor(truth, dtype=torch.float64))

    def right(self, name: str | None) -> bool:
        """Whether an arm is within 2 % of the best one, or whatever was asked for."""
        return name is not None and bool(self.truth[self.names.index(name)] <= self.within * self.truth.min())

    def samplers(self) -> dict[str, Callable[..., Tensor]]:
        """Return the arms; equal seeds mean equal rows."""

        def sampler(arm: Tensor) -> Callable[..., Tensor]:
            return lambda n, generator: arm[torch.randint(len(arm), (n,), generator=generator)]

        return {name: sampler(arm) for name, arm in zip(self.names, self.rows, strict=True)}


@cache
def digits(seed: int, size: int = 6_000) -> Pool:
    """All 28 arms of the demo's training on the same noise; drawn once, which takes minutes, and kept in a file."""
    from lightning.pytorch import Callback

    from tm_bandit.demo import story
    from tm_bandit.demo.digits import train_classifier
    from tm_bandit.demo.flow import DigitFlow, DigitsData

    file = Path(__file__).parent / "out" / f"digits{seed}.npz"
    if not file.exists():
        data = DigitsData(seed=seed)
        classifier = train_classifier(data.digits, seed=seed, steps=600)
        weights: dict[str, dict[str, Tensor]] = {}

        class Snapshots(Callback):
            def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
                step, average = trainer.global_step, trainer.callbacks[0]._average_model.module
                weights[f"{step}/raw"] = {k: v.clone() for k, v in pl_module.state_dict().items()}
                weights[f"{step}/avg"] = {k: v.clone() for k, v in average.state_dict().items()}

        story.fit(data, [Snapshots()], seed, story.FULL)
        model, arms = DigitFlow(), {}
        with torch.no_grad():
            for name, state in weights.items():
                model.load_state_dict(state)
                for steps in (100, 2):
                    generator = torch.Generator().manual_seed(1000 + seed)
                    parts = [
                        classifier(model.sample(250, steps=steps, generator=generator)) for _ in range(size // 250)
                    ]
                    arms[f"{name}/{steps}"] = torch.cat(parts).float().numpy()
        file.parent.mkdir(exist_ok=True)
        np.savez(file, ref=classifier(data.digits.images).numpy(), **arms)
    with np.load(file) as stored:
        names = [name for name in stored.files if name != "ref"]
        rows = torch.stack([torch.from_numpy(stored[name]) for name in names])
        return Pool.of(names, rows, ReferenceStatistics.from_features(torch.from_numpy(stored["ref"])))


@cache
def cifar() -> Pool | None:
    """Checkpoints of a flow model on CIFAR-10, real pictures and features, if they are there."""
    folder = data_folder()
    if folder is None or not (folder / "cifar10_flow_paired.npz").is_file():
        return None
    with np.load(folder / "cifar10_flow_paired.npz") as stored:
        names = [name for name in stored.files if name.startswith("arm/")]
        rows = torch.stack([torch.from_numpy(stored[name].astype(np.float32)) for name in names])
        reference = ReferenceStatistics(torch.from_numpy(stored["mean"]), torch.from_numpy(stored["cov"]), 10**6)
    return Pool.of(names, rows, reference)


@cache
def simulated(shared: float, size: int = 20_000, dim: int = 64) -> Pool:
    """Eight Gaussian arms whose distances differ by 3 % each; ``shared`` is the share of the noise in common."""
    generator = torch.Generator().manual_seed(11)
    values = torch.arange(1, dim + 1, dtype=torch.float64) ** -0.7
    common = torch.randn(size, dim, generator=generator, dtype=torch.float64)
    rows = []
    for k in range(8):
        own = torch.randn(size, dim, generator=generator, dtype=torch.float64)
        noise = math.sqrt(shared) * common + math.sqrt(1 - shared) * own
        far = (1.0 + 0.03 * k) ** 0.5
        rows.append((0.8 * values).sqrt() * noise + 0.25 * far * values.sqrt())
    reference = ReferenceStatistics(torch.zeros(dim), torch.diag(values), 10**6)
    return Pool.of([f"arm {k}" for k in range(8)], torch.stack(rows).float(), reference)


def selector(pool: Pool, seed: int, **options: Any) -> ModelSelector:
    metric = OptimisticFID(feature="none", reference=pool.reference)
    return ModelSelector(metric, pool.samplers(), samples="features", seed=seed, **options)


@cache
def rare_mode(share: float, size: int = 20_000, dim: int = 8) -> Pool:
    """A perfect generator with a far mode of so much mass, and a rival that is a little wider and a little off."""
    generator = torch.Generator().manual_seed(12)
    rows = torch.randn(size, dim, generator=generator, dtype=torch.float64)
    rows[: round(share * size), 0] += 20.0
    reference = ReferenceStatistics(rows.mean(0), torch.cov(rows.T, correction=0), 10**6)
    rival = rows.mean(0) + 1.05 * (rows - rows.mean(0)) + 0.05
    return Pool.of(["perfect", "rival"], torch.stack([rows, rival]), reference)


@cache
def heavy_tails(size: int = 20_000, dim: int = 16) -> Pool:
    """Three arms with the tails of Student's t with three degrees of freedom, on the same noise, near ties."""
    generator = torch.Generator().manual_seed(13)
    rows = torch.randn(size, dim, generator=generator, dtype=torch.float64)
    rows /= (torch.randn(size, 3, generator=generator, dtype=torch.float64).square().mean(1, keepdim=True)).sqrt()
    rows /= rows.std(0)
    reference = ReferenceStatistics(torch.zeros(dim), torch.eye(dim, dtype=torch.float64), 10**6)
    return Pool.of(["a", "b", "c"], torch.stack([0.8 * rows + shift for shift in (0.30, 0.31, 0.35)]), reference)
