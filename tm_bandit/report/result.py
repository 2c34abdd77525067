"""What a selection found: the winner, how sure that is, where the budget went, what it would have cost otherwise."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tm_bandit._files import atomic_write
from tm_bandit.errors import InputError
from tm_bandit.report.encoding import decode_history, encode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Version of the files that :meth:`SelectionResult.to_json` writes; older ones are read too.
FORMAT_VERSION = 1

#: The columns of :meth:`SelectionResult.table`, in order.
COLUMNS = ("arm", "pulls", "n", "estimate", "debiased", "lower", "upper", "share", "verdict")

#: The columns of :attr:`SelectionResult.history`: one entry per pull.
HISTORY_COLUMNS = ("samples", "arm", "n", "estimate", "debiased", "lower", "upper", "best", "status")

#: What each status is called in a picture's title and on a page.
_WORDS = {"won": "certified", "budget_exhausted": "budget spent"}

_SENTENCES = {
    "won": "certified: every rival's optimistic score is worse than the winner's pessimistic one{margin}",
    "likely": "likely best{margin}: a heuristic, not a certificate",
    "tie": "a tie: these arms cannot be told apart with the samples drawn",
    "target_met": "the target score is met",
    "budget_exhausted": "the budget is spent and the rivals are not ruled out",
    "unfinished": "the run is not over",
}


@dataclass(eq=False)
class SelectionResult:
    """The outcome of a selection in the metric's own unit.

    Args:
        best: the recommended arm; ``None`` if nothing is known about any arm.
        status: ``"won"`` (certified), ``"likely"`` (heuristic), ``"tie"``, ``"target_met"``, ``"budget_exhausted"`` or
            ``"unfinished"`` (asked for in the middle of a run, or after Ctrl-C).
        metric: name of the metric.
        higher_is_better: direction of the metric.
        arms: the rows of :meth:`table`.
        tied: the arms that cannot be told from ``best`` (``status="tie"``).
        retired: ``{arm: reason}`` of the arms that failed or were taken out.
        history: columns of equal length, one entry per pull (see :data:`HISTORY_COLUMNS`); the score columns are those
            of the pulled arm. A later pull may overturn an earlier ``best`` or ``status``, and this is where it shows.
        uniform_cost: samples that evaluating all arms equally would have cost for the same certainty.
        budget: samples that could be spent.
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
    budget: int = 0
    seed: int = 0
    stopped_by: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def num_samples(self) -> dict[str, int]:
        """Samples drawn from each arm."""
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
    def best_score(self) -> float:
        """Debiased score of the recommended arm (the plain estimate if there is none); ``nan`` without an arm."""
        return next((central_score(row) for row in self.arms if row["arm"] == self.best), math.nan)

    def table(self) -> list[dict[str, Any]]:
        """Return one row per arm, the best first, then by score: the columns are :data:`COLUMNS`."""

        def key(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
            score = -central_score(row) if self.higher_is_better else central_score(row)
            return row["arm"] != self.best, row["arm"] in self.retired, math.inf if math.isnan(score) else score

        return [{name: row[name] for name in COLUMNS} for row in sorted(self.arms, key=key)]

    def summary(self) -> str:
        """Return the outcome as a sentence or two."""
        if self.best is None:
            return f"No arm was evaluated ({self.total_samples} samples drawn)."
        text = f"{self.best} ({self.metric} {number(self.best_score)}): {self.outcome()}"
        text += f" ({', '.join([self.best, *self.tied])})" if self.tied else ""
        text += "; interrupted" if self.stopped_by == "interrupt" else ""
        text += f". {self.total_samples} samples drawn"
        if self.uniform_cost > 0:
            text += f"; evaluating all arms equally to the same certainty takes {self.uniform_cost}"
        return text + "."

    @property
    def unrivalled(self) -> bool:
        """Whether the best arm has won only because no other is there, or none is left."""
        return self.status in ("won", "likely") and not any(row["verdict"].startswith("worse") for row in self.arms)

    @property
    def word(self) -> str:
        """The status in a word or two."""
        return "only arm" if self.unrivalled else _WORDS.get(self.status, self.status.replace("_", " "))

    def outcome(self) -> str:
        """Return what the status means, in words."""
        if self.unrivalled:
            return "the only arm, there is nothing to compare it with" + ("" if len(self.arms) == 1 else " any more")
        epsilon = self.settings.get("epsilon", 0.0)
        margin = f", up to epsilon = {number(epsilon)}" if epsilon else ""
        return _SENTENCES.get(self.status, self.status).format(margin=margin)

    def to_markdown(self) -> str:
        """Return the outcome and the table as Markdown."""
        lines = [self.summary(), "", "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        for row in self.table():
            cells = [_cell(name, row[name]) for name in COLUMNS]
            if row["arm"] == self.best:
                cells[0] = f"**{cells[0]}**"
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return a page with the verdict, each arm's bounds over time, where the budget went, and the table.

        The page needs nothing else: no network, no script, no other file.

        Args:
            path: file to write, if any.
        """
        from tm_bandit.report.html import render_html

        return _written(render_html(self), path)

    def to_json(self, path: str | os.PathLike[str] | None = None, *, indent: int | None = None) -> str:
        """Return the result as JSON, and write it to ``path`` if one is given.

        It is strict JSON, see :func:`~tm_bandit.report.encoding.encode`, and has the version of its format in it.

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
        text = str(source) if is_text else Path(source).read_text("utf-8")
        try:
            data = json.loads(text)
            if not 1 <= (version := data.pop("version")) <= FORMAT_VERSION:
                raise ValueError(f"its version is {version}, known are 1 to {FORMAT_VERSION}: update tm_bandit")
            data.pop("run", None)  # the callback notes there whose selection it is
            arms = [decode_history(row) for row in data.pop("arms")]
            return cls(arms=arms, history=decode_history(data.pop("history")), **data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"Expected the JSON of a selection result, but got {text[:60]!r} ({error}); "
                "use a file written by SelectionResult.to_json."
            ) from error

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw each arm's interval over the budget and where the budget went (needs matplotlib).

        Args:
            path: image file to write, if any.
        """
        from tm_bandit.report.plot import plot_result

        return plot_result(self, path)

    def __eq__(self, other: object) -> bool:
        # As text, because a score that is not known, NaN, is not equal to itself.
        return self.to_json() == other.to_json() if isinstance(other, SelectionResult) else NotImplemented

    def __str__(self) -> str:
        rows = [list(COLUMNS), *([_cell(name, row[name]) for name in COLUMNS] for row in self.table())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        text = {0, len(COLUMNS) - 1}  # these columns start at the left
        lines = []
        for row in rows:
            cells = [(cell.ljust if at in text else cell.rjust)(widths[at]) for at, cell in enumerate(row)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, self.summary()])


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
        >>> number(3.14159), number(12345.6), number(float("nan"))
        ('3.142', '12,346', '-')
    """
    if math.isnan(value):
        return "-"
    return f"{value:.4g}" if abs(value) < 1e4 or math.isinf(value) else f"{value:,.0f}"


def _cell(name: str, value: Any) -> str:
    if name == "share":
        return f"{value:.1%}"
    if isinstance(value, float):
        return number(value)
    return str(value).replace("|", "\\|").replace("\n", " ")
