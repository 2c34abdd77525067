"""The demo's picture: bounds over the budget, where the budget went, and samples of the best and the worst arm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tm_bandit.report.result import SelectionResult

_BEST, _RIVALS, _REST = "#1b7f5c", ("#d1750d", "#5b54a4", "#b4236a", "#3d7bb8"), "#b9bec6"


def draw_picture(
    path: Path, result: SelectionResult, truth: Mapping[str, float], best: tuple[str, Tensor], worst: tuple[str, Tensor]
) -> None:
    """Write the picture as a PNG.

    Args:
        path: the file.
        result: the selection.
        truth: true FID of every arm, from many samples.
        best: name and images of the chosen arm.
        worst: name and images of the truly worst arm.
    """
    # Figure without pyplot: no window system is asked for, and no global state is left behind.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    parts: Any = figure.subfigures(2, 1, height_ratios=[1.25, 1])
    top, bottom = parts
    bounds = top.subplots()
    allocation, left, right = bottom.subplots(1, 3, width_ratios=[1.7, 1, 1])
    colours = _colours(result)
    _bounds(bounds, result, truth, colours)
    _allocation(allocation, result, truth, colours)
    for axes, (name, images), title in ((left, best, "chosen"), (right, worst, "worst")):
        axes.imshow(_grid(images), cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(f"{title}: {name} (FID {truth[name]:.1f})", fontsize=10)
        axes.set_axis_off()
    figure.savefig(path, metadata={"Software": None})


def _colours(result: SelectionResult) -> dict[str, str]:
    """The chosen arm and the four most sampled rivals have a colour; the others are grey."""
    rivals = sorted((row for row in result.arms if row["arm"] != result.best), key=lambda row: -row["n"])
    colours = {row["arm"]: _REST for row in rivals}
    colours.update({row["arm"]: colour for row, colour in zip(rivals, _RIVALS, strict=False)})
    return colours | {str(result.best): _BEST}


def _bounds(axes: Any, result: SelectionResult, truth: Mapping[str, float], colours: Mapping[str, str]) -> None:
    history = result.history
    total = history["samples"][-1]
    height = 1.6 * sorted(truth.values())[-2]
    for row in sorted(result.arms, key=lambda row: colours[row["arm"]] != _REST):
        name, colour = row["arm"], colours[row["arm"]]
        at = [i for i, arm in enumerate(history["arm"]) if arm == name]
        if not at:
            continue
        x = [history["samples"][i] for i in at] + [total]
        low, high, middle = (
            np.array([history[key][i] for i in at] + [history[key][at[-1]]]) for key in ("lower", "upper", "debiased")
        )
        shown = colour != _REST
        if name == result.best:  # the intervals of all arms on top of each other would be a fog
            axes.fill_between(x, np.maximum(low, 0), high, color=colour, alpha=0.15, lw=0, step="post")
        axes.plot(x, middle, color=colour, lw=2.5 if name == result.best else 1.3, label=name if shown else None)
        if shown:
            axes.plot(x, np.maximum(low, 0), color=colour, lw=1, ls=":", drawstyle="steps-post")
        axes.plot(total, truth[name], marker="D", ms=5, color=colour, clip_on=truth[name] > height, zorder=5)
    axes.set_xlim(0, total)
    axes.set_ylim(0, height)
    axes.set_xlabel("samples drawn, all arms together")
    axes.set_ylabel("FID")
    title = "debiased FID of every arm (dotted: lower bound; shaded: interval of the chosen one; diamonds: the truth)"
    axes.set_title(title, fontsize=11)
    axes.legend(fontsize=8, ncols=5, frameon=False, loc="upper center")
    axes.spines[["top", "right"]].set_visible(False)


def _allocation(axes: Any, result: SelectionResult, truth: Mapping[str, float], colours: Mapping[str, str]) -> None:
    names = [row["arm"] for row in result.arms]
    axes.bar(range(len(names)), [result.num_samples[name] for name in names], color=[colours[n] for n in names])
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_ylabel("samples drawn")
    axes.set_title("where the budget went (line: true FID)", fontsize=10)
    other = axes.twinx()
    other.plot(range(len(names)), [truth[name] for name in names], "k.-", lw=0.8, ms=5)
    other.set_ylim(bottom=0)
    other.set_ylabel("true FID")
    axes.spines["top"].set_visible(False)
    other.spines["top"].set_visible(False)


def _grid(images: Tensor, rows: int = 6, columns: int = 8) -> Any:
    """Put images side by side with a one-pixel border."""
    padded = np.pad(images[: rows * columns, 0].numpy(), ((0, 0), (1, 1), (1, 1)))
    _, height, width = padded.shape
    return padded.reshape(rows, columns, height, width).transpose(0, 2, 1, 3).reshape(rows * height, columns * width)
