"""From the books of a run to its result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tm_bandit.policies.policy import ArmStats
from tm_bandit.report.result import SelectionResult
from tm_bandit.report.thumbnails import MOST
from tm_bandit.selection.arm import Arm
from tm_bandit.selection.history import History, scores
from tm_bandit.selection.verdict import Verdict, enough, uniform_cost

if TYPE_CHECKING:
    from tm_bandit.selection.selector import ModelSelector

#: A verdict names this many arms of a tie, and counts the others.
_NAMED = 3


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
    twins = selector.twins()
    status = _status(verdict, stopped_by)
    most = next((arm.stats.num_samples for arm in arms if arm.name == verdict.best), 0)
    rows = [
        {
            "arm": arm.name,
            "pulls": arm.stats.pulls,
            "n": arm.stats.num_samples,
            **({"cost": arm.stats.cost} if selector.unit != "samples" else {}),
            **scores(metric, numbers[arm.name]),
            **_behind(selector, arm, verdict.best),
            "share": arm.stats.num_samples / total,
            "verdict": _verdict_of(arm, verdict, status, most, selector.epsilon),
            **({"twin": twins[arm.name]} if arm.name in twins else {}),
        }
        for arm in arms
    ]
    result = SelectionResult(
        best=verdict.best,
        status=status,
        metric=type(metric).__name__,
        higher_is_better=metric.traits.higher_is_better,
        arms=rows,
        tied=list(verdict.tied),
        retired={arm.name: arm.retired for arm in arms if arm.retired is not None},
        history=history.columns(),
        uniform_cost=uniform_cost(verdict, {arm.name: arm.stats.num_samples for arm in arms if arm.retired is None}),
        budget=selector.budget,
        seed=selector.seed,
        stopped_by=stopped_by,
        settings=selector.settings(),
    )
    pictures = {arm.name: [file for draw in sorted(arm.pictures) for file in arm.pictures[draw]] for arm in arms}
    for row in result.table()[:2]:  # the best arm and the closest rival
        if pictures[row["arm"]]:
            result.add_pictures(row["arm"], pictures[row["arm"]][:MOST])
    return result


def _behind(selector: ModelSelector, arm: Arm, best: str | None) -> dict[str, float]:
    """Return by how much an arm is worse than the best one, with its interval, and how much noise the two share."""
    names = ("behind", "behind_lower", "behind_upper", "correlation")
    if best is None or arm.name == best or arm.retired is not None or not arm.trace:
        return dict.fromkeys(names, math.nan)
    found = selector.compare(arm.name, best)
    if selector.metric.traits.higher_is_better:
        found = found._replace(difference=-found.difference, lower=-found.upper, upper=-found.lower)
    shared, pairs = found.correlation, selector._arms.pairs
    if pairs.paired and pairs.at(arm, selector._arms[best], found.n) is None:
        shared = math.nan  # samples that are no longer kept, or have no scores of their own: it is not known
    return dict(zip(names, (found.difference, found.lower, found.upper, shared), strict=True))


def _verdict_of(arm: Arm, verdict: Verdict, status: str, most: int, epsilon: float) -> str:
    if arm.retired is not None:
        return f"retired: {arm.retired}"
    if arm.name == verdict.best:
        return f"best ({_why(verdict, status)})"
    if arm.name in verdict.likely_out:
        level = "certified" if arm.name in verdict.certified_out else "likely"
        return f"worse ({level}, up to epsilon)" if epsilon else f"worse ({level})"
    if arm.name in verdict.tied:
        return "tie"
    return "undecided" if enough(arm.stats.num_samples, most) else "undecided (few samples)"


def _why(verdict: Verdict, status: str) -> str:
    """Say why the best arm is the best."""
    if status in ("won", "likely"):
        certainty = "certified" if status == "won" else "likely"
        return certainty if verdict.likely_out else "only arm"
    if status == "tie" and verdict.tied:
        first, more = verdict.tied[:_NAMED], len(verdict.tied) - _NAMED
        return f"tie with {', '.join(first)}" + (f" and {more} more" if more > 0 else "")
    return {"tie": "tie", "target_met": "target met"}.get(status, "so far")


def _status(verdict: Verdict, stopped_by: str) -> str:
    if verdict.level in ("won", "likely"):
        return verdict.level
    if stopped_by == "target":
        return "target_met"
    over = stopped_by in ("budget", "exhausted")
    if verdict.level == "tie" or (over and verdict.tied):
        return "tie"
    return "budget_exhausted" if over else "unfinished"
