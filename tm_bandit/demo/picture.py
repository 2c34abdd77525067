"""The demo's picture: a near tie seen twice, by equal evaluation and by the paired race, and samples of three arms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from tm_bandit.report.chart import GREY, PALETTE
from tm_bandit.report.result import SelectionResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Arms that are shown, from the best on: where the tie is near.
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
        uniform: samples per arm, and the scores of all arms in each evaluation with so many.
        images: samples by title.
    """
    # Figure without pyplot: no window system is asked for, and no global state is left behind.
    from matplotlib.figure import Figure

    names = list(truth)[:_SHOWN]
    figure = Figure(figsize=(13.5, 1.9 + 0.3 * len(names)), dpi=100, layout="constrained")
    parts: Any = figure.subfigures(1, 2, width_ratios=[3, 1])
    charts, gallery = parts
    left, right = charts.subplots(1, 2, sharey=True)
    _draw_uniform(left, names, *uniform)
    _draw_race(right, names, race, truth)
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.4, -0.6)
    for axes in (left, right):
        axes.grid(axis="x", color="#e6e8eb")
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    if len(names) < len(truth):
        charts.supxlabel(f"The best {len(names)} of {len(truth)} candidates, by their true FID.", fontsize=9)
    for axes, (title, samples) in zip(gallery.subplots(len(images), 1), images.items(), strict=True):
        axes.imshow(_grid(samples), cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
    return figure


def _draw_uniform(axes: Any, names: Sequence[str], each: int, scores: Sequence[Mapping[str, float]]) -> None:
    """Draw one evaluation as dots, and the middle nine tenths of all of them as bars."""
    found = np.array([[evaluation[name] for name in names] for evaluation in scores])
    low, high = np.quantile(found, [0.05, 0.95], axis=0)
    rows = np.arange(len(names))
    axes.hlines(rows, low, high, color=GREY, lw=2)
    axes.plot(found[0], rows, "o", color=GREY, ms=6)
    first = int(found[0].argmin())
    axes.plot(found[0, first], first, "o", color=PALETTE[1], ms=8)
    axes.set_title(f"All equally, each from its own noise:\nplain FID of {each} samples", fontsize=11)
    axes.set_xlabel(
        f"dots: one evaluation, orange is its choice\nbars: nine in ten of {len(scores)} evaluations", fontsize=9
    )


def _draw_race(axes: Any, names: Sequence[str], race: SelectionResult, truth: Mapping[str, float]) -> None:
    """Draw how far each arm is behind the best, with the interval, and the truth."""
    arms = {row["arm"]: row for row in race.table()}
    axes.axvline(0, color="#30343b", lw=1)
    for at, name in enumerate(names):
        row = arms[name]
        colour = PALETTE[0] if name == race.best else GREY if row["verdict"].startswith("worse") else PALETTE[1]
        behind = 0.0 if name == race.best else row["behind"]
        if math.isfinite(row["behind_lower"]) and math.isfinite(row["behind_upper"]):
            axes.hlines(at, row["behind_lower"], row["behind_upper"], color=colour, lw=2)
        axes.plot(behind, at, "o", color=colour, ms=8 if name == race.best else 6)
        axes.plot(truth[name] - truth[str(race.best)], at, "D", mfc="none", mec="#30343b", ms=5)
    axes.set_title(
        f"The paired race, all from the same noise:\nFID behind the best, {race.total_samples:,} samples", fontsize=11
    )
    axes.set_xlabel("dots and bars: estimates and intervals, blue is its choice\ndiamonds: the truth", fontsize=9)


def _grid(images: Tensor, rows: int = 3, columns: int = 8) -> Any:
    """Put images side by side with a one-pixel border."""
    padded = np.pad(images[: rows * columns, 0].numpy(), ((0, 0), (1, 1), (1, 1)))
    _, height, width = padded.shape
    return padded.reshape(rows, columns, height, width).transpose(0, 2, 1, 3).reshape(rows * height, columns * width)
