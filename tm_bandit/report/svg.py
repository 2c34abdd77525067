"""The chart as SVG text: no plotting library, no script, colours left to the style sheet of the page around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from tm_bandit.report.axis import nice_ticks, tick_text
from tm_bandit.report.chart import Chart, Series

_WIDTH = 960  # pixels of the drawing, which a page scales to its own width
_HEIGHT = 380  # pixels of the scores over time
_LEFT = 64  # pixels of the numbers beside an axis
_ROW, _CLOSE_ROW = 22, 16  # pixels of a row; the letters are 12 high
_MANY = 30  # arms from which on rows are closer: a chart with 50 still fits on a screen, and below the verdict in print
_LETTER = 7.5  # pixels of a letter in a wide bold font, so that no font cuts a name


def colour_class(arm: Series) -> str:
    """Return the class that gives an arm its colour."""
    return "other" if arm.colour is None else f"c{arm.colour}"


def scores_svg(chart: Chart) -> str:
    """Draw each arm's score with its interval against the samples drawn.

    Args:
        chart: what to draw.
    """
    top, bottom, right = 14, _HEIGHT - 44, _right(chart)

    def at_y(value: float) -> float:
        return bottom - chart.height(value) * (bottom - top)

    def path(xs: Sequence[float], values: Sequence[float]) -> str:
        """Hold each value until the next pull, as nothing was learned in between; outside the frame is a gap.

        The line runs to the edge on either side of it: if it ended in mid-air, the score would seem to be unknown.
        """
        steps, drawn = [], False
        for at, value in enumerate(values[:-1]):
            here, inside = f"{xs[at]:.1f},{at_y(value):.1f}", chart.low <= value <= chart.high
            if drawn:
                steps.append(f"L{here}")
            elif inside:
                steps.append(f"M{xs[at]:.1f},{at_y(values[at - 1]):.1f}L{here}" if at else f"M{here}")
            if inside:
                steps.append(f"H{xs[at + 1]:.1f}")
            drawn = inside
        return "".join(steps)

    marks = [_axis_x(chart, bottom)]
    for tick in nice_ticks(chart.low, chart.high):
        y = at_y(tick)
        marks.append(f'<line class="grid" x1="{_LEFT}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick_text(tick)}</text>')
    middle = f'transform="translate(15 {(top + bottom) / 2}) rotate(-90)" text-anchor="middle"'
    marks.append(f'<text class="axis" {middle}>{escape(chart.unit)}</text>')
    for arm in reversed(chart.series):  # the best one on top
        if not arm.x:
            continue
        marks.append(f'<g class="arm {colour_class(arm)}"><title>{escape(arm.detail)}</title>')
        xs = [_LEFT + x / max(1, chart.total) * (right - _LEFT) for x in arm.x]
        if arm is chart.series[0]:
            sides = [arm.upper[arm.band :], arm.lower[arm.band :]]
            upper, lower = (_corners(xs[arm.band :], [at_y(end) for end in side]) for side in sides)
            marks.append(f'<polygon class="band" points="{" ".join(upper + lower[::-1])}"/>')
        if arm in chart.series[:2]:
            for name, ends in zip(("hopeful", "doubtful"), chart.ends(arm), strict=True):
                marks.append(f'<path class="end {name}" d="{path(xs, ends)}"/>')
        marks.append(f'<path class="line" d="{path(xs, arm.centre)}"/></g>')
    for arm, place in chart.labels(15 / (bottom - top)):
        y, at = at_y(arm.centre[-1]), bottom - place * (bottom - top)
        leader = f'<line class="leader" x1="{right:.1f}" y1="{y:.1f}" x2="{right + 7:.1f}" y2="{at:.1f}"/>'
        label = f'<text class="label" x="{right + 10:.1f}" y="{at + 4:.1f}">{escape(arm.label)}</text>'
        marks.append(f'<g class="arm {colour_class(arm)}">{leader}{label}</g>')
    return _svg(_HEIGHT, f"Score and interval of each arm while the samples are drawn: {chart.unit}", marks)


def arms_svg(chart: Chart) -> str:
    """Draw a row per arm: its name, its dot and interval, when it was sampled, and its part of the samples.

    Args:
        chart: what to draw.
    """
    row, top = _CLOSE_ROW if len(chart.series) > _MANY else _ROW, 46
    half = row // 3  # of the height of a bar
    bottom = top + row * len(chart.series)
    left = 20 + _LETTER * max((len(arm.label) for arm in chart.series), default=0)
    right = left + (_WIDTH - left) * 0.58
    start, end = right + 24, _WIDTH - 58

    def at_x(value: float) -> float:
        return left + chart.marks.place(value) * (right - left)

    heads = (((left + right) / 2, chart.marks_unit), ((start + end) / 2, "samples drawn"))
    marks = [f'<text class="axis" x="{x:.1f}" y="14" text-anchor="middle">{escape(text)}</text>' for x, text in heads]
    for tick in chart.marks.ticks():
        kind = "zero" if tick == 0 else "grid"
        x = at_x(tick)
        marks.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 4}" y2="{bottom + 4}"/>')
        ends = (top - 10, bottom + 17)
        marks += [f'<text class="tick" x="{x:.1f}" y="{y}" text-anchor="middle">{tick_text(tick)}</text>' for y in ends]
    for tick in nice_ticks(0.0, chart.total, 3):
        x = start + tick / max(1, chart.total) * (end - start)
        marks.append(f'<text class="tick" x="{x:.1f}" y="{top - 10}" text-anchor="middle">{tick_text(tick)}</text>')
    for at, arm in enumerate(chart.series):
        y = top + row * at + row // 2
        cells = "".join(
            f'<rect x="{start + begin * (end - start):.1f}" y="{y - half}" width="{width * (end - start):.1f}" '
            f'height="{2 * half}" fill-opacity="{strong:.2f}"/>'
            for begin, width, strong in arm.cells()
        )
        marks += [
            f'<g class="arm {colour_class(arm)}"><title>{escape(arm.detail)}</title>',
            f'<rect class="hit" x="0" y="{y - row // 2}" width="{_WIDTH}" height="{row}"/>',
            f'<text class="label" x="{left - 10:.1f}" y="{y + 4}" text-anchor="end">{escape(arm.label)}</text>',
            _dot(arm, chart, y, at_x),
            f'<rect class="track" x="{start:.1f}" y="{y - half}" width="{end - start:.1f}" height="{2 * half}"/>',
            f'<g class="fill">{cells}</g>',
            f'<text class="tick" x="{_WIDTH - 4}" y="{y + 4}" text-anchor="end">{arm.share:.1%}</text></g>',
        ]
    return _svg(bottom + 26, f"Each arm: {chart.marks_unit}, and when it was sampled", marks)


def _dot(arm: Series, chart: Chart, y: int, at_x: Callable[[float], float]) -> str:
    """Return an arm's dot on its interval; an end outside the axis is an arrow."""
    value, lower, upper, solid = arm.mark
    if not math.isfinite(value):
        return ""
    marks = []
    if not math.isnan(lower) and not math.isnan(upper):
        marks.append(f'<line class="span" x1="{at_x(lower):.1f}" x2="{at_x(upper):.1f}" y1="{y}" y2="{y}"/>')
        for end, outside, way in ((lower, lower < chart.marks.low, 5), (upper, upper > chart.marks.high, -5)):
            x = at_x(end)
            arrow = f"M{x + way:.1f},{y - 4}L{x:.1f},{y}L{x + way:.1f},{y + 4}"
            marks.append(f'<path class="span" d="{arrow if outside else f"M{x:.1f},{y - 4}V{y + 4}"}"/>')
    marks.append(f'<circle class="{"dot" if solid else "ring"}" cx="{at_x(value):.1f}" cy="{y}" r="4.5"/>')
    return "".join(marks)


def _right(chart: Chart) -> float:
    """Return where the plot ends: the names beside it get the room that the longest of them needs."""
    return _WIDTH - 22 - _LETTER * max((len(arm.label) for arm in chart.series), default=0)


def _axis_x(chart: Chart, bottom: int) -> str:
    right = _right(chart)
    marks = [f'<line class="base" x1="{_LEFT}" x2="{right:.1f}" y1="{bottom}" y2="{bottom}"/>']
    for tick in nice_ticks(0.0, chart.total, 6):
        x = _LEFT + tick / max(1, chart.total) * (right - _LEFT)
        marks.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{tick:,.0f}</text>')
    centre = (_LEFT + right) / 2
    marks.append(f'<text class="axis" x="{centre:.1f}" y="{bottom + 36}" text-anchor="middle">samples drawn</text>')
    return "\n".join(marks)


def _corners(xs: Sequence[float], ys: Sequence[float]) -> list[str]:
    return [f"{x:.1f},{ys[at]:.1f}" for at in range(len(xs) - 1) for x in xs[at : at + 2]]


def _svg(height: int, title: str, marks: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}" class="chart">'
    return "\n".join([head, *marks, "</svg>"])
