"""Saving and loading a selector: what belongs together is checked, and nothing changes unless all of it fits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tm_bandit._arguments import check_count, check_flag
from tm_bandit.errors import BrokenStateError, InputError, brief
from tm_bandit.selection.costs import budget_in
from tm_bandit.selection.history import History
from tm_bandit.selection.pairs import Pairs
from tm_bandit.selection.roster import Roster
from tm_bandit.selection.verdict import Verdict

if TYPE_CHECKING:
    from tm_bandit.selection.selector import ModelSelector

#: Version of a selector's state; that of version 0.1 is the same, without the keys that came later.
STATE_VERSION = 2

#: Settings that states of version 0.1 had, but do not record.
_BEFORE = {"pairing": "independent", "unit": "samples"}

#: What loading replaces.
_PARTS = ("_costs", "_arms", "_initial", "_history", "_prepared", "_stopped_by", "_said", "_unseen", "budget", "policy")


def settings_of(selector: ModelSelector) -> dict[str, Any]:
    """Return how a run is set up, as plain values for its result."""
    return {
        "policy": selector._policy_name,
        "algorithm": type(selector.policy).__name__,
        "goal": selector.goal,
        "stop": selector.stop,
        "bound": selector.metric.traits.bound,
        "delta": selector.metric.delta,
        "pairing": selector._plan.pairing,
        "conditions": _conditions(selector),
        "batch_size": selector.batch_size,
        "burn_in": selector.burn_in,
        "epsilon": selector.epsilon,
        "target": selector.target,
        # A result says so only if it is not what it always was.
        **({} if selector._costs is None else {"unit": selector.unit}),
    }


def state_of(selector: ModelSelector) -> dict[str, Any]:
    """Return the whole state of a selector as tensors, numbers and strings."""
    verdict = asdict(selector._verdict)  # first: it lets the selector look at what it was told last
    return {
        **_kind(selector),
        "budget": selector.budget,
        "initial": selector._initial,
        "prepared": selector._prepared,
        "stopped_by": selector._stopped_by,
        "policy": selector.policy.state_dict(),
        "history": selector._history.columns(),
        "verdict": verdict,
        "arms": [arm.state_dict() for arm in selector._arms.values()],
        **({} if selector._costs is None else {"prices": selector._costs.prices}),
    }


def load_state(selector: ModelSelector, state: Mapping[str, Any]) -> None:
    """Restore what :func:`state_of` returned.

    Args:
        selector: the selector.
        state: the state.

    Raises:
        InputError: if the state is of another kind of run, or broken; the selector is then unchanged.
    """
    try:
        _check_kind(selector, state)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _broken(error) from error  # what should be a number or a text is an array, say
    before = {name: getattr(selector, name) for name in _PARTS}
    try:
        _replace(selector, state)
    except BaseException as error:
        vars(selector).update(before)
        if isinstance(error, (LookupError, TypeError, ValueError, AttributeError, OverflowError)):
            raise _broken(error) from error
        raise


def _broken(error: Exception) -> BrokenStateError:
    return BrokenStateError(
        f"Expected what ModelSelector.state_dict() returned, but got a broken state ({brief(error)}); load another "
        "one, or start over."
    )


def _replace(selector: ModelSelector, state: Mapping[str, Any]) -> None:
    known, selector._arms = selector._arms, Roster(Pairs(selector._arms.pairs.paired), selector._costs)
    if selector._costs is not None and selector._costs.prices is not None:
        selector._costs = selector._arms.costs = selector._costs.with_others(state.get("prices") or {})
    samplers = {name: arm.sampler for name, arm in known.items()}
    selector._initial = check_count("initial", state["initial"], 0)
    for saved in state["arms"]:
        selector.add_arm(saved["name"], samplers.pop(saved["name"], None))
        selector._arms[saved["name"]].load_state_dict(saved)
    for name, sampler in samplers.items():
        selector.add_arm(name, sampler)
    selector.policy = copy.deepcopy(selector.policy)
    selector._history = History()
    selector.policy.load_state_dict(state["policy"])
    selector._history.load(state["history"])
    selector._unseen = []
    selector.budget = budget_in(selector.unit, state["budget"])
    selector._prepared = check_flag("prepared", state["prepared"])
    selector._stopped_by = str(state.get("stopped_by", ""))  # version 0.1 did not say
    verdict = state.get("verdict")
    if verdict is None:  # version 0.1 judged again
        selector._judge()
    else:
        selector._said = _verdict(verdict, set(selector._arms))


def _verdict(saved: Mapping[str, Any], arms: set[str]) -> Verdict:
    """Return a verdict that was saved, or raise if it speaks of anything but arms."""
    likely, certified = (dict(saved[name].items()) for name in ("likely_out", "certified_out"))
    tied, waiting = (tuple(saved[name]) for name in ("tied", "waiting"))
    spoken_of = {*tied, *waiting, *([] if saved["best"] is None else [saved["best"]])}
    for losers in (likely, certified):
        spoken_of |= {*losers, *losers.values()}
    if not spoken_of <= arms:
        raise ValueError("its verdict is about arms that it does not have")
    return Verdict(saved["best"], saved["level"], likely, certified, tied, waiting)


def _check_kind(selector: ModelSelector, state: Mapping[str, Any]) -> None:
    # A policy that remembers nothing can be exchanged for another, and a width may not be known yet.
    stateless = not state.get("policy") and not selector.policy.state_dict()
    for name, mine in _kind(selector).items():
        theirs = state.get(name, _BEFORE.get(name))
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
        "pairing": selector._plan.pairing,
        "conditions": _conditions(selector),
        "batch_size": selector.batch_size,
        "unit": selector.unit,
        "plan": type(selector.policy).__name__,
    }


def _conditions(selector: ModelSelector) -> int | str | None:
    conditions = selector._plan.conditions
    return None if conditions is None else conditions.kind
