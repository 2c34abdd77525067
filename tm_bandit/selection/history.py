"""What happened at each pull, in the metric's own unit."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.policy import ArmStats
from tm_bandit.report.result import HISTORY_COLUMNS
from tm_bandit.selection.verdict import Verdict

#: How a column of numbers is kept: in 64 bits. The other columns hold words, which repeat, as indices.
_KINDS = {"samples": "q", "n": "q", "estimate": "d", "debiased": "d", "lower": "d", "upper": "d"}
_WORD = "i"


def scores(metric: OptimisticMetric, stats: ArmStats) -> dict[str, float]:
    """Return an arm's losses as scores in the metric's unit, ``lower`` below ``upper``, infinite without a bound."""
    traits = metric.traits
    centre = {
        "estimate": metric.score_from_loss(stats.estimate),
        "debiased": metric.score_from_loss(stats.debiased),
    }
    if not traits.interval:
        return {**centre, "lower": -math.inf, "upper": math.inf}
    optimistic, pessimistic = ("upper", "lower") if traits.higher_is_better else ("lower", "upper")
    return {
        **centre,
        optimistic: metric.score_from_loss(stats.optimistic),
        pessimistic: metric.score_from_loss(stats.pessimistic),
    }


class History:
    """What happened at each pull, as columns of plain numbers: 60 bytes a pull, whatever Python's objects take."""

    def __init__(self) -> None:
        self._columns: dict[str, array[Any]] = {name: array(_KINDS.get(name, _WORD)) for name in HISTORY_COLUMNS}
        #: The words of all columns, each with its number.
        self._words: dict[str | None, int] = {}
        #: An arm's losses and the same as scores: they are translated only when they have changed.
        self._known: dict[str, tuple[tuple[float, ...], dict[str, float]]] = {}

    def __len__(self) -> int:
        return len(self._columns["arm"])

    def append(self, metric: OptimisticMetric, stats: ArmStats, verdict: Verdict, batch_size: int) -> None:
        """Add one pull.

        Args:
            metric: translates losses into scores.
            stats: the numbers of the pulled arm.
            verdict: what is said about the arms after the pull.
            batch_size: samples of the pull.
        """
        losses = (stats.estimate, stats.debiased, stats.optimistic, stats.pessimistic)
        known = self._known.get(stats.name)
        if known is None or known[0] != losses:
            known = self._known[stats.name] = losses, scores(metric, stats)
        samples, words = self._columns["samples"], self._words
        entry = {
            "samples": (samples[-1] if samples else 0) + batch_size,
            "arm": words.setdefault(stats.name, len(words)),
            "n": stats.num_samples,
            "best": words.setdefault(verdict.best, len(words)),
            "status": words.setdefault(verdict.level, len(words)),
            **known[1],
        }
        for name, column in self._columns.items():
            column.append(entry[name])

    def columns(self) -> dict[str, list[Any]]:
        """Return a copy of the columns, with words in place of indices."""
        words = list(self._words)
        return {
            name: list(column) if name in _KINDS else [words[number] for number in column]
            for name, column in self._columns.items()
        }

    def load(self, columns: Mapping[str, list[Any]]) -> None:
        """Restore what :meth:`columns` returned."""
        words = dict.fromkeys(word for name in HISTORY_COLUMNS if name not in _KINDS for word in columns[name])
        numbers = {word: number for number, word in enumerate(words)}
        self._columns = {
            name: array(_KINDS[name], columns[name])
            if name in _KINDS
            else array(_WORD, [numbers[word] for word in columns[name]])
            for name in HISTORY_COLUMNS
        }
        if len({*map(len, self._columns.values())}) > 1:
            raise ValueError("its history has gaps")
        self._words, self._known = numbers, {}
