"""Checks of the selector's arguments, and the choices it makes from them."""

from __future__ import annotations

from collections.abc import Mapping

from tm_bandit._arguments import check_count, check_number
from tm_bandit._exceptions import InputError
from tm_bandit.metrics.base import OptimisticMetric, missing_parts
from tm_bandit.policies import LUCB, UCB, Policy, TopTwo, Uniform, make_policy
from tm_bandit.selection.sampling import Sampler


def check_arguments(
    metric: OptimisticMetric,
    arms: Mapping[str, Sampler] | None,
    batch_size: object,
    budget: object,
    burn_in: object,
    seed: object,
    stop: object,
    epsilon: float,
    target: float | None,
    samples: object,
    refresh: float,
) -> None:
    """Raise ``InputError`` for arguments that :class:`~tm_bandit.ModelSelector` cannot use."""
    missing = missing_parts(metric)
    if missing:
        raise InputError(
            f"Expected metric to be an OptimisticMetric such as OptimisticFID, but got a {type(metric).__name__}, "
            f"which has no {', '.join(missing)}; derive it from OptimisticMetric."
        )
    if metric.num_samples > 0:
        raise InputError(
            f"Expected a metric without generated samples, but got one with {metric.num_samples}; call reset() first."
        )
    if arms is not None and not isinstance(arms, Mapping):
        raise InputError(f"Expected arms to be a mapping from names to samplers, but got {type(arms).__name__}.")
    if arms is not None and not arms:
        raise InputError("Expected at least one arm, but got none; pass arms={name: sampler, ...}.")
    for name, value, least in (("batch_size", batch_size, 1), ("budget", budget, 0), ("seed", seed, 0)):
        check_count(name, value, least)
    if burn_in != "auto" and (isinstance(burn_in, bool) or not isinstance(burn_in, int) or burn_in < 0):
        raise InputError(
            f"Expected burn_in to be 'auto' or an integer >= 0, but got {burn_in!r}; 'auto' is the default."
        )
    if stop not in ("budget", "certified", "likely"):
        raise InputError(
            f"Expected stop to be 'budget', 'certified' or 'likely', but got {stop!r}; choose one of these."
        )
    if samples not in ("images", "features"):
        raise InputError(f"Expected samples to be 'images' or 'features', but got {samples!r}; choose one of these.")
    check_number("epsilon", epsilon, least=0)
    if target is not None:
        check_number("target", target)
    check_number("refresh", refresh, least=0)


def resolve_policy(policy: str | Policy, metric: OptimisticMetric, goal: str, stop: str) -> Policy:
    """Return the policy object; ``"ucb"`` becomes what suits the metric's bound, the goal and the stop rule."""
    if stop == "certified" and not certifies(metric):
        raise InputError(
            f"Expected a bound with a guarantee for stop='certified', but got {metric.traits.bound!r}; "
            "use bound='witness' or bound='paper'."
        )
    if goal not in ("regret", "identify"):
        raise InputError(f"Expected goal to be 'regret' or 'identify', but got {goal!r}; choose one of these.")
    witness = metric.traits.standard_errors
    if stop == "likely" and not witness:
        raise InputError(
            f"Expected bound='witness' for stop='likely', but got {metric.traits.bound!r}, which has no "
            "standard errors to compare with; use bound='witness'."
        )
    if policy == "ucb" and stop != "budget":
        return LUCB() if stop == "certified" else Uniform()
    # With the bound of another program, "ucb" is that program's algorithm whatever the goal.
    made = TopTwo() if policy == "ucb" and goal == "identify" and witness else make_policy(policy)
    if isinstance(made, (UCB, TopTwo)):
        made = made.suited(witness=witness, natural_zero=not metric.higher_is_better)
    if "stderr" in made.needs and not witness:
        raise InputError(
            f"Expected bound='witness' for {type(made).__name__}, but got {metric.traits.bound!r}, which "
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


def certifies(metric: OptimisticMetric) -> bool:
    """Whether the metric's intervals promise anything; those of reproduced programs do not."""
    return metric.traits.certifies


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
    if not certifies(metric):
        return None
    return metric.delta / (initial + 1) if position <= initial else metric.delta / (position * (position + 1))
