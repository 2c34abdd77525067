"""Any calls in any order: a selector refuses and stays as it was, or goes on and tells the truth about itself."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.junk import JUNK, rounds, soon
from tests.selection.toy import gaussian
from tm_bandit import ModelSelector, OptimisticFID, Pull, ReferenceStatistics, SelectionResult
from tm_bandit.errors import ArmError, BanditError

REFERENCE = ReferenceStatistics(torch.zeros(2), torch.eye(2))
NAMES = ("a", "b", "c", "d")


def point(shift):
    return lambda n, generator: shift + torch.randn(n, 2, generator=generator)


def raising(n):
    raise OSError("the disk is gone")


def make():
    metric = OptimisticFID("none", REFERENCE)
    return ModelSelector(metric, {"a": point(0.1), "b": point(0.5)}, budget=150, batch_size=5, samples="features")


def contents(selector):
    """All that a selector remembers, pulls under way included."""
    pulls = {name: (sorted(arm._under_way), arm.next_draw) for name, arm in selector._arms.items()}
    state = selector.state_dict()
    for arm in state["arms"]:
        del arm["given_back"]  # a draw that was given back is the next one; what that is, is above
    return repr((state, pulls, selector.budget, selector.best, selector.retired))


def check_result(selector):
    result = selector.result()
    names = [row["arm"] for row in result.arms]
    assert result.best is None or result.best in names
    assert result.best not in result.retired
    assert result.total_samples == selector.spent <= max(selector.budget, selector.spent)
    for row in result.arms:
        assert not row["lower"] > row["upper"]
        if row["n"] >= 10:
            assert not math.isnan(row["estimate"])
    assert SelectionResult.from_json(result.to_json()) == result
    assert result.to_html().startswith("<!doctype html>")
    assert str(result)


ACTIONS = (
    "ask",
    "tell",
    "tell junk",
    "give back",
    "step",
    "add",
    "retire",
    "hold",
    "release",
    "observe",
    "extend",
    "load",
)


@pytest.mark.filterwarnings("ignore")
def test_a_selector_refuses_or_goes_on():
    @rounds(1.5)
    @given(st.data())
    def check(data):
        selector, pulls = make(), []
        for action in data.draw(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=14)):
            before = contents(selector)
            try:
                with soon():
                    act(selector, pulls, action, data)
            except BanditError:
                assert contents(selector) == before, action
        with soon():
            check_result(selector)
            saved = selector.state_dict()
            other = make()
            other.load_state_dict(saved)
            assert repr(other.state_dict()) == repr(saved)

    check()


def act(selector, pulls, action, data):
    name = st.one_of(st.sampled_from(NAMES), JUNK)
    if action == "ask":
        pulls += selector.ask(data.draw(st.one_of(st.integers(1, 4), JUNK.filter(lambda value: not large(value)))))
    elif action in ("tell", "tell junk", "give back") and pulls:
        pull = pulls[data.draw(st.integers(0, len(pulls) - 1))]
        if action == "give back":
            selector.give_back(pull)
        elif action == "tell":
            selector.tell(pull, torch.randn(pull.size, 2))
        else:
            rows = data.draw(st.one_of(JUNK, st.just(ArmError("gone")), st.just(torch.full((5, 2), math.nan))))
            selector.tell(data.draw(st.one_of(st.just(pull), JUNK, st.just(Pull("a", 99, 5, 1)))), rows)
    elif action == "step":
        selector.step()
    elif action == "add":
        samplers = st.one_of(JUNK, st.sampled_from([point(0.2), raising, gaussian(1.0)]))
        selector.add_arm(data.draw(name), data.draw(samplers))
    elif action == "retire":
        selector.retire_arm(data.draw(name), data.draw(st.one_of(st.none(), JUNK)))
    elif action in ("hold", "release"):
        (selector.hold_arm if action == "hold" else selector.release_arm)(data.draw(name))
    elif action == "observe":
        selector.observe(data.draw(name), data.draw(st.one_of(st.just(torch.randn(5, 2)), JUNK)))
    elif action == "extend":
        selector.extend_budget(data.draw(st.one_of(st.integers(-20, 20), JUNK.filter(lambda value: not large(value)))))
    elif action == "load":
        state = selector.state_dict()
        key = data.draw(st.sampled_from(sorted(state)))
        selector.load_state_dict({**state, key: data.draw(JUNK)})


def large(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) > 1000
