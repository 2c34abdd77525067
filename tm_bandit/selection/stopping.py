"""When a run is over before its budget is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.base import ArmStats, central
from tm_bandit.selection.verdict import Verdict

_ENOUGH: dict[str, tuple[str, ...]] = {"budget": (), "certified": ("won",), "likely": ("won", "likely")}


@dataclass(frozen=True)
class StopRule:
    """What ends a run, and whom it leaves out until then.

    Args:
        stop: see :class:`~tm_bandit.ModelSelector`.
        target: see :class:`~tm_bandit.ModelSelector`.
        higher_is_better: direction of the score.
    """

    stop: Literal["budget", "certified", "likely"]
    target: float | None
    higher_is_better: bool

    def ruled_out(self, verdict: Verdict) -> frozenset[str]:
        """Return the arms that need no more samples."""
        if self.stop == "budget":
            return frozenset()
        return verdict.certified_out if self.stop == "certified" else verdict.likely_out

    def met(self, verdict: Verdict, best: ArmStats | None, metric: OptimisticMetric) -> str:
        """Return ``"stop"`` or ``"target"`` if the run is over, else nothing.

        Args:
            verdict: what is said about the arms.
            best: the numbers of the best arm, if there is one.
            metric: translates losses into scores.
        """
        if verdict.level in _ENOUGH[self.stop]:
            return "stop"
        if self.target is None or best is None:
            return ""
        loss = central(best) + 2.0 * best.debiased_stderr if self.stop == "likely" else best.pessimistic
        score = metric.score_from_loss(loss)
        return "target" if (score >= self.target if self.higher_is_better else score <= self.target) else ""
