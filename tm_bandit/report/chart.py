"""The picture of a selection, described once: the renderers in ``svg.py`` and ``plot.py`` only draw it.

First comes one row per arm, the best on top: a dot and an interval for how far it is behind the best, and where the
budget went, stronger where the arm got more of the samples. Below are the scores over time, with their intervals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from tm_bandit.report.axis import Axis
from tm_bandit.report.result import SelectionResult, central_score, number, with_interval

#: The colours of the best arm and its closest rivals: Okabe and Ito's, which colour-blind readers can tell apart. More
#: hues could not be told apart, so further arms are grey.
PALETTE = ("#0072b2", "#d97f00", "#009e73", "#c2558f", "#c8452d", "#3a9fd6", "#7a5fb5")
GREY = "#a5abb4"

_LABEL = 48  # characters of the longest name that is shown in full: they take 40 % of the width
_MAX_POINTS = 400  # per arm; more could not be told apart on a screen
_MAX_STRETCHES = 60  # of the run, for each of which an arm's share is shown; more would be too narrow to see
_SHORT = 5  # points of an arm that are all shown: four pulls and the end of the run
_NEAR = 20  # an axis that reaches this many times farther than the near values is better logarithmic


class Mark(NamedTuple):
    """An arm's dot and interval.

    Args:
        value: where the dot is; ``nan`` if there is none.
        lower: one end of the interval; may be infinite, and is ``nan`` if there is none.
        upper: the other end.
        solid: whether it is decided that the arm is the best or worse.
    """

    value: float = math.nan
    lower: float = math.nan
    upper: float = math.nan
    solid: bool = True


class Series(NamedTuple):
    """One arm in all panels.

    Args:
        name: the arm's name.
        label: the name as the picture shows it.
        colour: place in :data:`PALETTE`; ``None`` is grey and not named beside the scores over time.
        share: the arm's part of all samples.
        shares: its part of the samples in equally long stretches of the run.
        x: samples that all arms had drawn at each of its pulls, then the end of the run; empty if it has no line.
        centre: the score from each ``x`` on; the last one is repeated.
        lower: one end of the interval, in the same way; may be infinite.
        upper: the other end.
        band: index from which the interval is filled: only the best arm's is, once it is narrow enough.
        mark: the dot and the interval in the arm's row.
        detail: everything known about the arm, shown on hover.
    """

    name: str
    label: str
    colour: int | None
    share: float
    shares: Sequence[float]
    x: Sequence[float] = ()
    centre: Sequence[float] = ()
    lower: Sequence[float] = ()
    upper: Sequence[float] = ()
    band: int = 0
    mark: Mark = Mark()
    detail: str = ""

    def cells(self) -> list[tuple[float, float, float]]:
        """Return the coloured stretches of the arm's row: start and width as parts of the run, and how strong."""
        width = 1 / max(1, len(self.shares))
        return [(at * width, width, 0.12 + 0.88 * share) for at, share in enumerate(self.shares) if share > 0]


class Chart(NamedTuple):
    """What the picture shows.

    Args:
        title: the outcome in a few words.
        note: how to read the scores over time.
        unit: what their y axis shows.
        higher_is_better: which end of an interval is the optimistic one.
        total: samples drawn, the end of the x axis.
        low: lower end of the y axis.
        high: upper end of the y axis.
        series: the arms, the best first.
        marks: the axis of the dots.
        marks_unit: what it shows.
        marks_note: how to read them.
        relative: whether they are differences to the best, else scores.
    """

    title: str
    note: str
    unit: str
    higher_is_better: bool
    total: int
    low: float
    high: float
    series: Sequence[Series]
    marks: Axis = Axis(0.0, 1.0)
    marks_unit: str = ""
    marks_note: str = ""
    relative: bool = False

    def height(self, value: float) -> float:
        """Return where a score is in the frame: 0 at the bottom, 1 at the top, the nearer of them if it is outside."""
        return Axis(self.low, self.high).place(value)

    def ends(self, arm: Series) -> tuple[Sequence[float], Sequence[float]]:
        """Return an arm's interval, the optimistic end first."""
        return (arm.upper, arm.lower) if self.higher_is_better else (arm.lower, arm.upper)

    def labels(self, gap: float) -> list[tuple[Series, float]]:
        """Return the named arms from bottom to top, each with a height for its name.

        Args:
            gap: the least distance between two names, as a part of the frame.
        """
        named = [arm for arm in self.series if arm.colour is not None and arm.x]
        named.sort(key=lambda arm: arm.centre[-1])
        return list(zip(named, spread([self.height(arm.centre[-1]) for arm in named], gap), strict=True))


