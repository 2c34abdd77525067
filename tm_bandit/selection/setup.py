"""What the selector asks of a metric and a policy before a run, and what it makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tm_bandit.errors import InputError
from tm_bandit.metrics.base import OptimisticMetric, missing_parts
from tm_bandit.policies import LUCB, UCB, Policy, TopTwo, Uniform, make_policy


def check_metric(metric: Any) -> None:
    """Raise ``InputError`` unless ``metric`` has all that the engine needs, and no samples yet.

    Args:
        metric: the template of the arms' metrics.
    """
    lacking = missing_parts(metric)
    if lacking:
        raise InputError(
            f"Expected a metric that can be selected by, but got {type(metric).__name__}, which has no "
            f"{', '.join(lacking)}; use OptimisticFID or OptimisticIS, or see 'How to add a metric' in CONTRIBUTING.md."
        )
    if metric.num_samples > 0:
        raise InputError(
            f"Expected a metric without generated samples, but got one with {metric.num_samples}; call reset() first."
        )


def check_arms(arms: object) -> None:
    """Raise ``InputError`` unless ``arms`` is ``None`` or a mapping that is not empty.

    Args:
        arms: samplers by name.
    """
    if arms is not None and not isinstance(arms, Mapping):
        raise InputError(f"Expected arms to be a mapping from names to samplers, but got {type(arms).__name__}.")
    if arms is not None and not arms:
        raise InputError("Expected at least one arm, but got none; pass arms={name: sampler, ...}.")


_CHOICES = {
    "stop": ("budget", "certified", "likely"),
    "goal": ("regret", "identify"),
    "samples": ("images", "features"),
}


def check_choices(**chosen: object) -> None:
    """Raise ``InputError`` unless every argument is one of its choices.

    Args:
        chosen: the arguments by name.
    """
    for name, value in chosen.items():
        *most, last = map(repr, _CHOICES[name])
        if value not in _CHOICES[name]:
            raise InputError(
                f"Expected {name} to be {', '.join(most)} or {last}, but got {value!r}; choose one of these."
            )


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
    if policy == "ucb" and stop != "budget":
        return LUCB() if stop == "certified" else Uniform()
    # With the bound of another program, "ucb" is that program's algorithm whatever the goal.
    made = TopTwo() if policy == "ucb" and goal == "identify" and witness else make_policy(policy)
    if isinstance(made, (UCB, TopTwo)):
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
