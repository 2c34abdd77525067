"""Checks of the selector's arguments, and the choices it makes from them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import cast

import torch

from tm_bandit.errors import InputError
from tm_bandit.metrics._network import FeatureNetworkMixin
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.metrics.fid import OptimisticFID
from tm_bandit.policies import LUCB, UCB, Policy, TopTwo, Uniform, make_policy
from tm_bandit.selection.sampling import Sampler

#: Bounds of other programs: they promise nothing, and are reproduced with the delta they were written for.
_REPRODUCED = frozenset({"authors", "naive", "none"})


def check_arguments(
    metric: object,
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
    if not isinstance(metric, OptimisticMetric):
        raise InputError(
            f"Expected metric to be an OptimisticFID or OptimisticIS, but got {type(metric).__name__}; "
            "these are the metrics that have bounds."
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
    if not (_is_finite(epsilon) and epsilon >= 0.0):
        raise InputError(f"Expected a finite epsilon >= 0, but got {epsilon!r}; 0 is the default.")
    if target is not None and not _is_finite(target):
        raise InputError(f"Expected target to be a finite score or None, but got {target!r}; choose another value.")
    if not (_is_finite(refresh) and refresh >= 0.0):
        raise InputError(f"Expected refresh >= 0, but got {refresh!r}; 0.05 is the default.")


def check_count(name: str, value: object, least: int) -> None:
    """Raise ``InputError`` unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(f"Expected {name} to be an integer >= {least}, but got {value!r}; choose another value.")


def _is_finite(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)


def resolve_policy(policy: str | Policy, metric: OptimisticMetric, goal: str, stop: str) -> Policy:
    """Return the policy object; ``"ucb"`` becomes what suits the metric's bound, the goal and the stop rule."""
    if stop == "certified" and not certifies(metric):
        raise InputError(
            f"Expected a bound with a guarantee for stop='certified', but got {getattr(metric, 'bound', None)!r}; "
            "use bound='witness' or bound='paper'."
        )
    if goal not in ("regret", "identify"):
        raise InputError(f"Expected goal to be 'regret' or 'identify', but got {goal!r}; choose one of these.")
    witness = getattr(metric, "bound", "witness") == "witness"
    if stop == "likely" and not witness:
        raise InputError(
            f"Expected bound='witness' for stop='likely', but got {getattr(metric, 'bound', None)!r}, which has no "
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
            f"Expected bound='witness' for {type(made).__name__}, but got {getattr(metric, 'bound', None)!r}, which "
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
    return getattr(metric, "bound", "witness") not in _REPRODUCED


def arm_metric(metric: OptimisticMetric, delta: float | None, device: str | torch.device | None) -> OptimisticMetric:
    """Return a copy of the metric for one arm: statistics of its own, everything heavy shared.

    Args:
        metric: the template.
        delta: failure probability of the arm's bounds; ``None`` leaves the template's.
        device: where its statistics live; ``None`` means with the template's.
    """
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


def arm_delta(metric: OptimisticMetric, initial: int, position: int) -> float | None:
    """Return the share of the failure probability that belongs to one arm, or ``None`` to leave the metric's own.

    Args:
        metric: the template.
        initial: number of arms at the start.
        position: position of this arm in the order of registration, from 1.

    Example:
        >>> from types import SimpleNamespace
        >>> metric = SimpleNamespace(bound="witness", delta=0.06)
        >>> [arm_delta(metric, 2, k) for k in (1, 2)] == [0.02, 0.02]
        True
        >>> sum(arm_delta(metric, 2, k) for k in range(1, 10000)) < 0.06
        True
    """
    delta = getattr(metric, "delta", None)
    if delta is None or getattr(metric, "bound", "witness") in _REPRODUCED:
        return None
    return float(delta) / (initial + 1) if position <= initial else float(delta) / (position * (position + 1))