def make_chart(result: SelectionResult) -> Chart:
    """Describe the picture of a result.

    Args:
        result: the outcome of a selection.
    """
    rows = result.table()
    pulls: dict[str, list[dict[str, Any]]] = {row["arm"]: [] for row in rows}
    for values in zip(*result.history.values(), strict=True):
        entry = dict(zip(result.history, values, strict=True))
        pulls.setdefault(entry["arm"], []).append(entry)
    total = max([result.total_samples, *result.history["samples"][-1:]])
    width = max(1, total) / min(_MAX_STRETCHES, max(1, len(result.history["arm"])))
    labels = short_names([row["arm"] for row in rows])
    behind = any(math.isfinite(row["behind"]) for row in rows)
    series = []
    for rank, row in enumerate(rows):
        colour, entries = rank if rank < len(PALETTE) else None, pulls[row["arm"]]
        arm = Series(row["arm"], labels[row["arm"]], colour, row["share"], _shares(entries, total, width))
        mark, detail = _mark(row, behind, row["arm"] == result.best), _detail(row, result.score_name)
        series.append(_with_line(arm, entries, total)._replace(mark=mark, detail=detail))
    low, high = frame(series)
    beyond = [at for at, arm in enumerate(series) if arm.x and not low <= arm.centre[-1] <= high]
    for at in beyond:
        series[at] = series[at]._replace(x=())
    notes = []
    if any(low <= end <= high for arm in series[:2] if arm.x for end in (*arm.lower, *arm.upper)):
        whose = "of the interval" if len(series) == 1 else "of the first two arms' intervals"
        notes.append(f"dashed and dotted: optimistic and pessimistic ends {whose}")
    if any(arm.x and arm.colour is not None and not low <= arm.centre[0] <= high for arm in series):
        notes.append("some of the first scores are off the scale")
    if series:  # an interval wider than a third of the frame would fill the panel
        widths = [upper - lower for lower, upper in zip(series[0].lower, series[0].upper, strict=True)]
        band = max((at + 1 for at, width in enumerate(widths) if not width <= (high - low) / 3), default=0)
        series[0] = series[0]._replace(band=band)
        notes += ["band: interval of the best arm"] if band < len(widths) else []
    if beyond:
        notes.append(f"{len(beyond)} of {len(series)} arms are too far off to be shown")
    title = f"Best after {result.total_samples:,} samples: {result.best} ({result.word})"
    title = "No arm was evaluated" if result.best is None else title
    higher = result.higher_is_better
    unit = f"{result.score_name} ({'higher' if higher else 'lower'} is better)"
    axis = marks_axis([arm.mark for arm in series])
    marks_unit = f"behind the best by ({result.score_name})" if behind else unit
    how = _how_to_read(series, axis)
    return Chart(title, "; ".join(notes), unit, higher, total, low, high, series, axis, marks_unit, how, behind)


#: The nearest dot's distance as a share of the farthest one's, below which nobody could tell it from zero.
_FINEST = 1e-12


