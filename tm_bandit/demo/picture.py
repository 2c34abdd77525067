"""The demo's picture: a near tie seen twice, by equal evaluation and by the paired race, and samples of three arms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from tm_bandit.report.chart import GREY, PALETTE, make_chart
from tm_bandit.report.result import SelectionResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Arms that are shown, from the best on: where the tie is close.
_SHOWN = 12


def draw_picture(path: Path, *parts: Any) -> None:
    """Write the picture as a PNG.

    Args:
        path: the file.
        parts: the arguments of :func:`make_figure`.
    """
    make_figure(*parts).savefig(path, metadata={"Software": None})


def make_figure(
    race: SelectionResult,
    truth: Mapping[str, float],
    uniform: tuple[int, Sequence[Mapping[str, float]]],
    images: Mapping[str, Tensor],
) -> Figure:
    """Return the picture.

    Args:
        race: a paired race among the arms.
        truth: true FID of every arm, the best first.
        uniform: samples per arm, and the scores of all arms in each evaluation with that many.
        images: samples by title.
    """
    # Figure without pyplot: no window system is needed, and no global state is left behind.
    from matplotlib.figure import Figure

    names = list(truth)[:_SHOWN]
    figure = Figure(figsize=(12, 2.2 + 0.28 * len(names)), dpi=110, layout="constrained")
    parts: Any = figure.subfigures(1, 2, width_ratios=[3.6, 1])
    charts, gallery = parts
    left, right = charts.subplots(1, 2, sharey=True)
    _draw_uniform(left, names, truth, *uniform)
    _draw_race(right, names, race, truth)
    left.set_yticks(range(len(names)), names, fontsize=9)
    left.set_ylim(len(names) - 0.4, -0.6)
    for axes in (left, right):
        axes.grid(axis="x", color="#e6e8eb")
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    repeats = len(uniform[1])
    charts.supxlabel(
        f"Left: one evaluation (dots) and nine in ten of {repeats} (bars). Right: estimates, intervals, and the truth "
        f"(diamonds).\nShown are the best {len(names)} of {len(truth)} candidates, sorted by their true FID.",
        fontsize=9,
    )
    for axes, (title, samples) in zip(gallery.subplots(len(images), 1), images.items(), strict=True):
        axes.imshow(_grid(samples), cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(title, fontsize=8)
        axes.set_axis_off()
    return figure


def _draw_uniform(
    axes: Any, names: Sequence[str], truth: Mapping[str, float], each: int, scores: Sequence[Mapping[str, float]]
) -> None:
    """Draw one evaluation as dots, and the middle nine tenths of all of them as bars."""
    found = np.array([[evaluation[name] for name in names] for evaluation in scores])
    low, high = np.quantile(found, [0.05, 0.95], axis=0)
    rows = np.arange(len(names))
    axes.hlines(rows, low, high, color=GREY, lw=2)
    axes.plot(found[0], rows, "o", color=GREY, ms=6)
    pick = min(scores[0], key=scores[0].__getitem__)
    if pick in names:
        axes.plot(scores[0][pick], names.index(pick), "o", color=PALETTE[1], ms=9)
    spent = f"plain FID, {each} samples each, {each * len(truth):,} in all"
    _head(axes, "Evaluate all equally", spent, _verdict(pick, truth), PALETTE[1])
    axes.set_xlabel("plain FID", fontsize=9)


def _draw_race(axes: Any, names: Sequence[str], race: SelectionResult, truth: Mapping[str, float]) -> None:
    """Draw how far each arm is behind the best, with the interval, and the truth."""
    marks = {arm.name: arm.mark for arm in make_chart(race).series}
    axes.axvline(0, color="#30343b", lw=1)
    for at, name in enumerate(names):
        behind, lower, upper, decided = marks[name]
        colour = PALETTE[0] if name == race.best else GREY if decided else PALETTE[1]
        if math.isfinite(lower) and math.isfinite(upper):
            axes.hlines(at, lower, upper, color=colour, lw=2)
        axes.plot(behind, at, "o", color=colour, ms=9 if name == race.best else 6)
        axes.plot(truth[name] - truth[str(race.best)], at, "D", mfc="none", mec="#30343b", ms=5)
    spent = f"differences to the best, {race.total_samples:,} samples in all"
    _head(axes, "Race on the same noise", spent, _verdict(str(race.best), truth), PALETTE[0])
    axes.set_xlabel("FID behind the best", fontsize=9)


def _verdict(pick: str, truth: Mapping[str, float]) -> str:
    """Say how good a choice was."""
    best = min(truth.values())
    return "picks the best" if truth[pick] == best else f"picks one that is {truth[pick] / best - 1:.0%} worse"


def _head(axes: Any, title: str, spent: str, verdict: str, colour: str) -> None:
    """Write what was done, what it cost and the outcome, one line each."""
    axes.set_title(title, fontsize=12, fontweight="bold", pad=40)
    for height, text, style in (
        (25, spent, {"fontsize": 9, "color": "#5c6470"}),
        (8, verdict, {"fontsize": 11, "color": colour, "fontweight": "bold"}),
    ):
        axes.annotate(text, (0.5, 1), (0, height), "axes fraction", textcoords="offset points", ha="center", **style)


def _grid(images: Tensor, rows: int = 3, columns: int = 8) -> Any:
    """Put images side by side with a one-pixel border."""
    padded = np.pad(images[: rows * columns, 0].numpy(), ((0, 0), (1, 1), (1, 1)))
    _, height, width = padded.shape
    return padded.reshape(rows, columns, height, width).transpose(0, 2, 1, 3).reshape(rows * height, columns * width)
