"""Generators with known moments for the coverage study, from tame to nasty."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks._paths import Sampler, Scenario, centred_scenario


def _spectrum(dim: int) -> Tensor:
    return torch.arange(1, dim + 1, dtype=torch.float64) ** -0.7


def _normal(runs: int, count: int, dim: int, generator: torch.Generator) -> Tensor:
    return torch.randn(runs, count, dim, generator=generator, dtype=torch.float64)


def _gaussian(dim: int, scale: Tensor, mean: Tensor) -> Sampler:
    return lambda runs, count, generator: _normal(runs, count, dim, generator) * scale.sqrt() + mean


def _exact(name: str, dim: int, scale: Tensor, mean: Tensor) -> Scenario:
    values = _spectrum(dim)
    truth = mean.square().sum() + (scale.sqrt() - values.sqrt()).square().sum()
    return Scenario(name, _gaussian(dim, scale, mean), values, float(truth))


def _student(dim: int, scale: Tensor, mean: Tensor, freedom: float = 5.0) -> Sampler:
    def sampler(runs: int, count: int, generator: torch.Generator) -> Tensor:
        rows = _normal(runs, count, dim, generator) * scale.sqrt()
        # A chi-square variable per row from normal ones, so that one generator seeds everything.
        chi = _normal(runs, count, int(freedom), generator).square().sum(-1, keepdim=True)
        return rows / (chi / freedom).sqrt() * ((freedom - 2) / freedom) ** 0.5 + mean

    return sampler


def _relu(dim: int, shift: float, mix: Tensor) -> Sampler:
    """Skewed, mostly zero features, like those behind a ReLU."""
    return lambda runs, count, generator: (_normal(runs, count, dim, generator) @ mix - 1.0 + shift).clamp_min(0)


def _mixture(dim: int, scale: Tensor, apart: float) -> Sampler:
    def sampler(runs: int, count: int, generator: torch.Generator) -> Tensor:
        rows = _normal(runs, count, dim, generator) * scale.sqrt()
        rare = (torch.rand(runs, count, 1, generator=generator) < 0.1).double()
        return rows + apart * (rare - 0.1) * torch.ones(dim, dtype=torch.float64) / dim**0.5

    return sampler


def frechet_scenarios(dim: int, size: int = 1_000_000) -> list[Scenario]:
    """The scenarios of the study; ``size`` rows tell the truth where it has no closed form."""
    values = _spectrum(dim)
    zero = torch.zeros(dim, dtype=torch.float64)
    wobble = torch.linspace(-1, 1, dim, dtype=torch.float64)
    collapsed = values * torch.where(torch.arange(dim) < dim // 4, 1.0, 1e-3).double()
    mix = torch.eye(dim, dtype=torch.float64) + 0.3 * torch.ones(dim, dim, dtype=torch.float64) / dim**0.5
    relu = _relu(dim, 0.0, mix)(1, size, torch.Generator().manual_seed(99))[0]
    relu_moments = relu.mean(0), torch.cov(relu.T)
    diagonal = torch.diag(values)
    return [
        _exact("gaussian, equal to the reference", dim, values, zero),
        _exact("gaussian, nearly equal", dim, values * (1 + 0.05 * wobble), 0.03 * values.sqrt()),
        _exact("gaussian, apart", dim, values * (1 + 0.6 * wobble), 0.3 * values.sqrt() * wobble),
        _exact("gaussian, collapsed", dim, collapsed, zero),
        centred_scenario("student t5, apart", _student(dim, values * (1 + 0.5 * wobble), zero), zero, diagonal, size),
        centred_scenario("student t5, collapsed", _student(dim, collapsed, zero), zero, diagonal, size),
        centred_scenario("relu, nearly equal", _relu(dim, 0.02, mix), *relu_moments, size),
        centred_scenario("relu, apart", _relu(dim, 0.4, mix), *relu_moments, size),
        centred_scenario("mixture, a rare far mode", _mixture(dim, values, 3.0), zero, diagonal, size),
    ]


def _labelled(classes: int, sharpness: float, weights: Tensor) -> Sampler:
    def sampler(runs: int, count: int, generator: torch.Generator) -> Tensor:
        label = torch.multinomial(weights, runs * count, replacement=True, generator=generator).view(runs, count, 1)
        logits = _normal(runs, count, classes, generator)
        return logits.scatter_add(2, label, torch.full_like(label, 1, dtype=torch.float64) * sharpness).softmax(-1)

    return sampler


def marginal_scenarios(classes: int, size: int = 200_000) -> list[tuple[str, Sampler, float]]:
    """Peaked, flat and class-dropping predictions, with the true log IS measured on ``size`` samples."""
    even = torch.full((classes,), 1.0 / classes, dtype=torch.float64)
    dropped = torch.where(torch.arange(classes) < classes // 2, even, torch.zeros_like(even))
    tilted = torch.arange(1, classes + 1, dtype=torch.float64).reciprocal()
    makers: dict[str, Callable[[], Sampler]] = {
        "peaked": lambda: _labelled(classes, 8.0, even),
        "flat": lambda: _labelled(classes, 1.0, even),
        "class-dropping": lambda: _labelled(classes, 6.0, dropped),
        "long-tailed": lambda: _labelled(classes, 6.0, tilted),
    }
    result = []
    for name, make in makers.items():
        sampler = make()
        generator = torch.Generator().manual_seed(7)
        total, entropy, step = torch.zeros(classes, dtype=torch.float64), 0.0, 20_000
        for _ in range(size // step):
            probs = sampler(1, step, generator)[0]
            total, entropy = total + probs.sum(0), entropy + float(torch.special.entr(probs).sum())
        used = size // step * step
        truth = float(torch.special.entr(total / used).sum()) - entropy / used
        result.append((name, sampler, truth))
    return result
