"""The chart drawn by matplotlib, which is imported only when a figure is asked for."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

from tm_bandit._files import atomic_write
from tm_bandit.report.chart import GREY, PALETTE, Chart, Series, make_chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from tm_bandit.report.result import SelectionResult

_INK, _SOFT, _RULE = "#30343b", "#6b7280", "#e6e8eb"
_SCORES = 4.2  # inches of the upper panel
_FIXED = 5.4  # inches of the upper panel, the titles and the axes
_ROW = 0.2  # inches of a row of the lower panel
_MAX_ROWS = 60  # more would make a picture that no screen shows


def plot_result(result: SelectionResult, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw each arm's interval over the budget, and below it where the budget went.

    Args:
        result: what to draw.
        path: image file to write, if any.

    Raises:
        ModuleNotFoundError: if matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("Plots need matplotlib; install it with: pip install matplotlib") from error

    chart = make_chart(result)
    figure = Figure(figsize=(9.5, chart_inches(chart)), layout="constrained")
    draw(figure, chart)
    if path is not None:
        with atomic_write(path) as scratch:
            figure.savefig(scratch, dpi=150)
    return figure


def chart_inches(chart: Chart) -> float:
    """Return how high a figure must be for the names of all arms to be read."""
    return _FIXED + _ROW * max(2, min(_MAX_ROWS, len(chart.series)))


def draw(figure: Figure | SubFigure, chart: Chart) -> tuple[Axes, Axes]:
    """Draw both panels and return their axes.

    Args:
        figure: where; about as high as :func:`chart_inches`.
        chart: what to draw.
    """
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(_SCORES, chart_inches(chart) - _FIXED))
    _draw_scores(top, chart)
    _draw_allocation(bottom, chart)
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK)
        axes.set_axisbelow(True)
    return top, bottom


def colour_of(arm: Series) -> str:
    """Return an arm's colour."""
    return GREY if arm.colour is None else PALETTE[arm.colour]


def _draw_scores(axes: Axes, chart: Chart) -> None:
    axes.set_xlim(0, max(1, chart.total))
    axes.set_ylim(chart.low, chart.high)
    for rank, arm in reversed(list(enumerate(chart.series))):
        colour, first = colour_of(arm), rank == 0
        if not arm.x:
            continue
        if first:
            x, lower, upper = (side[arm.band :] for side in (arm.x, arm.lower, arm.upper))
            axes.fill_between(x, lower, upper, step="post", color=colour, alpha=0.16, lw=0)
        if arm.colour is not None:
            for ends, style in zip(chart.ends(arm), ((0, (4, 2)), (0, (1, 2))), strict=True):
                axes.step(arm.x, ends, where="post", color=colour, lw=0.9, ls=style, alpha=0.7)
        width = 2.4 if first else 1.0 if arm.colour is None else 1.4
        axes.step(arm.x, arm.centre, where="post", color=colour, lw=width)
    for arm, place in chart.labels(gap=11 / (72 * _SCORES)):  # a line of text
        colour, weight = colour_of(arm), "bold" if arm is chart.series[0] else "normal"
        y = chart.height(arm.centre[-1])
        axes.plot((1.0, 1.015), (y, place), color=colour, lw=0.8, transform=axes.transAxes, clip_on=False)
        name = axes.text(1.02, place, _plain(arm.label), va="center", color=colour, transform=axes.transAxes)
        name.set(fontsize=9, fontweight=weight)
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.set_ylabel(chart.unit, color=_INK)
    note = textwrap.fill(chart.note, 110)
    title = textwrap.fill(_plain(chart.title), 75)
    axes.set_title(title, loc="left", fontsize=12, color=_INK, fontweight="bold", pad=12 + 10 * len(note.splitlines()))
    axes.annotate(note, (0, 1), (0, 6), "axes fraction", textcoords="offset points", fontsize=8, color=_SOFT)


def _draw_allocation(axes: Axes, chart: Chart) -> None:
    shown = chart.series[:_MAX_ROWS]
    for at, arm in enumerate(shown):
        colour = colour_of(arm)
        axes.axhspan(at - 0.35, at + 0.35, color="#f0f1f3", lw=0)
        cells = [(start * chart.total, width * chart.total) for start, width, _ in arm.cells()]
        axes.broken_barh(cells, (at - 0.35, 0.7), facecolors=[(colour, strong) for _, _, strong in arm.cells()], lw=0)
        name = axes.text(1.01, at, _plain(arm.label), va="center", color=colour, transform=axes.get_yaxis_transform())
        name.set_fontsize(8)
    axes.set_ylim(max(1, len(shown)) - 0.5, -0.5)
    axes.set_yticks(range(len(shown)), [f"{arm.share:.1%}" for arm in shown], fontsize=8)
    axes.tick_params(axis="y", length=0)
    left_out = f" (the first {len(shown)} of {len(chart.series)} arms)" if len(shown) < len(chart.series) else ""
    axes.set_title(f"where the budget went{left_out}", loc="left", fontsize=9, color=_INK)
    axes.set_xlabel("samples drawn", color=_INK)


def _plain(name: str) -> str:
    """Return a name so that matplotlib shows it as it is: between dollars it would read mathematics."""
    return name.replace("$", r"\$")
