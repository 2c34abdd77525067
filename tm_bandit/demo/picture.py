"""The demo's picture: the chart of the selection with the truth in it, and samples of the best and the worst arm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tm_bandit.report.chart import make_chart
from tm_bandit.report.plot import chart_inches, colour_of, draw
from tm_bandit.report.result import SelectionResult


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
    from matplotlib.figure import Figure

    chart = make_chart(result)
    chart = chart._replace(note=f"{chart.note}; diamonds: the truth")
    figure = Figure(figsize=(13, chart_inches(chart)), dpi=100, layout="constrained")
    parts: Any = figure.subfigures(1, 2, width_ratios=[3, 1])
    scores, _ = draw(parts[0], chart)
    for arm in chart.series:
        if chart.low <= truth[arm.name] <= chart.high:
            scores.plot(chart.total, truth[arm.name], "D", ms=5, color=colour_of(arm), clip_on=False, zorder=5)
    for axes, (name, images), title in zip(parts[1].subplots(2, 1), (best, worst), ("chosen", "worst"), strict=True):
        axes.imshow(_grid(images), cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(f"{title}: {name}\ntrue FID {truth[name]:.1f}", fontsize=10)
        axes.set_axis_off()
    figure.savefig(path, metadata={"Software": None})


def _grid(images: Tensor, rows: int = 6, columns: int = 8) -> Any:
    """Put images side by side with a one-pixel border."""
    padded = np.pad(images[: rows * columns, 0].numpy(), ((0, 0), (1, 1), (1, 1)))
    _, height, width = padded.shape
    return padded.reshape(rows, columns, height, width).transpose(0, 2, 1, 3).reshape(rows * height, columns * width)
