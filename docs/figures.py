"""Draws the figures of the docs: ``python docs/figures.py`` writes them to ``docs/images``, ``--fast`` with few runs.

All arms are Gaussians in 64 dimensions whose Frechet distance to the reference is known exactly.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Generator, Tensor

from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics
from tm_bandit.functional import frechet_distance
from tm_bandit.functional.paired import paired_frechet_scores

DIMENSION = 64
#: Variances of the reference fall along its axes, as those of real features do.
SPREAD = torch.arange(1, DIMENSION + 1, dtype=torch.float64).rsqrt()
REFERENCE = ReferenceStatistics(torch.zeros(DIMENSION), torch.diag(SPREAD**2))
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d97f00", "#009e73", "#8a8f98"


class Arm:
    """A Gaussian, shifted and scaled against the reference; arms of similar angles make similar use of their noise."""

    def __init__(self, shift: float, scale: float, angle: float = 0.0) -> None:
        self.angle = angle
        self.mean = torch.full((DIMENSION,), shift, dtype=torch.float64)
        self.spread = SPREAD * scale

    def __call__(self, num_samples: int, generator: Generator) -> Tensor:
        """Return rows of features."""
        first, second = torch.randn(2, num_samples, DIMENSION, generator=generator, dtype=torch.float64)
        return self.mean + (math.cos(self.angle) * first + math.sin(self.angle) * second) * self.spread

    @property
    def truth(self) -> float:
        """Its Frechet distance to the reference."""
        covariance = torch.diag(self.spread**2)
        return float(frechet_distance(self.mean, covariance, REFERENCE.mean, REFERENCE.covariance))


def metric() -> OptimisticFID:
    """A metric of features, without samples."""
    return OptimisticFID("none", REFERENCE)


def looks(most: int) -> list[int]:
    """Sample counts to look at, evenly spaced on a logarithmic axis."""
    return sorted({round(20 * (most / 20) ** (k / 14)) for k in range(15)})


def course(arm: Arm, counts: list[int], seed: int) -> list[OptimisticFID]:
    """One stream of samples, and the metric at each count."""
    generator, stream, found = Generator().manual_seed(seed), metric(), []
    for count in counts:
        stream.update_features(arm(count - stream.num_samples, generator))
        found.append(stream.clone())
    return found


def bias(runs: int) -> plt.Figure:
    """The plain FID of two arms falls with n, and ranks them wrongly at first; the debiased value does not."""
    arms = {"diverse, the better one": (Arm(0.06, 1.0), BLUE), "collapsed, the worse one": (Arm(0.06, 0.75), ORANGE)}
    counts = looks(5000)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for name, (arm, colour) in arms.items():
        streams = [course(arm, counts, seed) for seed in range(runs)]
        for axis, value in ((axes[0], lambda m: m.estimate()), (axes[1], lambda m: m.debiased().value)):
            lines = torch.tensor([[float(value(m)) for m in stream] for stream in streams])
            axis.plot(counts, lines.mean(0), color=colour, marker="o", ms=3, label=name)
            axis.fill_between(counts, lines.amin(0), lines.amax(0), color=colour, alpha=0.15, lw=0)
            axis.axhline(arm.truth, color=colour, ls=":", lw=1.2)
    for axis, title in zip(axes, ("plain FID", "debiased FID"), strict=True):
        axis.set(xscale="log", title=title, xlabel="samples per model")
    axes[0].set(ylabel="FID (dotted: the truth)", ylim=(0, 3))
    axes[1].legend(frameon=False)
    return figure


def witness(runs: int) -> plt.Figure:
    """The interval of one arm: witness below, plug-in above, the truth in between."""
    arm, counts = Arm(0.08, 0.85), looks(5000)
    stream = course(arm, counts, 0)
    figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    low, high = zip(*[m.bounds() for m in stream], strict=True)
    axis.plot(counts, [float(m.estimate()) for m in stream], color=ORANGE, marker="o", ms=3, label="plain FID")
    axis.plot(
        counts, [m.losses(["witness"])["witness"] for m in stream], color=GREEN, marker="o", ms=3, label="witness"
    )
    axis.plot(counts, [float(m.debiased().value) for m in stream], color=BLUE, marker="o", ms=3, label="debiased")
    top = 5 * arm.truth
    axis.fill_between(
        counts, [max(0.0, float(x)) for x in low], [min(top, float(x)) for x in high], color=GREY, alpha=0.2, lw=0,
        label="95% interval",
    )  # fmt: skip
    axis.axhline(arm.truth, color="black", ls=":", lw=1.2, label="truth")
    axis.set(xscale="log", xlabel="samples", ylabel="FID", ylim=(0, top))
    axis.legend(frameon=False, ncols=2)
    return figure


def pairing(runs: int) -> plt.Figure:
    """Scores of two similar arms, draw by draw, and the error of their difference, with own and with the same noise."""
    arms = {"a": Arm(0.10, 0.95), "b": Arm(0.106, 0.944, angle=0.25)}
    gap = arms["b"].truth - arms["a"].truth
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained", width_ratios=(1, 1, 1.2))
    for axis, title, seeds in ((axes[0], "own noise", (0, 1)), (axes[1], "same noise", (0, 0))):
        rows = [arm(300, Generator().manual_seed(seed)) for arm, seed in zip(arms.values(), seeds, strict=True)]
        basis = REFERENCE.witness_basis
        scores = paired_frechet_scores([basis.rotate(part) for part in rows], basis, common=True).scores
        together = float(torch.corrcoef(scores)[0, 1])
        axis.plot(*scores.tolist(), "o", ms=2.5, alpha=0.5, color=GREY if title == "own noise" else BLUE)
        axis.set(title=f"{title}: correlation {together:.2f}", xlabel="score of draw k, arm a", ylabel="arm b")
    counts = [50, 100, 200, 400, 800]
    for kind, colour, label in (("independent", GREY, "own noise"), ("common", BLUE, "same noise")):
        found = []
        for seed in range(runs):
            selector = ModelSelector(
                metric(), arms, "uniform", batch_size=50, budget=2 * counts[-1], seed=seed, stop="budget",
                pairing=kind, samples="features",
            )  # fmt: skip
            line = []
            for _ in range(2 * counts[-1] // 50):
                selector.step()
                if selector.spent in [2 * count for count in counts]:
                    line.append(selector.compare("b", "a").difference)
            found.append(line)
        lines = torch.tensor(found)
        axes[2].fill_between(counts, lines.quantile(0.05, 0), lines.quantile(0.95, 0), color=colour, alpha=0.25, lw=0)
        axes[2].plot(counts, lines.median(0).values, color=colour, marker="o", ms=3, label=label)
    axes[2].axhline(gap, color="black", ls=":", lw=1.2, label="truth")
    axes[2].axhline(0, color="black", lw=0.8)
    axes[2].set(xscale="log", title="estimated FID of b minus a", xlabel="samples per arm", xticks=counts)
    axes[2].set_xticklabels(counts)
    axes[2].minorticks_off()
    axes[2].legend(frameon=False)
    return figure


def guarantee(runs: int) -> plt.Figure:
    """The lower end of the interval in many runs, looked at all the time, never crosses the truth (or hardly ever)."""
    arm, counts = Arm(0.08, 0.85), looks(3000)
    figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for seed in range(2 * runs):
        stream = course(arm, counts, seed)
        ends = [m.bounds() for m in stream]
        style = {"color": BLUE, "alpha": 0.4, "lw": 1}
        axis.plot(counts, [float(end.lower) for end in ends], **style, label=None if seed else "lower end")
        style["color"] = ORANGE
        axis.plot(counts, [float(end.upper) for end in ends], **style, label=None if seed else "upper end")
    axis.axhline(arm.truth, color="black", ls=":", lw=1.2, label="truth")
    axis.axvspan(counts[0], 200, color=GREY, alpha=0.15, lw=0)
    axis.text(22, 4 * arm.truth, "below 200 samples\nnothing is promised", fontsize=9)
    axis.set(xscale="log", xlabel="samples", ylabel="FID", ylim=(0, 6 * arm.truth), xlim=(counts[0], counts[-1]))
    axis.legend(frameon=False, loc="upper right")
    return figure


def report(runs: int) -> plt.Figure:
    """What ``result.plot()`` draws."""
    away = {1: 0.05, 2: 0.02, 3: 0.006, 4: 0.0, 5: 0.003, 6: 0.012}
    arms = {f"step{1000 * k}": Arm(0.08 + far, 0.9 - far, angle=0.3 * k) for k, far in away.items()}
    selector = ModelSelector(metric(), arms, batch_size=20, budget=4000, samples="features")
    return selector.run(progress=False).plot()


FIGURES: dict[str, Callable[[int], plt.Figure]] = {
    "bias": bias,
    "witness": witness,
    "pairing": pairing,
    "guarantee": guarantee,
    "report": report,
}


def main(out: Path, fast: bool) -> None:
    """Draw all figures."""
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        figure = draw(2 if fast else 20)
        figure.savefig(out / f"{name}.png", dpi=110, metadata={"Software": None})
        plt.close(figure)
        print(out / f"{name}.png")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "images", help="folder of the figures")
    parser.add_argument("--fast", action="store_true", help="few runs, as in the tests")
    main(**vars(parser.parse_args()))
