"""How often the intervals of KID and of a mean ever miss the truth, followed look by look.

``python -m benchmarks.intervals``: the truths are known in closed form. A run misses if a single look of it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit import OptimisticKID, ReferenceStatistics
from tm_bandit.functional import ScoreMoments, betting_lower_bound, mean_interval

RUNS, SEED, DELTA = 200, 300_000, 0.05

#: Generators next to sixty rows of a standard Gaussian: kernel, and shift and spread of their own Gaussian; or none, if
#: they draw from these rows, where the statistic is degenerate.
KERNELS: dict[str, tuple[str, float, float] | tuple[str]] = {
    "far": ("polynomial", 1.0, 1.5),
    "near": ("polynomial", 0.0, 1.15),
    "the same Gaussian": ("polynomial", 0.0, 1.0),
    "degenerate: the reference's own rows": ("polynomial",),
    "shifted": ("rbf", 0.6, 1.0),
    "narrow": ("rbf", 0.3, 0.5),
    "the same Gaussian, rbf": ("rbf", 0.0, 1.0),
    "degenerate: the reference's own rows, rbf": ("rbf",),
}
DIM, SIGMA, REAL = 4, 2.0, 60

VERY_SKEWED = "squares of Gaussians"

#: Scores without limits, made of six streams of Gaussians, and their mean.
SCORES: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "normal": (lambda z: z[0], 0.0),
    "exponential": (lambda z: (z[0] ** 2 + z[1] ** 2) / 2, 1.0),
    "log-normal": (lambda z: (0.5 * z[0]).exp(), math.exp(0.125)),
    "uniform": (lambda z: torch.special.ndtr(z[0]), 0.5),
    "two modes": (lambda z: (z[0] > 0).double() + z[1] / 10, 0.5),
    "long tails": (lambda z: z[0] / z[1:].square().mean(0).sqrt(), 0.0),
    VERY_SKEWED: (lambda z: z[0] ** 2, 1.0),
}

#: Scores between 0 and 1, made of uniform numbers, and their mean.
LIMITED: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "rare": (lambda u: (u < 0.02).double(), 0.02),
    "even": (lambda u: (u < 0.5).double(), 0.5),
    "nearly always": (lambda u: (u < 0.95).double(), 0.95),
    "uniform": (lambda u: u, 0.5),
    "skewed": (lambda u: u**4, 0.2),
    "narrow": (lambda u: 0.3 + 0.01 * u, 0.305),
}


class Followed(NamedTuple):
    """The outcome of some runs.

    Args:
        below: runs whose interval was below the truth at some look.
        above: runs whose interval was above it.
        missed: runs of either kind.
        degenerate: runs whose statistic was degenerate at the last look.
    """

    below: int
    above: int
    missed: int
    degenerate: int = 0

    @classmethod
    def of(cls, missed: Tensor, degenerate: int = 0) -> Followed:
        """Count runs, ``(runs, 2)``: whether the interval was ever below the truth, and whether above."""
        below, above = missed.sum(0).tolist()
        return cls(below, above, int(missed.any(1).sum()), degenerate)


def gaussian(count: int, seed: int) -> Tensor:
    """Return rows of a standard Gaussian."""
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def similarity(kind: str, shift: float, spread: float, rows: Tensor) -> tuple[float, Tensor]:
    """Return the mean kernel value of an isotropic Gaussian with itself and with each of some rows, in closed form."""
    dim = rows.shape[1]
    mean = torch.full((dim,), shift, dtype=torch.float64)
    if kind == "rbf":
        square, wide = SIGMA**2, SIGMA**2 + spread**2
        own = (square / (square + 2 * spread**2)) ** (dim / 2)
        return own, (square / wide) ** (dim / 2) * (-(rows - mean).square().sum(1) / (2 * wide)).exp()
    # E (1 + t)^3 = 1 + 3 E t + 3 E t^2 + E t^3 for a Gaussian t = x'y / d.
    t, v = rows @ mean / dim, spread**2 * rows.square().sum(1) / dim**2
    near = 1 + 3 * t + 3 * (t**2 + v) + t**3 + 3 * t * v
    length = float(mean @ mean)
    square = spread**4 * dim + 2 * spread**2 * length + length**2
    cube = length**3 + 6 * spread**2 * length**2 + 3 * spread**4 * length * (dim + 2)
    return 1 + 3 * length / dim + 3 * square / dim**2 + cube / dim**3, near


def follow_kid(name: str, runs: int, seed: int, samples: int, pull: int = 20) -> Followed:
    """Follow KID's interval pull by pull.

    Args:
        name: a scenario from ``KERNELS``.
        runs: how many runs.
        seed: seed of the first one.
        samples: samples at the end of each.
        pull: samples between two looks.
    """
    kind, *form = KERNELS[name]
    rows = gaussian(REAL, 100)
    reference = ReferenceStatistics.from_features(rows, keep_rows=True)
    template = OptimisticKID("none", reference, kernel=kind, sigma=SIGMA, delta=DELTA)
    kernel = template.kernel
    among = kernel(rows, rows)
    own, near = similarity(kind, *form, rows) if form else (float(among.mean()), among.mean(1))
    truth = own - 2 * float(near.mean()) + reference.rows.mean_of_pairs(kernel)
    missed, degenerate = [], 0
    for run in range(runs):
        if form:
            drawn = form[1] * gaussian(samples, seed + run) + form[0]
        else:
            drawn = rows[torch.randint(REAL, (samples,), generator=torch.Generator().manual_seed(seed + run))]
        metric, ends = template.fork(), []
        for batch in drawn.split(pull):
            metric.update_rows(batch)
            ends.append([float(end) for end in metric.bounds()])
        missed.append((any(upper < truth for _, upper in ends), any(lower > truth for lower, _ in ends)))
        degenerate += metric.is_degenerate
    return Followed.of(torch.tensor(missed), degenerate)


def follow_mean(scores: Tensor, truth: float, first: int = 10) -> Followed:
    """Follow the interval of a mean without limits.

    Args:
        scores: the scores of each run, shape ``(runs, n)``.
        truth: their expectation.
        first: how many there are at the first look.
    """
    missed = []
    for series in scores:
        looks = [series[:count] for count in range(first, len(series) + 1, 10)]
        ends = [mean_interval(ScoreMoments.of(seen), DELTA / 2) for seen in looks]
        missed.append((any(upper < truth for _, upper in ends), any(lower > truth for lower, _ in ends)))
    return Followed.of(torch.tensor(missed))


def follow_limited(scores: Tensor, truth: float) -> Followed:
    """Follow the interval of a mean of scores between 0 and 1, from two scores on.

    Args:
        scores: the scores of each run, shape ``(runs, n)``.
        truth: their expectation.
    """
    missed = torch.zeros(len(scores), 2, dtype=torch.bool)
    for count in (*range(2, 21), *range(30, scores.shape[1] + 1, 10)):
        lower, upper = (betting_lower_bound(part[:, :count], DELTA / 2) for part in (scores, 1 - scores))
        missed |= torch.stack([1 - upper < truth, lower > truth], 1)
    return Followed.of(missed)


def main(full: bool = True, out: Path | None = None) -> None:
    """Follow all kinds of scores."""
    runs = RUNS if full else 20
    generator = torch.Generator().manual_seed(SEED)
    found: list[tuple[str, str, Followed]] = []

    def keep(metric: str, name: str, followed: Followed) -> None:
        found.append((metric, name, followed))
        print(metric, name, followed, flush=True)

    for name in KERNELS:
        keep("KID, 20 to 400 samples", name, follow_kid(name, runs, SEED, 400))
    for name, (of, truth) in SCORES.items():
        values = of(torch.randn(6, runs, 400, generator=generator, dtype=torch.float64))
        keep("mean, no limits, 10 to 400 samples", name, follow_mean(values, truth))
        if name == VERY_SKEWED:
            keep("mean, no limits, 50 to 400 samples", name, follow_mean(values, truth, 50))
    for name, (within, truth) in LIMITED.items():
        values = within(torch.rand(runs, 300, generator=generator, dtype=torch.float64))
        keep("mean, within 0 and 1, 2 to 300 samples", name, follow_limited(values, truth))
    lines = [
        f"{runs} runs per row, seeds from {SEED}, delta = {DELTA}: at most {DELTA * runs:g} may ever miss the truth.",
        "",
        "| metric | scores | missed | interval too low | too high | degenerate |",
        "|-|-|-|-|-|-|",
    ]
    for metric, name, followed in found:
        degenerate = followed.degenerate if metric.startswith("KID") else "-"
        lines.append(f"| {metric} | {name} | {followed.missed} | {followed.below} | {followed.above} | {degenerate} |")
    lines += [
        "",
        "The interval of a mean without limits is asymptotic: below 50 samples, with very skewed scores, it is too low "
        "more often than promised.",
    ]
    print("\n".join(lines))
    if out is not None:
        (out / "intervals.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(out=Path(__file__).parent / "results")
