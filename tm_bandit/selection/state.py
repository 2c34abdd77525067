"""Saving and loading a selector: what belongs together is checked, and nothing changes unless all of it fits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tm_bandit.errors import BrokenStateError, InputError, brief
from tm_bandit.selection.arm import Roster
from tm_bandit.selection.history import History

if TYPE_CHECKING:
    from tm_bandit.selection.selector import ModelSelector

STATE_VERSION = 2

#: What loading replaces.
_PARTS = ("_arms", "_initial", "_history", "_prepared", "_stopped_by", "_verdict", "budget", "policy")


def settings_of(selector: ModelSelector) -> dict[str, Any]:
    """Return how a run is set up, as plain values for its result."""
    return {
        "policy": selector._policy_name,
        "algorithm": type(selector.policy).__name__,
        "goal": selector.goal,
        "stop": selector.stop,
        "bound": selector.metric.traits.bound,
        "delta": selector.metric.delta,
        "batch_size": selector.batch_size,
        "burn_in": selector.burn_in,
        "epsilon": selector.epsilon,
        "target": selector.target,
    }


def state_of(selector: ModelSelector) -> dict[str, Any]:
    """Return the whole state of a selector as tensors, numbers and strings."""
    return {
        **_kind(selector),
        "budget": selector.budget,
        "initial": selector._initial,
        "prepared": selector._prepared,
        "stopped_by": selector._stopped_by,
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
    _check_kind(selector, state)
    before = {name: getattr(selector, name) for name in _PARTS}
    try:
        _replace(selector, state)
    except BaseException as error:
        vars(selector).update(before)
        if isinstance(error, (LookupError, TypeError, ValueError, AttributeError)):
            raise BrokenStateError(
                f"Expected what ModelSelector.state_dict() returned, but got a broken state ({brief(error)}); load "
                "another one, or start anew."
            ) from error
        raise


def _replace(selector: ModelSelector, state: Mapping[str, Any]) -> None:
    known, selector._arms = selector._arms, Roster()
    samplers = {name: arm.sampler for name, arm in known.items()}
    selector._initial = int(state["initial"])
    for saved in state["arms"]:
        selector.add_arm(saved["name"], samplers.pop(saved["name"], None))
        selector._arms[saved["name"]].load_state_dict(saved)
    for name, sampler in samplers.items():
        selector.add_arm(name, sampler)
    selector.policy, selector._history = copy.deepcopy(selector.policy), History()
    selector.policy.load_state_dict(state["policy"])
    selector._history.load(state["history"])
    selector.budget, selector._prepared = int(state["budget"]), bool(state["prepared"])
    selector._stopped_by = str(state.get("stopped_by", ""))  # version 0.1 did not say
    selector._judge()


def _check_kind(selector: ModelSelector, state: Mapping[str, Any]) -> None:
    # A policy that remembers nothing can be exchanged for another, and a width may not be known yet.
    stateless = not state.get("policy") and not selector.policy.state_dict()
    for name, mine in _kind(selector).items():
        theirs = state.get(name)
        left_open = stateless if name == "plan" else name == "width" and None in (mine, theirs)
        if theirs != mine and not left_open:
            raise InputError(f"Expected a state with {name}={mine!r}, but got one with {theirs!r}; use the same value.")


def _kind(selector: ModelSelector) -> dict[str, Any]:
    """Return what must be the same for a state to be loaded."""
    metric = selector.metric
    return {
        "version": STATE_VERSION,
        "metric": type(metric).__name__,
        "bound": metric.traits.bound,
        "width": metric.row_width,
        "seed": selector.seed,
        "batch_size": selector.batch_size,
        "plan": type(selector.policy).__name__,
    }
