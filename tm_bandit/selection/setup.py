"""What the selector asks of a metric and a policy before a run, and what it makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

from tm_bandit.errors import InputError
from tm_bandit.metrics._network import FeatureNetworkMixin
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.metrics.fid import OptimisticFID
from tm_bandit.metrics.traits import Traits
from tm_bandit.policies import LUCB, UCB, Policy, TopTwo, Uniform, make_policy

#: What the engine calls or reads of a metric; CONTRIBUTING.md says what each of them is.
PROTOCOL = (
    "check_rows",
    "device",
    "extract",
    "losses",
    "loss_fields",
    "metric_state",
    "min_samples",
    "num_samples",
    "reset",
    "score_from_loss",
    "update_rows",
)

#: Bounds of other programs: they promise nothing, and are reproduced with the delta they were written for.
_REPRODUCED = frozenset({"authors", "naive", "none"})


def check_metric(metric: Any) -> None:
    """Raise ``InputError`` unless ``metric`` has all that the engine needs, and no samples yet.

    Args:
        metric: the template of the arms' metrics.
    """
    lacking = [name for name in PROTOCOL if not hasattr(metric, name)]
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
    traits, bound = traits_of(metric), facts_of(metric)["bound"]
    if stop == "certified" and traits.guarantee == "none":
        raise InputError(
            f"Expected a bound with a guarantee for stop='certified', but got {bound!r}; "
            "use bound='witness' or bound='paper'."
        )
    # Bounds that hold at all counts come with standard errors; the others have none.
    witness = traits.guarantee == "anytime"
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
    delta = facts_of(metric)["delta"]
    if delta is None or traits_of(metric).guarantee == "none":
        return None
    return float(delta) / (initial + 1) if position <= initial else float(delta) / (position * (position + 1))


# ---- the one place that looks into metrics which do not speak for themselves yet ----------------------------------


def traits_of(metric: Any) -> Traits:
    """Return what a metric says of itself, or what its bound tells."""
    if hasattr(metric, "traits"):
        return cast(Traits, metric.traits)
    bound = getattr(metric, "bound", "witness")
    guarantee: Any = "none" if bound in _REPRODUCED else "anytime" if bound == "witness" else "finite"
    return Traits(bool(metric.higher_is_better), "optimistic", guarantee, "none")


def facts_of(metric: Any) -> dict[str, Any]:
    """Return what results and states say about a metric: its bound, its delta and the width of its rows."""
    width = getattr(metric, "num_features", getattr(metric, "num_classes", None)) or None
    return {"bound": getattr(metric, "bound", None), "delta": getattr(metric, "delta", None), "width": width}


def fork(metric: Any, delta: float | None, device: str | torch.device | None) -> OptimisticMetric:
    """Return a copy of the metric for one arm: statistics of its own, everything heavy shared.

    Args:
        metric: the template.
        delta: failure probability of the arm's bounds; ``None`` leaves the template's.
        device: where its statistics live; ``None`` means with the template's.
    """
    if hasattr(metric, "fork"):
        return cast(OptimisticMetric, metric.fork(delta, device))
    copy = cast(OptimisticMetric, metric.clone())
    # Every process holds the same rows here; a sync would count each of them once per process.
    copy.sync_on_compute = False
    copy._to_sync = False
    if isinstance(copy, FeatureNetworkMixin):
        # Rows are extracted by the template, so moving an arm must not move the network that all share.
        copy.drop_network()
    if isinstance(copy, OptimisticFID) and any(len(getattr(copy, name)) for name in copy.real_states):
        # One decomposition of the reference for all arms instead of one each.
        copy.use_reference(cast(OptimisticFID, metric).reference)
        for name in copy.real_states:
            setattr(copy, name, [])
    if delta is not None:
        copy.delta = delta
    if device is not None:
        copy.to(device)
    return copy