def marks_axis(marks: Sequence[Mark]) -> Axis:
    """Return the axis on which all dots can be seen, and the intervals as far as they leave the dots room.

    It is linear, or nearly logarithmic if the farthest dot would press the near ones together.

    Args:
        marks: the dots, the best first.
    """
    dots = [mark.value for mark in marks if math.isfinite(mark.value)]
    ends = [end for mark in marks for end in (mark.lower, mark.upper) if math.isfinite(end)]
    widths = sorted(mark.upper - mark.lower for mark in marks if math.isfinite(mark.upper - mark.lower))
    room = max([2.0 * max(map(abs, dots), default=0.0), *widths[len(widths) // 2 :][:1]])
    shown = [*dots, *(end for end in ends if abs(end) <= room)]
    near = min((_size(mark) for mark in marks if _size(mark) > 0.0), default=math.inf)
    far = max(map(abs, shown), default=0.0)
    knee = max(near, _FINEST * far) if near * _NEAR < far else math.inf
    return Axis.around(shown, knee)


def _size(mark: Mark) -> float:
    """Return the larger of an arm's distance and half of its interval: a dot at 0.01 +- 1 needs a scale of 1."""
    half = (mark.upper - mark.lower) / 2.0
    return max(abs(mark.value), half if math.isfinite(half) else 0.0) if math.isfinite(mark.value) else 0.0


def _mark(row: Mapping[str, Any], behind: bool, best: bool) -> Mark:
    solid = not str(row["verdict"]).startswith(("tie", "undecided"))
    if not behind:
        return Mark(central_score(row), row["lower"], row["upper"], solid)
    return Mark(0.0) if best else Mark(row["behind"], row["behind_lower"], row["behind_upper"], solid)


def _how_to_read(series: Sequence[Series], axis: Axis) -> str:
    note = "dot: estimate; line: interval"
    note += "; hollow: not told apart from the best" if any(not arm.mark.solid for arm in series) else ""
    return note + ("; logarithmic axis" if math.isfinite(axis.knee) else "")


def _detail(row: Mapping[str, Any], unit: str) -> str:
    lines = [row["arm"], f"{row['n']:,} samples in {row['pulls']:,} pulls ({row['share']:.1%})"]
    if not math.isnan(central_score(row)):
        lines.append(f"{unit} {with_interval(central_score(row), row['lower'], row['upper'])}")
    if not math.isnan(row["behind"]):
        behind = with_interval(row["behind"], row["behind_lower"], row["behind_upper"])
        lines.append(f"behind the best by {behind}, correlation {number(row['correlation'])}")
    return "\n".join([*lines, str(row["verdict"])])


def frame(series: Sequence[Series]) -> tuple[float, float]:
    """Return the part of the y axis worth showing.

    The scores of the coloured arms are inside, and get at least a fifth of it. The other arms are inside as far as that
    allows: an arm a hundred times farther away than the contenders are from each other would flatten them to one line.
    So would a bound; the best arm's final interval may take no more room than the scores do.

    Args:
        series: the arms, the best first.
    """
    # An arm's first few scores come from a handful of samples and may be far off; its later half is what counts. Of a
    # short run all are shown: half of it would leave the panel empty.
    scores: list[float] = []
    for arm in series:
        if arm.colour is not None:
            scores += arm.centre[max(0, min(len(arm.centre) // 2, len(arm.centre) - _SHORT)) :]
    if not scores:
        return 0.0, 1.0
    low, high = min(scores), max(scores)
    room = max(high - low, 0.25 * max(abs(low), abs(high)), 1e-9) if low or high else 1.0
    others = [(arm.centre[-1], 2 * room) for arm in series if arm.x]
    if series[0].x:
        others += [(series[0].lower[-1], room), (series[0].upper[-1], room)]
    inside = [value for value, reach in others if low - reach <= value <= high + reach]
    low, high = min([low, *inside]), max([high, *inside])
    pad = 0.06 * (high - low) or 2 * room
    return low - pad, high + pad


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Move ascending places between 0 and 1 apart, no further than needed and never outside.

    Args:
        places: where they would be.
        gap: the least distance; smaller if there are too many of them.

    Example:
        >>> spread([0.0, 0.05, 0.5], 0.2)
        [0.0, 0.2, 0.5]
        >>> spread([0.9, 1.0], 0.25)
        [0.75, 1.0]
    """
    last = len(places) - 1
    gap = min(gap, 1 / max(1, last))
    moved, floor = [], 0.0
    for at, place in enumerate(places):
        moved.append(min(max(place, floor), 1.0 - gap * (last - at)))  # those above need their room too
        floor = max(place, floor) + gap
    return moved


def short_names(names: Sequence[str], length: int = _LABEL) -> dict[str, str]:
    """Cut long names so that they can still be told apart.

    The words that all have in the same place go first, but not the one before a word that differs: it says what that
    is. If that is not enough, it stays only before a number. If that is not enough or not possible, what all begin and
    end with goes, then all words in common; what is still too long loses its middle.

    Args:
        names: the names, without repetition.
        length: the most characters that a name may have.

    Example:
        >>> list(short_names(["run/epoch=10-step=2000.ckpt", "run/epoch=9-step=1800.ckpt"], 20).values())
        ['…epoch=10-step=2000…', '…epoch=9-step=1800…']
        >>> list(short_names(["cfg 1 num_inference_steps 50", "cfg 4 num_inference_steps 8"], 20).values())
        ['cfg 1…steps 50', 'cfg 4…steps 8']
        >>> list(short_names(["ema", "raw"]).values())
        ['ema', 'raw']
    """
    texts = list(names)
    for shorten in (_with_labels, _with_labels_of_numbers, _without_ends, _without_shared_words):
        if len(names) > 1 and any(len(text) > length for text in texts):
            texts = shorten(names)
    cut = {}
    for name, text in zip(names, texts, strict=True):
        keep = (length - 1) // 2
        cut[name] = text if len(text) <= length else f"{text[:keep]}…{text[keep + 1 - length :]}"
    return cut


def _with_labels(names: Sequence[str]) -> list[str]:
    return _without_shared_words(names, labelled="")


def _with_labels_of_numbers(names: Sequence[str]) -> list[str]:
    return _without_shared_words(names, labelled=r"\d")


def _without_ends(names: Sequence[str]) -> list[str]:
    """Leave out what all names begin and end with."""
    head = _shared(names)
    tail = _shared([name[head:][::-1] for name in names])
    return [("…" if head else "") + name[head : len(name) - tail] + ("…" if tail else "") for name in names]


def _without_shared_words(names: Sequence[str], labelled: str | None = None) -> list[str]:
    """Leave out the words that all names have in the same place; only the ends if their numbers of words differ.

    Args:
        names: the names.
        labelled: how words begin that keep the word before them, and what is between the two, if they differ.
    """
    words = [re.findall(r"\d+\.\d+|[^\W_]+|[\W_]+", name) for name in names]
    if len({len(line) for line in words}) > 1:
        return _without_ends(names)
    columns = list(zip(*words, strict=True))
    same = [len(set(column)) == 1 for column in columns]
    if labelled is not None:
        plain = [alike or not re.match(labelled, columns[at][0]) for at, alike in enumerate(same)]
        same = [alike and all(plain[at + 1 : at + 3]) for at, alike in enumerate(same)]
    return ["".join(_cut(line, same)) for line in words]


def _cut(words: Sequence[str], same: Sequence[bool]) -> Iterator[str]:
    """Yield words, and an ellipsis for each run of those that are left out, unless it is a single letter."""
    for alike, run in groupby(zip(words, same, strict=True), itemgetter(1)):
        text = "".join(word for word, _ in run)
        yield "…" if alike and len(text) > 1 else text


def _shared(names: Sequence[str]) -> int:
    """Count the characters that all names begin with, up to the end of a word: numbers must not be cut in two."""
    first, last = min(names), max(names)  # the others are between them in the alphabet, and so begin alike
    same = next((at for at, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1), len(first))
    return len(re.sub(r"[^\W_]+$", "", first[:same]))


def _with_line(arm: Series, entries: Sequence[Mapping[str, Any]], total: int) -> Series:
    """Add an arm's scores: those that are known, not more than can be told apart, the last one held to the end."""
    known = [entry for entry in entries if math.isfinite(central_score(entry))]
    if not known:
        return arm
    kept = [*known[: -1 : math.ceil(len(known) / _MAX_POINTS)], known[-1], {**known[-1], "samples": total}]
    return arm._replace(
        x=[float(entry["samples"]) for entry in kept],
        centre=[central_score(entry) for entry in kept],
        lower=[-math.inf if math.isnan(entry["lower"]) else entry["lower"] for entry in kept],
        upper=[math.inf if math.isnan(entry["upper"]) else entry["upper"] for entry in kept],
    )


def _shares(entries: Sequence[Mapping[str, Any]], total: int, width: float) -> list[float]:
    """Return an arm's part of the samples in each stretch of the run."""
    shares = [0.0] * round(max(1, total) / width)
    drawn = 0
    for entry in entries:
        end = entry["samples"]
        start, drawn = end - (entry["n"] - drawn), entry["n"]
        for at in range(int(max(0, start) / width), min(len(shares), math.ceil(end / width))):
            shares[at] += (min(end, (at + 1) * width) - max(start, at * width)) / width
    return [min(1.0, share) for share in shares]
