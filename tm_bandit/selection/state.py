"""Saving and loading a selector: what belongs together is checked, and nothing changes unless all of it fits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tm_bandit._exceptions import InputError
from tm_bandit.selection.arm import Arm
from tm_bandit.selection.report import History

if TYPE_CHECKING:
    from tm_bandit.selection.selector import ModelSelector

STATE_VERSION = 1


def state_of(selector: ModelSelector) -> dict[str, Any]:
    """Return the whole state of a selector as tensors, numbers and strings."""
    return {
        **_kind(selector),
        "budget": selector.budget,
        "initial": selector._initial,
        "prepared": selector._prepared,
        "policy": selector.policy.state_dict(),
        "history": selector._history.columns(),
        "arms": [arm.state_dict() for arm in selector._arms.values()],
    }


def load_state(selector: ModelSelector, state: Mapping[str, Any]) -> None:
    """Take back what :func:`state_of` returned.

    Args:
        selector: the selector.
        state: the state.

    Raises:
        InputError: if the state is of another kind of run, or broken; the selector is then as it was.
    """
    for name, mine in _kind(selector).items():
        theirs = state.get(name)
        if theirs != mine and not (name == "width" and None in (mine, theirs)):
            raise InputError(f"Expected a state with {name}={mine!r}, but got one with {theirs!r}; use the same value.")
    before = selector._initial
    try:
        selector._initial = int(state["initial"])
        known, arms = dict(selector._arms), dict[str, Arm]()
        for saved in state["arms"]:
            name = saved["name"]
            sampler = known.pop(name).sampler if name in known else None
            arms[name] = selector._new_arm(name, sampler, arms)
            arms[name].load_state_dict(saved)
        for name, arm in known.items():
            arms[name] = selector._new_arm(name, arm.sampler, arms)
        policy, history = copy.deepcopy(selector.policy), History()
        policy.load_state_dict(state["policy"])
        history.load(state["history"])
        budget, prepared = int(state["budget"]), bool(state["prepared"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        selector._initial = before
        raise InputError(
            f"Expected what ModelSelector.state_dict() returned, but got a broken state ({type(error).__name__}: "
            f"{error}); load another one, or start anew."
        ) from error
    selector._arms, selector.policy, selector._history = arms, policy, history
    selector.budget, selector._prepared = budget, prepared


def _kind(selector: ModelSelector) -> dict[str, Any]:
    """Return what must be the same for a state to be loaded; a width that is not known yet is ``None``."""
    metric, policy = selector.metric, selector.policy
    return {
        "version": STATE_VERSION,
        "metric": type(metric).__name__,
        "bound": getattr(metric, "bound", None),
        "width": getattr(metric, "num_features", getattr(metric, "num_classes", None)) or None,
        "seed": selector.seed,
        "batch_size": selector.batch_size,
        # A policy that remembers nothing can be exchanged for another.
        "plan": type(policy).__name__ if policy.state_dict() else None,
    }
