"""The chart drawn by matplotlib, which is imported only when a figure is asked for."""

from __future__ import annotations

import functools
import io
import math
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tm_bandit._arguments import check_path
from tm_bandit._files import atomic_write
from tm_bandit.errors import InputError, printable
from tm_bandit.report.axis import tick_text
from tm_bandit.report.chart import GREY, PALETTE, Chart, Series, make_chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from tm_bandit.report.result import SelectionResult

_INK, _SOFT, _RULE = "#30343b", "#6b7280", "#e6e8eb"
_SCORES = 4.2  # inches of the scores over time, with their titles
_FIXED = 1.7  # inches of the title and the axes above and below the rows
_ROW = 0.2  # inches of a row
_MAX_ROWS = 60  # more would make a picture that no screen shows


class Panels(NamedTuple):
    """The axes of the picture."""

    marks: Axes
    budget: Axes
    scores: Axes


def plot_result(result: SelectionResult, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw how far each arm is behind the best, where the budget went, and the scores over time.

    Args:
        result: what to draw.
        path: image file to write, if any.

    Raises:
        ModuleNotFoundError: if matplotlib is missing.
        InputError: if the file's name has an ending that matplotlib does not know.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("Plots need matplotlib; install it with: pip install matplotlib") from error

    chart = make_chart(result)
    # Figure without pyplot, which would keep it and show it a second time; so a notebook must be told how to show it.
    figure = Figure(figsize=(10.5, chart_inches(chart)), layout="constrained")
    figure._repr_png_ = functools.partial(_png, figure)  # type: ignore[attr-defined]
    draw(figure, chart)
    if path is not None:
        known = figure.canvas.get_supported_filetypes()
        if Path(check_path("path", path)).suffix.lower()[1:] not in known:
            raise InputError(f"Expected a file name that ends in one of {', '.join(sorted(known))}, but got {path}.")
        with atomic_write(path) as scratch:
            figure.savefig(scratch, dpi=150)
    return figure


def chart_inches(chart: Chart) -> float:
    """Return how high a figure must be for the names of all arms to be readable."""
    return _SCORES + _FIXED + _ROW * max(2, min(_MAX_ROWS, len(chart.series)))


def draw(figure: Figure | SubFigure, chart: Chart) -> Panels:
    """Draw all panels and return their axes.

    Args:
        figure: where; about as high as :func:`chart_inches`.
        chart: what to draw.
    """
    # Separate, so that long names beside one do not squeeze the other.
    parts: Any = figure.subfigures(2, 1, height_ratios=(chart_inches(chart) - _SCORES, _SCORES))
    marks, budget = parts[0].subplots(1, 2, sharey=True, width_ratios=(3, 2))
    panels = Panels(marks, budget, parts[1].subplots())
    shown = chart.series[:_MAX_ROWS]
    _draw_marks(panels.marks, chart, shown)
    _draw_budget(panels.budget, chart, shown)
    _draw_scores(panels.scores, chart)
    title = textwrap.fill(_plain(chart.title), 80, break_on_hyphens=False)
    parts[0].suptitle(title, x=0.01, ha="left", fontsize=12, color=_INK, fontweight="bold")
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK)
        axes.set_axisbelow(True)
    return panels


def colour_of(arm: Series) -> str:
    """Return an arm's colour."""
    return GREY if arm.colour is None else PALETTE[arm.colour]


