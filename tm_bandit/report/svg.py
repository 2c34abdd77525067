"""The chart as SVG text: no plotting library, no script, colours left to the style sheet of the page around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tm_bandit.report.chart import Chart, Series

_WIDTH = 960
_LEFT = 64
_LETTER = 8.0  # pixels of a letter in a wide bold font, so that no font cuts a name


def colour_class(arm: Series) -> str:
    """Return the class that gives an arm its colour."""
    return "other" if arm.colour is None else f"c{arm.colour}"


def scores_svg(chart: Chart, height: int = 380) -> str:
    """Draw each arm's score with its interval against the samples drawn.

    Args:
        chart: what to draw.
        height: pixels.
    """
    top, bottom, right = 14, height - 44, _right(chart)

    def at_y(value: float) -> float:
        return bottom - chart.height(value) * (bottom - top)

    def path(xs: Sequence[float], values: Sequence[float]) -> str:
        """Hold each value until the next pull, for nothing was learned in between; outside the frame is a gap."""
        steps = [""]
        for at, value in enumerate(values[:-1]):
            step = f"{'L' if steps[-1] else 'M'}{xs[at]:.1f},{at_y(value):.1f}H{xs[at + 1]:.1f}"
            steps.append(step if chart.low <= value <= chart.high else "")
        return "".join(steps)

    marks = [_axis_x(chart, bottom)]
    for tick in nice_ticks(chart.low, chart.high):
        y = at_y(tick)
        marks.append(f'<line class="grid" x1="{_LEFT}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    middle = f'transform="translate(15 {(top + bottom) / 2}) rotate(-90)" text-anchor="middle"'
    marks.append(f'<text class="axis" {middle}>{escape(chart.unit)}</text>')
    for arm in reversed(chart.series):  # the best one on top
        if not arm.x:
            continue
        marks.append(f'<g class="arm {colour_class(arm)}"><title>{escape(arm.name)}</title>')
        xs = [_LEFT + x / max(1, chart.total) * (right - _LEFT) for x in arm.x]
        if arm is chart.series[0]:
            sides = [arm.upper[arm.band :], arm.lower[arm.band :]]
            upper, lower = (_corners(xs[arm.band :], [at_y(end) for end in side]) for side in sides)
            marks.append(f'<polygon class="band" points="{" ".join(upper + lower[::-1])}"/>')
        if arm.colour is not None:
            for name, ends in zip(("hopeful", "doubtful"), chart.ends(arm), strict=True):
                marks.append(f'<path class="end {name}" d="{path(xs, ends)}"/>')
        marks.append(f'<path class="line" d="{path(xs, arm.centre)}"/></g>')
    for arm, place in chart.labels(15 / (bottom - top)):
        y, at = at_y(arm.centre[-1]), bottom - place * (bottom - top)
        leader = f'<line class="leader" x1="{right:.1f}" y1="{y:.1f}" x2="{right + 7:.1f}" y2="{at:.1f}"/>'
        label = f'<text class="label" x="{right + 10:.1f}" y="{at + 4:.1f}">{escape(arm.label)}</text>'
        marks.append(f'<g class="arm {colour_class(arm)}">{leader}{label}</g>')
    return _svg(height, f"Score and interval of each arm while the samples are drawn: {chart.unit}", marks)


def allocation_svg(chart: Chart) -> str:
    """Draw when each arm was sampled: one row per arm, stronger where it got more of the samples.

    Args:
        chart: what to draw.
    """
    row, top, right = 26, 6, _right(chart)
    bottom = top + row * len(chart.series)
    marks = [_axis_x(chart, bottom)]
    for at, arm in enumerate(chart.series):
        y = top + row * at
        cells = "".join(
            f'<rect x="{_LEFT + start * (right - _LEFT):.2f}" y="{y + 4}" width="{width * (right - _LEFT):.2f}" '
            f'height="{row - 8}" fill-opacity="{strong:.2f}"/>'
            for start, width, strong in arm.cells()
        )
        marks += [
            f'<g class="arm {colour_class(arm)}"><title>{escape(arm.name)}: {arm.share:.1%}</title>',
            f'<rect class="track" x="{_LEFT}" y="{y + 4}" width="{right - _LEFT:.1f}" height="{row - 8}"/>',
            f'<g class="fill">{cells}</g>',
            f'<text class="tick" x="{_LEFT - 8}" y="{y + 17}" text-anchor="end">{arm.share:.1%}</text>',
            f'<text class="label" x="{right + 10:.1f}" y="{y + 17}">{escape(arm.label)}</text></g>',
        ]
    return _svg(bottom + 44, "Which arm the samples were drawn from, over the run", marks)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers that cover an interval.

    Example:
        >>> nice_ticks(0.0, 9.3)
        [0.0, 2.0, 4.0, 6.0, 8.0]
        >>> nice_ticks(3.1, 3.1)
        [3.1]
    """
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


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
