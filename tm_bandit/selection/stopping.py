"""When a run is over before its budget is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.policy import ArmStats, central
from tm_bandit.selection.verdict import Verdict

#: What ends a run besides its budget.
Stop = Literal["budget", "certified", "likely"]

#: The levels of a verdict that end a run.
ENOUGH: dict[str, tuple[str, ...]] = {"budget": (), "certified": ("won", "tie"), "likely": ("won", "likely", "tie")}


@dataclass(frozen=True)
class StopRule:
    """What ends a run, and which arms it leaves out until then.

    Args:
        stop: see :class:`~tm_bandit.ModelSelector`.
        target: see :class:`~tm_bandit.ModelSelector`.
        higher_is_better: direction of the score.
        races: whether arms that are likely worse are left out in any case.
    """

    stop: Stop
    target: float | None
    higher_is_better: bool
    races: bool = False

    def ruled_out(self, verdict: Verdict, arms: int) -> Collection[str]:
        """Return the arms that need no more samples, or none before others have had theirs.

        Args:
            verdict: what is said about the arms.
            arms: how many there are.
        """
        out: Collection[str] = verdict.likely_out if self.stop == "likely" or self.races else ()
        if self.stop == "certified":
            out = verdict.certified_out
        if self.races and arms - len(verdict.likely_out) - len(verdict.waiting) > 1:
            return {*verdict.likely_out, *verdict.waiting}
        return out

    def met(self, verdict: Verdict, best: ArmStats | None, metric: OptimisticMetric) -> str:
        """Return ``"stop"`` or ``"target"`` if the run is over, else nothing.

        Args:
            verdict: what is said about the arms.
            best: the numbers of the best arm, if there is one.
            metric: translates losses into scores.
        """
        if verdict.level in ENOUGH[self.stop]:
            return "stop"
        if self.target is None or best is None:
            return ""
        if self.stop != "likely" and best.num_samples < metric.traits.certifies_from:
            return ""
        loss = central(best) + 2.0 * best.debiased_stderr if self.stop == "likely" else best.pessimistic
        score = metric.score_from_loss(loss)
        return "target" if (score >= self.target if self.higher_is_better else score <= self.target) else ""