def _draw_scores(axes: Axes, chart: Chart) -> None:
    _samples_axis(axes, chart)
    axes.set_ylim(chart.low, chart.high)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # a common factor would overlap the note
    for rank, arm in reversed(list(enumerate(chart.series))):
        colour, first = colour_of(arm), rank == 0
        if not arm.x:
            continue
        if first:
            x, lower, upper = (side[arm.band :] for side in (arm.x, arm.lower, arm.upper))
            axes.fill_between(x, lower, upper, step="post", color=colour, alpha=0.16, lw=0)
        if rank < 2:
            for ends, style in zip(chart.ends(arm), ((0, (4, 2)), (0, (1, 2))), strict=True):
                axes.step(arm.x, ends, where="post", color=colour, lw=0.9, ls=style, alpha=0.7)
        width = 2.4 if first else 1.0 if arm.colour is None else 1.4
        axes.step(arm.x, arm.centre, where="post", color=colour, lw=width)
    for arm, place in chart.labels(gap=15 / (72 * _SCORES)):  # a line of text in three quarters of that height
        colour, weight = colour_of(arm), "bold" if arm is chart.series[0] else "normal"
        y = chart.height(arm.centre[-1])
        axes.plot((1.0, 1.015), (y, place), color=colour, lw=0.8, transform=axes.transAxes, clip_on=False)
        name = axes.text(1.02, place, _plain(arm.label), va="center", color=colour, transform=axes.transAxes)
        name.set(fontsize=9, fontweight=weight)
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.set_ylabel(_plain(chart.unit), color=_INK)
    _head(axes, "Scores over time", chart.note, 120)


def _draw_marks(axes: Axes, chart: Chart, shown: Sequence[Series]) -> None:
    axis = chart.marks
    if math.isfinite(axis.knee):
        axes.set_xscale("asinh", linear_width=axis.knee)
    axes.set_xlim(axis.low, axis.high)
    axes.set_xticks(axis.ticks(), [tick_text(tick) for tick in axis.ticks()])
    axes.minorticks_off()
    axes.grid(axis="x", color=_RULE, linewidth=0.8)
    axes.axvline(0.0, color=_SOFT, lw=0.8)
    for at, arm in enumerate(shown):
        value, lower, upper, solid = arm.mark
        colour = colour_of(arm)
        if not math.isfinite(value):
            continue
        if not math.isnan(lower) and not math.isnan(upper):
            axes.plot((max(lower, axis.low), min(upper, axis.high)), (at, at), color=colour, lw=1.4)
            for end, outside, arrow in ((lower, lower < axis.low, 4), (upper, upper > axis.high, 5)):
                place = min(max(end, axis.low), axis.high)
                axes.plot(place, at, marker=arrow if outside else "|", ms=5, color=colour, clip_on=False)
        axes.plot(value, at, "o", ms=5.5, color=colour, mfc=colour if solid else "white", clip_on=False)
    axes.set_ylim(max(1, len(shown)) - 0.5, -0.5)
    axes.set_yticks(range(len(shown)), [_plain(arm.label) for arm in shown], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(_plain(chart.marks_unit), color=_INK)
    _head(axes, "How the arms compare", chart.marks_note, 75)


def _draw_budget(axes: Axes, chart: Chart, shown: Sequence[Series]) -> None:
    for at, arm in enumerate(shown):
        colour = colour_of(arm)
        axes.axhspan(at - 0.35, at + 0.35, color="#f0f1f3", lw=0)
        cells = [(start * chart.total, width * chart.total) for start, width, _ in arm.cells()]
        axes.broken_barh(cells, (at - 0.35, 0.7), facecolors=[(colour, strong) for _, _, strong in arm.cells()], lw=0)
        share = axes.text(1.02, at, f"{arm.share:.1%}", va="center", color=_INK, transform=axes.get_yaxis_transform())
        share.set_fontsize(8)
    _samples_axis(axes, chart)
    axes.tick_params(axis="y", length=0, labelleft=False)
    left_out = f"the first {len(shown)} of {len(chart.series)} arms; " if len(shown) < len(chart.series) else ""
    _head(axes, "Where the budget went", f"{left_out}darker where an arm got more of the samples", 60)


def _samples_axis(axes: Axes, chart: Chart) -> None:
    axes.set_xlim(0, max(1, chart.total))
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("samples drawn", color=_INK)


def _head(axes: Axes, title: str, note: str, letters: int) -> None:
    """Write a title, and below it a note with this many letters per line."""
    note = textwrap.fill(note, letters)
    axes.set_title(title, loc="left", fontsize=10, color=_INK, pad=10 + 10 * len(note.splitlines()))
    axes.annotate(note, (0, 1), (0, 6), "axes fraction", textcoords="offset points", fontsize=8, color=_SOFT)


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _plain(name: str) -> str:
    """Return a name that matplotlib shows as it is: text between dollars would be read as mathematics."""
    return printable(name).replace("$", r"\$")
