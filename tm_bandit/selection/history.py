"""What happened at each pull, in the metric's own unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.base import ArmStats
from tm_bandit.report.result import HISTORY_COLUMNS
from tm_bandit.selection.verdict import Verdict


def scores(metric: OptimisticMetric, stats: ArmStats) -> dict[str, float]:
    """Return an arm's losses as scores in the metric's unit, ``lower`` below ``upper``."""
    ends = [metric.score_from_loss(stats.optimistic), metric.score_from_loss(stats.pessimistic)]
    if metric.traits.higher_is_better:
        ends.reverse()
    return {
        "estimate": metric.score_from_loss(stats.estimate),
        "debiased": metric.score_from_loss(stats.debiased),
        "lower": ends[0],
        "upper": ends[1],
    }


class History:
    """What happened at each pull, as columns."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in HISTORY_COLUMNS}

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
        drawn = self._columns["samples"][-1] if len(self) else 0
        entry = {
            "samples": drawn + batch_size,
            "arm": stats.name,
            "n": stats.num_samples,
            "best": verdict.best,
            "status": verdict.level,
            **scores(metric, stats),
        }
        for name, column in self._columns.items():
            column.append(entry[name])

    def columns(self) -> dict[str, list[Any]]:
        """Return a copy of the columns."""
        return {name: list(column) for name, column in self._columns.items()}

    def load(self, columns: Mapping[str, list[Any]]) -> None:
        """Take back what :meth:`columns` returned."""
        self._columns = {name: list(columns[name]) for name in HISTORY_COLUMNS}
