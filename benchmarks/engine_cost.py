"""What a pull costs: the engine alone, and the algebra of a selection at 2,048 dimensions."""

from __future__ import annotations

import time

import torch
from scipy.linalg import eigh, sqrtm

from benchmarks.scenarios import fid_metric
from tm_bandit import ModelSelector


class Table:
    """Numbers of an arm without any computation."""

    def __init__(self, level: float) -> None:
        self.level = level

    def at(self, pull: int, bound: str) -> dict[str, float]:
        """Return the numbers after a pull."""
        width = 3.0 / (pull + 1) ** 0.5
        level = self.level
        return {
            "witness": level - width,
            "stderr": width / 3,
            "estimate": level + width,
            "optimistic": level - 2 * width,
            "pessimistic": level + 2 * width,
            "debiased": level,
            "debiased_stderr": width / 3,
        }


def engine_cost(num_arms: int = 20, pulls: int = 1000) -> float:
    """Return the milliseconds per pull of policy and bookkeeping, the samplers and metrics costing next to nothing."""
    from benchmarks.replay import Replay

    template = fid_metric(torch.zeros(2), torch.eye(2))("witness")
    metric = Replay([Table(10.0 + 0.1 * i) for i in range(num_arms)], template)
    samplers = {f"arm {i}": (lambda n, i=i: torch.full((n, 1), float(i))) for i in range(num_arms)}
    selector = ModelSelector(metric, samplers, budget=5 * pulls, samples="features")
    start = time.perf_counter()
    selector.run(progress=False)
    return (time.perf_counter() - start) / pulls * 1e3


def selection_cost(dim: int = 2048, pulls: int = 1000) -> float:
    """Return the seconds of algebra of a selection among five arms (drawing the samples is not counted)."""
    values = torch.arange(1, dim + 1, dtype=torch.float64) ** -0.8
    covariance, zero = torch.diag(100.0 * values / values.sum()), torch.zeros(dim, dtype=torch.float64)
    arms = {}
    for i in range(5):
        mean = zero.clone()
        mean[i] = (10.0 + 2 * i) ** 0.5
        noise = torch.randn(4000, dim, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        bank = mean + noise * covariance.diagonal().sqrt()

        def sample(num_samples: int, generator: torch.Generator, bank=bank) -> torch.Tensor:
            return bank[torch.randint(4000, (num_samples,), generator=generator)].float()

        arms[f"arm {i}"] = sample
    selector = ModelSelector(fid_metric(zero, covariance)("witness"), arms, budget=5 * pulls, samples="features")
    start = time.perf_counter()
    selector.run(progress=False)
    return time.perf_counter() - start


def authors_cost(dim: int = 2048) -> float:
    """Return the seconds of one pull of the authors' algorithm: a general square root and a full decomposition."""
    rows = torch.randn(2 * dim, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    covariance = torch.cov(rows.T).numpy()
    start = time.perf_counter()
    sqrtm(covariance @ covariance)
    eigh(covariance, eigvals_only=True)
    return time.perf_counter() - start


def measure(full: bool) -> dict[str, float]:
    """Return all costs; the large ones only in a full run."""
    costs = {"engine_ms": engine_cost()}
    dim, pulls = (2048, 1000) if full else (512, 300)
    costs["dim"], costs["pulls"] = dim, pulls
    costs["selection_s"] = selection_cost(dim, pulls)
    costs["authors_s_per_pull"] = authors_cost(dim)
    return costs
