"""From the books of a run to its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tm_bandit.policies.base import ArmStats
from tm_bandit.report.result import SelectionResult
from tm_bandit.selection.arm import Arm
from tm_bandit.selection.history import History, scores
from tm_bandit.selection.verdict import Verdict, uniform_cost

if TYPE_CHECKING:
    from tm_bandit.selection.selector import ModelSelector


def build_result(
    selector: ModelSelector,
    arms: Sequence[Arm],
    numbers: Mapping[str, ArmStats],
    history: History,
    verdict: Verdict,
    stopped_by: str,
) -> SelectionResult:
    """Return the result of a run.

    Args:
        selector: the selector, for its settings.
        arms: all arms, the retired ones included.
        numbers: their numbers, all fields up to date.
        history: what happened at each pull.
        verdict: what is said about the arms at the end.
        stopped_by: why the run ended, empty if it did not.
    """
    metric = selector.metric
    total = max(1, selector.spent)
    rows = [
        {
            "arm": arm.name,
            "pulls": arm.stats.pulls,
            "n": arm.stats.num_samples,
            **scores(metric, numbers[arm.name]),
            "share": arm.stats.num_samples / total,
            "verdict": _verdict_of(arm, verdict, selector.epsilon),
        }
        for arm in arms
    ]
    judged = [arm for arm in arms if arm.is_candidate(selector.burn_in) and arm.trace]
    return SelectionResult(
        best=verdict.best,
        status=_status(verdict, stopped_by),
        metric=type(metric).__name__,
        higher_is_better=metric.traits.higher_is_better,
        arms=rows,
        tied=list(verdict.tied),
        retired={arm.name: arm.retired for arm in arms if arm.retired is not None},
        history=history.columns(),
        uniform_cost=uniform_cost(
            [numbers[arm.name] for arm in judged],
            verdict,
            {arm.name: arm.trace for arm in judged},
            delta=selector.delta,
            epsilon=selector.epsilon,
        ),
        budget=selector.budget,
        seed=selector.seed,
        stopped_by=stopped_by,
        settings=selector.settings(),
    )


def _verdict_of(arm: Arm, verdict: Verdict, epsilon: float) -> str:
    if arm.retired is not None:
        return f"retired: {arm.retired}"
    if arm.name == verdict.best:
        return "best"
    if arm.name in verdict.likely_out:
        level = "certified" if arm.name in verdict.certified_out else "likely"
        return f"worse ({level}, up to epsilon)" if epsilon else f"worse ({level})"
    return "tie" if arm.name in verdict.tied else "open"


def _status(verdict: Verdict, stopped_by: str) -> str:
    if verdict.level in ("won", "likely"):
        return verdict.level
    if stopped_by == "target":
        return "target_met"
    if verdict.level == "tie":
        return "tie"
    return "budget_exhausted" if stopped_by in ("budget", "exhausted") else "unfinished"
