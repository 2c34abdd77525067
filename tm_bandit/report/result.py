"""What a selection found: the winner, how sure that is, where the budget went, what it would have cost otherwise."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any

from tm_bandit._arguments import check_count, check_name, check_path
from tm_bandit._files import atomic_write, check_regular
from tm_bandit.errors import InputError
from tm_bandit.report.encoding import decode_history, encode, escape_markdown
from tm_bandit.report.kinds import DIFFERENCES, SCORES, check_kinds
from tm_bandit.report.thumbnails import data_uri, is_data_uri

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

#: Version of the files that :meth:`SelectionResult.to_json` writes; older ones are read too. 1: of version 0.1, without
#: :data:`LATER_COLUMNS`. 2: since version 0.2.
FORMAT_VERSION = 2

#: Columns that version 0.1 did not have.
LATER_COLUMNS = DIFFERENCES

#: The columns of :meth:`SelectionResult.table`, in order.
COLUMNS = ("arm", "pulls", "n", *SCORES, *LATER_COLUMNS, "share", "verdict")

#: Which of them are shown to people, and under which headings.
SHOWN = {
    **{name: name for name in ("arm", "n", *SCORES)},
    "behind": "behind the best by",
    **{name: name for name in ("correlation", "share", "verdict")},
}

#: If samples have costs, the cost column follows the count.
COST = "cost"

#: The columns of :attr:`SelectionResult.history`: one entry per pull.
HISTORY_COLUMNS = ("samples", "arm", "n", "estimate", "debiased", "lower", "upper", "best", "status")

#: What each status is called in a picture's title and on a page.
_WORDS = {"won": "certified", "budget_exhausted": "budget spent"}

_SENTENCES = {
    "won": "certified best{margin}: every rival is worse{sure}",
    "likely": "likely best{margin}: a heuristic, not a certificate",
    "tie": "a tie{margin}: these arms cannot be told apart with the samples drawn",
    "target_met": "the target score is met",
    "budget_exhausted": "the budget is spent, but not all rivals are ruled out",
    "unfinished": "the run is not over",
}

#: Pairing needs (1 - correlation) times the samples, so below this it saves less than a tenth of them.
_LITTLE_IN_COMMON = 0.1


@dataclass(eq=False, repr=False)
class SelectionResult:
    """The outcome of a selection in the metric's own unit.

    Args:
        best: the recommended arm; ``None`` if nothing is known about any arm.
        status: ``"won"`` (certified), ``"likely"`` (heuristic), ``"tie"``, ``"target_met"``, ``"budget_exhausted"`` or
            ``"unfinished"`` (asked for in the middle of a run, or after Ctrl-C).
        metric: name of the metric.
        higher_is_better: direction of the metric.
        arms: the rows of :meth:`table`, with ``twin`` if an arm is the same model as an earlier one, ``pictures``, see
            :attr:`pictures`, and ``cost`` if the budget was not in samples.
        tied: the arms that cannot be told apart from ``best`` (``status="tie"``).
        retired: ``{arm: reason}`` of the arms that failed or were taken out.
        history: columns of equal length, one entry per pull (see :data:`HISTORY_COLUMNS`); the score columns are those
            of the pulled arm. A later pull may overturn an earlier ``best`` or ``status``, and this is where it shows.
        uniform_cost: samples it would take to draw every arm as often as the last rival that was ruled out; 0 if the
            run is not decided.
        budget: samples that could be drawn, or what they might cost, see :attr:`unit`.
        seed: seed of the run.
        stopped_by: ``"stop"``, ``"budget"``, ``"target"``, ``"exhausted"`` (the arms have no samples left),
            ``"interrupt"`` or ``""``.
        settings: how the run was set up (policy, bound, batch size, ...), plain values.

    Example:
        >>> row = {"arm": "a", "pulls": 2, "n": 10, "estimate": 3.5, "debiased": 3.0, "lower": 1.0, "upper": 4.0,
        ...        "share": 1.0, "verdict": "best"}
        >>> result = SelectionResult("a", "won", "FID", False, [row], uniform_cost=10)
        >>> SelectionResult.from_json(result.to_json()) == result
        True
        >>> result.num_samples
        {'a': 10}
        >>> result
        SelectionResult(best='a', status='won', FID 3, 1 arm, 10 samples)
    """

    best: str | None
    status: str
    metric: str
    higher_is_better: bool
    arms: list[dict[str, Any]]
    tied: list[str] = field(default_factory=list)
    retired: dict[str, str] = field(default_factory=dict)
    history: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in HISTORY_COLUMNS})
    uniform_cost: int = 0
    budget: float = 0
    seed: int = 0
    stopped_by: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in LATER_COLUMNS:
            self.arms = [row if name in row else {**row, name: math.nan} for row in self.arms]

    @property
    def num_samples(self) -> dict[str, int]:
        """Samples drawn from each arm, by name; :attr:`total_samples` is their sum. A metric's is one number."""
        return {row["arm"]: row["n"] for row in self.arms}

    @property
    def pulls(self) -> dict[str, int]:
        """Batches drawn from each arm."""
        return {row["arm"]: row["pulls"] for row in self.arms}

    @property
    def total_samples(self) -> int:
        """Samples drawn from all arms together."""
        return sum(row["n"] for row in self.arms)

    @property
    def unit(self) -> str:
        """What the budget counted: ``"samples"``, ``"seconds"``, or ``"cost"`` in a unit of the user's own."""
        return str(self.settings.get("unit", "samples"))

    @property
    def cost(self) -> dict[str, float]:
        """What the samples of each arm cost, in the :attr:`unit` of the budget; empty if that is samples."""
        return {row["arm"]: row[COST] for row in self.arms if COST in row}

    @property
    def total_cost(self) -> float:
        """What all samples cost; 0 if the budget was in samples."""
        return sum(self.cost.values())

    @property
    def best_score(self) -> float:
        """Debiased score of the recommended arm (the plain estimate if there is none); ``nan`` without an arm."""
        return next((central_score(row) for row in self.arms if row["arm"] == self.best), math.nan)

    @property
    def score_name(self) -> str:
        """The metric's name as people say it: FID, not OptimisticFID."""
        return self.metric.removeprefix("Optimistic")

    @property
    def pictures(self) -> dict[str, list[str]]:
        """Small pictures of the first samples, in order, as data URIs, of the arms that have some."""
        found = {row["arm"]: [uri for uri in row.get("pictures", ()) if is_data_uri(uri)] for row in self._sorted()}
        return {name: uris for name, uris in found.items() if uris}

    def add_pictures(self, arm: str, files: Sequence[bytes]) -> None:
        """Show samples of an arm on the page.

        Args:
            arm: name of the arm.
            files: PNG files, see :func:`~tm_bandit.report.thumbnails.thumbnails`.

        Raises:
            InputError: if there is no such arm, or these are not files.
        """
        if not isinstance(arm, str) or arm not in self.num_samples:
            raise InputError(f"Expected one of the arms {sorted(self.num_samples)}, but got {arm!r}.")
        if not isinstance(files, Sequence) or not all(isinstance(file, bytes) for file in files):
            raise InputError("Expected a list of PNG files as bytes, but got something else; see `thumbnails`.")
        next(row for row in self.arms if row["arm"] == arm)["pictures"] = [data_uri(file) for file in files]

    def table(self) -> list[dict[str, Any]]:
        """Return one row per arm, the best first, then the closest to it.

        The columns are :data:`COLUMNS`, and ``cost`` after ``n`` if the budget was not in samples.
        """
        # Version 0.1 did not compare arms.
        columns = with_cost(COLUMNS) if self.cost else COLUMNS
        return [{name: row.get(name, math.nan) for name in columns} for row in self._sorted()]

    def _sorted(self) -> list[dict[str, Any]]:
        compared = any(math.isfinite(row.get("behind", math.nan)) for row in self.arms)

        def key(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
            score = -central_score(row) if self.higher_is_better else central_score(row)
            place = row.get("behind", math.nan) if compared else score
            return row["arm"] != self.best, row["arm"] in self.retired, math.inf if math.isnan(place) else place

        return sorted(self.arms, key=key)

    def to_pandas(self) -> DataFrame:
        """Return :meth:`table` as a data frame indexed by the arms' names (needs pandas).

        Raises:
            ModuleNotFoundError: if pandas is missing.
        """
        try:
            from pandas import DataFrame
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("Data frames need pandas; install it with: pip install pandas") from error
        return DataFrame(self.table(), columns=with_cost(COLUMNS) if self.cost else list(COLUMNS)).set_index("arm")

    def summary(self) -> str:
        """Return the outcome as a sentence or two."""
        if self.best is None:
            return f"No arm was evaluated ({self.total_samples} samples drawn)."
        text = f"{self.best} ({self.score_name} {number(self.best_score)}): {self.outcome()}"
        text += f" ({', '.join([self.best, *self.tied])})" if self.tied else ""
        text += "; interrupted" if self.stopped_by == "interrupt" else ""
        others = len(self.undecided) if self.tied else 0
        text += f"; {others} more {'is' if others == 1 else 'are'} undecided" if others else ""
        text += f". {self.total_samples} samples drawn"
        if self.cost:
            text += f" at a cost of {spoken(self.total_cost, self.unit)}"
        if self.saving:
            text += f"; drawing every arm as often as the closest rival would have taken {self.uniform_cost}"
        return " ".join([text + ".", *self.notes])

    @property
    def saving(self) -> bool:
        """Whether :attr:`uniform_cost` can be trusted, and exceeds what was drawn: the run ended when it was decided.

        Otherwise the rivals were still sampled after they were ruled out, and their counts mean nothing.
        """
        return self.uniform_cost > self.total_samples and self.status in ("won", "likely") and self.stopped_by == "stop"

    @property
    def notes(self) -> list[str]:
        """What a reader should know besides the outcome, as sentences: identical models, noise without effect.

        Example:
            >>> rows = [{"arm": "a"}, {"arm": "b", "twin": "a"}]
            >>> SelectionResult("a", "tie", "FID", False, rows).notes
            ['b is the same model as a (identical samples).']
        """
        twins = [row for row in self.arms if "twin" in row]
        found = [f"{row['arm']} is the same model as {row['twin']} (identical samples)." for row in twins]
        known = [row["correlation"] for row in self.arms if not math.isnan(row.get("correlation", math.nan))]
        paired = self.settings.get("pairing") == "common"
        apart = [row for row in self.arms if "correlation" in row and math.isnan(row["correlation"])]
        lost = sum(math.isfinite(row.get("behind_lower", math.nan)) for row in apart) if paired else 0
        if lost:
            found.append(
                f"{lost} arm{' is' if lost == 1 else 's are'} compared with the best as if noise were not shared: "
                "scores draw by draw are all equal, or not known (an OptimisticFID keeps `max_rows` samples)."
            )
        if paired and known and sum(known) / len(known) < _LITTLE_IN_COMMON:
            found.append(
                f"The arms share hardly any noise (mean correlation below {_LITTLE_IN_COMMON}), so comparing them is "
                "no more precise than with independent noise."
            )
        return found

    @property
    def unrivalled(self) -> bool:
        """Whether the best arm has won only because there is no other, or none is left."""
        return self.status in ("won", "likely") and not any(row["verdict"].startswith("worse") for row in self.arms)

    @property
    def word(self) -> str:
        """The status in a word or two."""
        if self.unrivalled:
            return "only arm"
        return "samples used up" if self._used_up else _WORDS.get(self.status, self.status.replace("_", " "))

    @property
    def _used_up(self) -> bool:
        """Whether the run ended because the arms had no more samples, as files may have before the budget is spent."""
        return self.status == "budget_exhausted" and self.stopped_by == "exhausted"

    def outcome(self) -> str:
        """Return what the status means, in words."""
        if self.unrivalled:
            return f"the only arm{'' if len(self.arms) == 1 else ' left'}: there is nothing to compare it with"
        epsilon = self.settings.get("epsilon", 0.0)
        margin = f", up to epsilon = {number(epsilon)}" if epsilon else ""
        delta = self.settings.get("delta")
        sure = f", with {100 * (1 - delta):.4g}% confidence" if delta else ""
        if self._used_up:
            return "the arms have no samples left, but not all rivals are ruled out"
        known = _SENTENCES.get(self.status)
        return self.status if known is None else known.format(margin=margin, sure=sure)

    @property
    def undecided(self) -> list[str]:
        """Arms that are neither ruled out nor tied with the best: they look worse, or have too few samples."""
        return [row["arm"] for row in self._sorted() if str(row.get("verdict", "")).startswith("undecided")]

    def to_markdown(self) -> str:
        """Return the outcome and the table as Markdown."""
        heads = self._heads()
        lines = [escape_markdown(self.summary()), "", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        for row in self.table():
            name, *cells = (escape_markdown(cell) for cell in cells_of(row))
            name = f"**{name}**" if row["arm"] == self.best else name
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def to_html(self, path: str | os.PathLike[str] | None = None, *, refresh: int | None = None) -> str:
        """Return a page: the verdict, how far each arm is behind the best, the scores over time, samples, the table.

        The page needs nothing else: no network, no other file.

        Args:
            path: file to write, if any.
            refresh: seconds after which a browser reloads the page.
        """
        from tm_bandit.report.html import render_html

        refresh = None if refresh is None else check_count("refresh", refresh, 1)
        return _written(render_html(self, refresh), path)

    def to_json(self, path: str | os.PathLike[str] | None = None, *, indent: int | None = None) -> str:
        """Return the result as JSON, and write it to ``path`` if one is given.

        The JSON is strict, see :func:`~tm_bandit.report.encoding.encode`, and includes the version of its format.

        Args:
            path: file to write.
            indent: as in :func:`json.dumps`.
        """
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return _written(encode({"version": FORMAT_VERSION, **values}, indent), path)

    @classmethod
    def from_json(cls, source: str | os.PathLike[str]) -> SelectionResult:
        """Read what :meth:`to_json` wrote.

        Args:
            source: a path, or the JSON text itself.

        Raises:
            InputError: if the text is not a selection result.
        """
        is_text = isinstance(source, str) and (not source.strip() or source.lstrip()[0] == "{")
        try:
            text = str(source) if is_text else check_regular(check_path("source", source)).read_text("utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not a text file"
            raise InputError(f"Expected a saved result, but could not read {source} ({reason}); check it.") from error
        try:
            data = json.loads(text)
            if not 1 <= (version := data.pop("version")) <= FORMAT_VERSION:
                raise ValueError(f"its version is {version}, not one of 1 to {FORMAT_VERSION}: update tm_bandit")
            data.pop("run", None)  # where the callback records which run it belongs to
            arms = [decode_history(row) for row in data.pop("arms")]
            return cls(arms=arms, history=decode_history(data.pop("history")), **data)._checked()
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(
                f"Expected what SelectionResult.to_json wrote, but got {text[:50]!r}: {error}; give such a file."
            ) from error

    def _checked(self) -> SelectionResult:
        """Return itself, or raise ``ValueError`` or ``TypeError`` if it contradicts itself."""
        check_kinds({item.name: getattr(self, item.name) for item in fields(self)})
        named = {*self.tied, *self.retired, *self.history["arm"], *([] if self.best is None else [self.best])}
        strangers = sorted(named - {check_name("an arm", name) for name in self.num_samples})
        if strangers:
            raise ValueError(f"{strangers[0]!r} is not one of its arms")
        return self

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw how far each arm is behind the best, where the budget went, and the scores over time.

        It needs matplotlib. A notebook shows the figure that is returned, once.

        Args:
            path: image file to write, if any.
        """
        from tm_bandit.report.plot import plot_result

        return plot_result(self, path)

    def _heads(self) -> list[str]:
        return [SHOWN.get(name, name) for name in (with_cost(SHOWN) if self.cost else SHOWN)]

    def __eq__(self, other: object) -> bool:
        # As text, because an unknown score is NaN, which does not equal itself.
        return self.to_json() == other.to_json() if isinstance(other, SelectionResult) else NotImplemented

    def __repr__(self) -> str:
        arms = f"{len(self.arms)} arm{'' if len(self.arms) == 1 else 's'}"
        what = f"best={self.best!r}, status={self.status!r}, {self.score_name} {number(self.best_score)}"
        return f"SelectionResult({what}, {arms}, {self.total_samples} samples)"

    def _repr_html_(self) -> str:
        """Return the summary and the table as a notebook shows them."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self._heads())
        rows = ["".join(f"<td>{escape(cell)}</td>" for cell in cells_of(row)) for row in self.table()]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<p>{escape(self.summary())}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def __str__(self) -> str:
        rows = [self._heads(), *(cells_of(row) for row in self.table())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        text = {0, len(widths) - 1}  # these columns start at the left
        lines = []
        for row in rows:
            cells = [(cell.ljust if at in text else cell.rjust)(widths[at]) for at, cell in enumerate(row)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, self.summary()])


def with_cost(columns: Iterable[str]) -> list[str]:
    """Return the columns with the cost column added.

    Example:
        >>> with_cost(("arm", "n", "share"))
        ['arm', 'n', 'cost', 'share']
    """
    return [name for column in columns for name in ((column, COST) if column == "n" else (column,))]


def spoken(amount: float, unit: str) -> str:
    """Return a cost in readable form.

    Args:
        amount: how much.
        unit: see :attr:`SelectionResult.unit`.

    Example:
        >>> spoken(1234.5, "cost"), spoken(90.0, "seconds")
        ('1234', '90 s')
    """
    return number(amount) + (" s" if unit == "seconds" else "")


def _written(text: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        with atomic_write(path) as scratch:
            scratch.write_text(text, encoding="utf-8")
    return text


def central_score(row: Mapping[str, Any]) -> float:
    """Return the score that stands for an arm: the debiased one, or the plain estimate if there is none.

    Args:
        row: a row of a result, or an entry of its history.
    """
    return float(row["estimate"] if math.isnan(row["debiased"]) else row["debiased"])


def number(value: float) -> str:
    """Return a score with four digits, or ``-`` if there is none.

    Example:
        >>> number(3.14159), number(12345.6), number(float("nan")), number(-0.0)
        ('3.142', '12,346', '-', '0')
    """
    if math.isnan(value):
        return "-"
    value += 0.0  # removes the sign of a negative zero
    return f"{value:.4g}" if abs(value) < 1e4 or math.isinf(value) else f"{value:,.0f}"


def with_interval(value: float, lower: float, upper: float) -> str:
    """Return a score and its interval, or the score alone if nothing is known about the interval.

    Example:
        >>> with_interval(1.5, 1.0, 2.0), with_interval(1.5, float("-inf"), float("inf"))
        ('1.5 [1, 2]', '1.5')
    """
    known = math.isfinite(lower) or math.isfinite(upper)
    return f"{number(value)} [{number(lower)}, {number(upper)}]" if known else number(value)


def cells_of(row: Mapping[str, Any]) -> list[str]:
    """Return a row of the table as it is shown: one string for each of :data:`SHOWN`.

    Args:
        row: a row of :meth:`SelectionResult.table`.
    """
    return [_cell(name, row) for name in (with_cost(SHOWN) if COST in row else SHOWN)]


def _cell(name: str, row: Mapping[str, Any]) -> str:
    value = row[name]
    if name == "share":
        return f"{value:.1%}"
    if name == "correlation":
        return "-" if math.isnan(value) else f"{value:.2f}"
    if name == "behind":
        return with_interval(value, row["behind_lower"], row["behind_upper"])
    return number(value) if isinstance(value, float) else str(value).replace("\n", " ")
