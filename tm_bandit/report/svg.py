"""Charts as SVG text: no plotting library, no script, colours left to the style sheet of the page around them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

_WIDTH = 960
_LEFT, _RIGHT = 64, 176
_PLOT = _WIDTH - _LEFT - _RIGHT
_MAX_POINTS = 400  # per arm; more could not be told apart at this width


class Series(NamedTuple):
    """One arm over the run: its centre and interval after each of its pulls.

    Args:
        name: the arm's name.
        style: the class that gives it its colour.
        x: samples that all arms had drawn by then.
        centre: the score.
        lower: one end of its interval; may be infinite.
        upper: the other end; may be infinite.
    """

    name: str
    style: str
    x: Sequence[float]
    centre: Sequence[float]
    lower: Sequence[float]
    upper: Sequence[float]


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


def visible_range(series: Sequence[Series]) -> tuple[float, float]:
    """Return the part of the y axis worth showing.

    All scores are inside, and the final intervals as far as that leaves the scores readable: a bound that is a hundred
    times wider than the differences between the arms would flatten everything to one line.

    Args:
        series: the arms.
    """
    # An arm's first few scores come from a handful of samples and may be far off; its later half is what counts.
    settled = [value for arm in series for value in arm.centre[len(arm.centre) // 2 :] if math.isfinite(value)]
    if not settled:
        return 0.0, 1.0
    low, high = min(settled), max(settled)
    span = 0.6 * max(high - low, 0.5 * max(abs(low), abs(high)), 1e-9)
    ends = [arm.lower[-1] for arm in series if arm.lower] + [arm.upper[-1] for arm in series if arm.upper]
    finite = [end for end in ends if math.isfinite(end)]
    low = max(min([low, *finite]), low - span)
    high = min(max([high, *finite]), high + span)
    pad = 0.06 * (high - low) or span
    return low - pad, high + pad


def interval_chart(series: Sequence[Series], total: float, label: str, height: int = 380) -> str:
    """Draw each arm's score with its interval against the samples drawn.

    Args:
        series: the arms, the most important one first; it is drawn on top.
        total: the end of the x axis.
        label: what the y axis shows.
        height: pixels.
    """
    top, bottom = 14, height - 44
    low, high = visible_range(series)

    def at_y(value: float) -> float:
        inside = min(max(value, low), high)
        return bottom - (inside - low) / (high - low) * (bottom - top)

    marks = [_axis_x(total, top, bottom)]
    for tick in nice_ticks(low, high):
        marks.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{at_y(tick):.1f}" y2="{at_y(tick):.1f}"/>'
        )
        marks.append(f'<text class="tick" x="{_LEFT - 8}" y="{at_y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    middle = (top + bottom) / 2
    marks.append(
        f'<text class="axis" transform="translate(15 {middle}) rotate(-90)" text-anchor="middle">{escape(label)}</text>'
    )
    ends: list[tuple[float, Series]] = []
    for arm in reversed(series):
        thin = _thinned(arm)
        if not thin.x:
            continue
        xs = [_at_x(x, total) for x in thin.x] + [float(_LEFT + _PLOT)]
        # Before both bounds are finite next to nothing is known: no band is clearer than one up to the frame's edge.
        vague = [math.isinf(one) or math.isinf(two) for one, two in zip(thin.lower, thin.upper, strict=True)]
        start = vague.index(False) if False in vague else len(vague)
        upper = _steps(xs[start:], [at_y(value) for value in thin.upper[start:]])
        lower = _steps(xs[start:], [at_y(value) for value in thin.lower[start:]])
        line = _steps(xs, [at_y(value) for value in thin.centre])
        marks.append(
            f'<g class="arm {arm.style}"><title>{escape(arm.name)}</title>'
            f'<polygon class="band" points="{_points(upper + lower[::-1])}"/>'
            f'<polyline class="line" points="{_points(line)}"/></g>'
        )
        ends.append((line[-1][1], arm))
    marks += _end_labels(ends, short_names([arm.name for arm in series]), top, bottom)
    return _svg(height, f"Score and confidence interval of each arm while the samples are drawn ({label})", marks)


def allocation_chart(
    names: Sequence[str], styles: Sequence[str], bins: Sequence[Sequence[float]], total: float, figures: Sequence[str]
) -> str:
    """Draw when each arm was sampled: one row per arm, darker where it got more of the samples.

    Args:
        names: the arms.
        styles: the class that gives each its colour.
        bins: for each arm, its share of the samples in each of equally long stretches of the run.
        total: samples that were drawn.
        figures: the number at the left of each row.
    """
    row, top = 26, 6
    short = short_names(names)
    bottom = top + row * len(names)
    marks = [_axis_x(total, top, bottom)]
    for at, (name, style, shares, figure) in enumerate(zip(names, styles, bins, figures, strict=True)):
        y = top + row * at
        width = _PLOT / max(1, len(shares))
        cells = "".join(
            f'<rect x="{_LEFT + index * width:.2f}" y="{y + 4}" width="{width + 0.3:.2f}" height="{row - 8}" '
            f'fill-opacity="{0.12 + 0.88 * share:.2f}"/>'
            for index, share in enumerate(shares)
            if share > 0
        )
        marks.append(f'<g class="arm {style}"><title>{escape(name)}: {escape(figure)}</title>')
        marks.append(f'<rect class="track" x="{_LEFT}" y="{y + 4}" width="{_PLOT}" height="{row - 8}"/>')
        marks.append(f'<g class="fill">{cells}</g>')
        marks.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 17}" text-anchor="end">{escape(figure)}</text>')
        marks.append(f'<text class="label" x="{_LEFT + _PLOT + 10}" y="{y + 17}">{escape(short[name])}</text></g>')
    return _svg(bottom + 44, "Which arm the samples were drawn from, over the run", marks)


def _svg(height: int, title: str, marks: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}" class="chart">'
    return "\n".join([head, *marks, "</svg>"])


def _axis_x(total: float, top: int, bottom: int) -> str:
    marks = [f'<line class="base" x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{bottom}" y2="{bottom}"/>']
    for tick in nice_ticks(0.0, total, 6):
        x = _at_x(tick, total)
        marks.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{tick:,.0f}</text>')
    centre = _LEFT + _PLOT / 2
    marks.append(f'<text class="axis" x="{centre}" y="{bottom + 36}" text-anchor="middle">samples drawn</text>')
    return "\n".join(marks)


def _at_x(value: float, total: float) -> float:
    return _LEFT + (value / total if total > 0 else 0.0) * _PLOT


def _thinned(arm: Series) -> Series:
    """Drop what has no score, and points that could not be told apart; the last one always stays."""
    keep = [index for index, value in enumerate(arm.centre) if math.isfinite(value)]
    stride = max(1, math.ceil(len(keep) / _MAX_POINTS))
    keep = sorted({*keep[::stride], *keep[-1:]})

    def side(values: Sequence[float], nothing: float) -> list[float]:
        return [nothing if math.isnan(values[index]) else values[index] for index in keep]

    return arm._replace(
        x=[arm.x[index] for index in keep],
        centre=[arm.centre[index] for index in keep],
        lower=side(arm.lower, -math.inf),
        upper=side(arm.upper, math.inf),
    )


def _steps(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """Hold each value until the next pull of the arm: nothing was learned about it in between."""
    corners = []
    for index, y in enumerate(ys):
        corners += [(xs[index], y), (xs[index + 1], y)]
    return corners


def _points(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _end_labels(ends: Sequence[tuple[float, Series]], short: Mapping[str, str], top: int, bottom: int) -> list[str]:
    """Name the coloured arms at the end of their lines, moved apart where they would overlap."""
    labelled = sorted((item for item in ends if item[1].style != "other"), key=lambda item: item[0])
    gap = 15.0
    ys: list[float] = []
    for y, _ in labelled:
        ys.append(max(y, ys[-1] + gap) if ys else max(y, top + 4.0))
    overflow = ys[-1] - bottom if ys else 0.0
    if overflow > 0:  # push the whole pile up from below
        limit = float(bottom)
        for index in range(len(ys) - 1, -1, -1):
            ys[index] = min(ys[index], limit)
            limit = ys[index] - gap
    x = _LEFT + _PLOT
    return [
        f'<g class="arm {arm.style}"><line class="leader" x1="{x}" y1="{y:.1f}" x2="{x + 7}" y2="{at:.1f}"/>'
        f'<text class="label" x="{x + 10}" y="{at + 4:.1f}">{escape(short[arm.name])}</text></g>'
        for (y, arm), at in zip(labelled, ys, strict=True)
    ]


def short_names(names: Sequence[str], length: int = 20) -> dict[str, str]:
    """Cut long names so that they can still be told apart.

    What all names begin and end with goes first; what is still too long loses its middle.

    Args:
        names: the names, without repetition.
        length: the most characters that a name may have.

    Example:
        >>> list(short_names(["run/epoch=10-step=2000.ckpt", "run/epoch=9-step=1800.ckpt"]).values())
        ['…10-step=2000…', '…9-step=1800…']
        >>> list(short_names(["ema", "raw"]).values())
        ['ema', 'raw']
    """
    if len(names) < 2 or all(len(name) <= length for name in names):
        return {name: _short(name, length) for name in names}
    head = _shared(names)
    tail = _shared([name[head:][::-1] for name in names])
    cut = {}
    for name in names:
        middle = name[head : len(name) - tail]
        cut[name] = _short(("…" if head else "") + middle + ("…" if tail else ""), length)
    return cut


def _shared(names: Sequence[str]) -> int:
    """Count the characters that all names begin with, up to the end of a word: numbers must not be cut in two."""
    count = 0
    for at, letters in enumerate(zip(*names, strict=False)):
        if len(set(letters)) > 1:
            break
        if not letters[0].isalnum():
            count = at + 1
    return count


def _short(name: str, length: int) -> str:
    if len(name) <= length:
        return name
    half = (length - 1) // 2
    return f"{name[:half]}…{name[len(name) - (length - 1 - half) :]}"
