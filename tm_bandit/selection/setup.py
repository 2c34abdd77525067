"""What the selector requires of a metric and a policy before a run, and what it makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tm_bandit._arguments import check_choice, check_count
from tm_bandit.errors import InputError
from tm_bandit.metrics.base import OptimisticMetric, missing_parts
from tm_bandit.policies import LUCB, UCB, Policy, Race, make_policy
from tm_bandit.selection.arm import FEWEST_SAMPLES
from tm_bandit.selection.costs import Costs
from tm_bandit.selection.stopping import Stop

_CHOICES = {
    "stop": ("budget", "certified", "likely"),
    "goal": ("regret", "identify"),
    "samples": ("images", "features"),
    "pairing": ("common", "independent"),
    "on_error": ("retire", "raise"),
}


def check_metric(metric: Any, can_score: bool = True) -> None:
    """Raise ``InputError`` unless ``metric`` has all that the engine needs, and no samples yet.

    Args:
        metric: the template of the arms' metrics.
        can_score: whether there are conditions, or samples are scored elsewhere.
    """
    lacking = missing_parts(metric)
    if lacking:
        raise InputError(
            f"Expected a metric to select by, but got {type(metric).__name__}, which has no "
            f"{', '.join(lacking)}; use OptimisticFID or OptimisticIS, or see 'How to add a metric' in CONTRIBUTING.md."
        )
    if metric.needs_conditions and not can_score:
        name = type(metric).__name__
        raise InputError(
            f"Expected conditions=, which the score of {name} takes, but got none; pass prompts or labels."
        )
    if metric.num_samples > 0:
        raise InputError(f"Expected a metric without samples, but got one with {metric.num_samples}; reset() it first.")


def check_arms(arms: object) -> None:
    """Raise ``InputError`` unless ``arms`` is ``None`` or a mapping that is not empty.

    Args:
        arms: samplers by name.
    """
    if arms is not None and not isinstance(arms, Mapping):
        raise InputError(f"Expected arms as {{name: sampler, ...}}, but got {type(arms).__name__}; pass a mapping.")
    if arms is not None and not arms:
        raise InputError("Expected at least one arm, but got none; pass arms={name: sampler, ...}.")


def check_choices(**chosen: str) -> None:
    """Raise ``InputError`` unless every argument is one of its choices.

    Args:
        chosen: the arguments by name.
    """
    for name, value in chosen.items():
        check_choice(name, value, _CHOICES[name])


def resolve_stop(stop: str | None, metric: OptimisticMetric, goal: str) -> Stop:
    """Return the stop rule; ``None`` ends a run that identifies the best arm once it has likely been found.

    Args:
        stop: see :class:`~tm_bandit.ModelSelector`.
        metric: the template of the arms' metrics.
        goal: see :class:`~tm_bandit.ModelSelector`.

    Raises:
        InputError: if there is no such rule.
    """
    if stop is None:
        return "likely" if goal == "identify" and metric.traits.standard_errors else "budget"
    check_choices(stop=stop)
    rule: Stop = stop  # type: ignore[assignment]
    return rule


def resolve_policy(policy: str | Policy, metric: OptimisticMetric, goal: str, stop: str) -> Policy:
    """Return the policy object; ``"ucb"`` becomes what suits the metric, the goal and the stop rule.

    Args:
        policy: name of a policy, or a policy.
        metric: the template of the arms' metrics.
        goal: see :class:`~tm_bandit.ModelSelector`.
        stop: see :class:`~tm_bandit.ModelSelector`.

    Raises:
        InputError: if these do not go together.
    """
    traits, bound = metric.traits, metric.traits.bound
    if stop == "certified" and not traits.certifies:
        raise InputError(
            f"Expected a bound with a guarantee for stop='certified', but got {bound!r}; "
            "use bound='witness' or bound='paper'."
        )
    witness = traits.standard_errors
    if stop == "likely" and not witness:
        raise InputError(
            f"Expected bound='witness' for stop='likely', but got {bound!r}, which has no "
            "standard errors to compare with; use bound='witness'."
        )
    default = isinstance(policy, str) and policy == "ucb"
    if default and stop == "certified" and not witness:
        return LUCB()
    # With the bound of another program, "ucb" is that program's algorithm whatever the goal.
    made = Race() if default and goal == "identify" and witness else make_policy(policy)
    if isinstance(made, UCB):
        made = made.with_index("witness" if witness else "bound")
    if "stderr" in made.needs and not witness:
        raise InputError(
            f"Expected bound='witness' for {type(made).__name__}, but got {bound!r}, which "
            "has no standard errors: it would choose as greedy does; use bound='witness' or another policy."
        )
    missing = set(made.needs) - set(metric.loss_fields)
    if missing:
        raise InputError(
            f"Expected a policy that needs no more than {type(metric).__name__} tells "
            f"({', '.join(metric.loss_fields)}), but got {type(made).__name__}, which needs "
            f"{', '.join(sorted(missing))}; choose another policy or metric."
        )
    return made


def resolve_burn_in(burn_in: object, metric: OptimisticMetric, batch_size: int) -> int:
    """Return the burn-in as samples of whole batches, enough for an estimate.

    Args:
        burn_in: a number of samples, or ``"auto"``.
        metric: the template of the arms' metrics.
        batch_size: samples per pull.

    Raises:
        InputError: if it is neither.
    """
    auto = isinstance(burn_in, str) and burn_in == "auto"
    least = max(metric.min_samples, 2 * batch_size) if auto else check_count("burn_in", burn_in, 0)
    return -(-max(least, FEWEST_SAMPLES) // batch_size) * batch_size


def check_budget(budget: float, burn_in: int, arms: int, costs: Costs | None = None) -> None:
    """Raise ``InputError`` unless a budget covers the burn-in of the arms.

    Args:
        budget: samples that may be drawn in total, or what they may cost.
        burn_in: samples that each arm needs.
        arms: number of arms.
        costs: what samples cost, if the budget is in cost.
    """
    if costs is not None:
        needed = burn_in * sum((costs.prices or {}).values()) if arms else 0.0
        if budget < needed:
            raise InputError(
                f"Expected a budget of at least {needed:g} ({arms} arms with a burn-in of {burn_in} samples each), but "
                f"got {budget:g}; raise the budget or lower burn_in or batch_size."
            )
    elif budget < burn_in * arms:
        raise InputError(
            f"Expected a budget of at least {burn_in * arms} samples ({arms} arms with a burn-in of {burn_in} each), "
            f"but got {budget}; raise the budget or lower burn_in or batch_size."
        )


def arm_delta(metric: OptimisticMetric, initial: int, position: int) -> float | None:
    """Return the share of the failure probability that belongs to one arm, or ``None`` to leave the metric's own.

    Args:
        metric: the template.
        initial: number of arms at the start.
        position: position of this arm in the order of registration, from 1.

    Example:
        >>> from tm_bandit import OptimisticIS
        >>> metric = OptimisticIS("none", delta=0.06)
        >>> [arm_delta(metric, 2, k) for k in (1, 2)] == [0.02, 0.02]
        True
        >>> sum(arm_delta(metric, 2, k) for k in range(1, 10000)) < 0.06
        True
    """
    if not metric.traits.certifies:
        return None
    return metric.delta / (initial + 1) if position <= initial else metric.delta / (position * (position + 1))
