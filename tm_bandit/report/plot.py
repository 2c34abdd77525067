"""The picture of a selection: what was known about each arm as the budget went, and where it went."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from tm_bandit._files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tm_bandit.report.result import SelectionResult

#: Okabe-Ito colours, which stay apart for colour-blind readers; the best arm always has the first.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31")
_GREY = "#9AA0A6"
_INK = "#30343B"


def plot_result(result: SelectionResult, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw each arm's interval over the budget, and below it the share of the budget that each arm got.

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

    figure = Figure(figsize=(9.5, 6.2), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1.0))
    colours = _colours(result)
    _draw_intervals(top, result, colours)
    _draw_allocation(bottom, result, colours)
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK)
        axes.grid(axis="y", color="#E6E8EB", linewidth=0.8)
        axes.set_axisbelow(True)
    if path is not None:
        with atomic_write(path) as scratch:
            figure.savefig(scratch, dpi=150)
    return figure


def _colours(result: SelectionResult) -> dict[str, str]:
    names = [row["arm"] for row in result.table()]
    return {name: _COLOURS[i] if i < len(_COLOURS) else _GREY for i, name in enumerate(names)}


def _draw_intervals(axes: Axes, result: SelectionResult, colours: dict[str, str]) -> None:
    """Draw the best arm's interval as a band, and both ends of the rivals' as lines, the optimistic one stronger."""
    total = result.total_samples
    hopeful, doubtful = ("upper", "lower") if result.higher_is_better else ("lower", "upper")
    ends: list[tuple[float, str]] = []
    shown: list[float] = []
    for name in reversed(list(colours)):
        curve = _curve(result, name)
        if not curve["samples"]:
            continue
        x, colour, first = curve["samples"], colours[name], name == result.best
        if first:
            axes.fill_between(x, curve["lower"], curve["upper"], step="post", color=colour, alpha=0.16, lw=0)
            shown += [value for value in curve["upper"][len(x) // 4 :] if math.isfinite(value)]
        else:
            axes.step(x, curve[hopeful], where="post", color=colour, lw=1.0, ls=(0, (3, 2)), alpha=0.7)
            axes.step(x, curve[doubtful], where="post", color=colour, lw=0.9, ls=(0, (1, 3)), alpha=0.6)
        axes.step(x, curve["debiased"], where="post", color=colour, lw=2.4 if first else 1.4, zorder=4 if first else 3)
        ends.append((curve["debiased"][-1], name))
    _fit_scale(axes, [value for value, _ in ends], shown, result)
    _label_ends(axes, ends, total, colours, result)
    name = result.metric.removeprefix("Optimistic")
    axes.set_ylabel(f"{name} ({'higher' if result.higher_is_better else 'lower'} is better)", color=_INK)
    axes.set_title(_title(result), loc="left", fontsize=12, color=_INK, fontweight="bold")
    note = "band: interval of the best arm; dashed and dotted: ends of the others'"
    axes.set_title(note, loc="right", fontsize=8, color="#6B7280")


def _curve(result: SelectionResult, name: str) -> dict[str, list[float]]:
    """Return an arm's numbers over the samples drawn, its last ones continued to the end."""
    history = result.history
    rows = [i for i, arm in enumerate(history["arm"]) if arm == name and math.isfinite(history["debiased"][i])]
    curve = {key: [float(history[key][i]) for i in rows] for key in ("samples", "debiased", "lower", "upper")}
    for key, values in curve.items():
        if values:
            values.append(float(result.total_samples) if key == "samples" else values[-1])
    return curve


def _title(result: SelectionResult) -> str:
    words = {"won": "is the best (certified)", "likely": "is likely the best", "tie": "ties with others"}
    outcome = "is the only arm" if result.unrivalled else words.get(result.status, "is recommended")
    return f"{_plain(str(result.best))} {outcome} after {result.total_samples:,} samples"


def _plain(name: str) -> str:
    """Return a name so that matplotlib shows it as it is: between dollars it would read mathematics."""
    return name.replace("$", r"\$")


def _fit_scale(axes: Axes, finals: list[float], shown: list[float], result: SelectionResult) -> None:
    """Keep the first, very wide intervals from flattening everything that matters."""
    axes.set_xlim(0, max(1, result.total_samples))
    if not finals:
        return
    low, high = min(finals), max(finals)
    span = max(high - low, 0.25 * abs(high), 1e-9)
    top = max(high, min(max(shown, default=high), high + span))
    floor = 1.0 if result.higher_is_better else 0.0
    bottom = floor if floor <= low < floor + span else low - 0.5 * span
    axes.set_ylim(bottom, top + 0.2 * span)


def _label_ends(
    axes: Axes, ends: list[tuple[float, str]], total: int, colours: dict[str, str], result: SelectionResult
) -> None:
    """Write the names beside the last values, pushed apart so that they do not overlap."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.055
    place = -math.inf
    for value, name in sorted(ends)[: 3 * len(_COLOURS)]:
        place = max(value, place + gap)
        axes.annotate(
            f" {_plain(name)}",
            (total, value),
            (total * 1.01, place),
            annotation_clip=False,
            va="center",
            fontsize=9,
            color=colours[name],
            fontweight="bold" if name == result.best else "normal",
        )


def _draw_allocation(axes: Axes, result: SelectionResult, colours: dict[str, str]) -> None:
    bins = min(60, max(1, len(result.history["arm"])))
    edges = [result.total_samples * i / bins for i in range(bins + 1)]
    counts: dict[str, list[float]] = {name: [0.0] * bins for name in colours}
    samples: list[Any] = result.history["samples"]
    for end, name in zip(samples, result.history["arm"], strict=True):
        place = min(bins - 1, int((end - 1e-9) * bins / max(1, result.total_samples)))
        counts[name][place] += 1.0
    totals = [max(1.0, sum(column[i] for column in counts.values())) for i in range(bins)]
    base = [0.0] * bins
    for name, colour in colours.items():
        share = [100.0 * count / total for count, total in zip(counts[name], totals, strict=True)]
        top = [b + s for b, s in zip(base, share, strict=True)]
        axes.stairs(top, edges, baseline=base, fill=True, color=colour, alpha=0.85 if name == result.best else 0.55)
        base = top
    axes.set_ylim(0, 100)
    axes.set_ylabel("share of pulls (%)", color=_INK)
    axes.set_xlabel("samples drawn", color=_INK)
