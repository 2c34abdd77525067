"""Saving a selector and continuing with it."""

import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics
from tm_bandit.errors import InputError
from tm_bandit.policies import Uniform
from tm_bandit.selection.history import History


def arms(*means):
    return {f"a{i}": gaussian(mean) for i, mean in enumerate(means)}


def make(samplers=None, policy="ucb", metric=None, **kwargs):
    kwargs = {"budget": 500, "samples": "features", "stop": "budget", **kwargs}
    return ModelSelector(metric or MeanMetric(), samplers or arms(0.0, 0.5, 1.0), policy, **kwargs)


@pytest.mark.parametrize("policy", ["ucb", "race", "lucb", "halving", "thompson"])
@pytest.mark.parametrize("stop", ["budget", "likely"])
def test_resuming_is_the_same_as_going_on(tmp_path, policy, stop):
    whole = make(policy=policy, stop=stop)
    first = make(policy=policy, stop=stop)
    for _ in range(23):
        first.step()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = make(policy=policy, stop=stop)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.result().to_json() == first.result().to_json()
    assert second.run(progress=False).to_json() == whole.run(progress=False).to_json()


def test_runs_that_are_the_same_have_the_same_state():
    one, two = make(), make()
    one.run(progress=False), two.run(progress=False)
    assert repr(one.state_dict()) == repr(two.state_dict())  # nothing in it tells one process or object from another


def test_retired_and_late_arms_survive():
    selector = make(budget=200)
    selector.run(progress=False)
    selector.add_arm("late", gaussian(0.0))
    selector.retire_arm("a1", "gone")
    other = make(budget=200)
    other.load_state_dict(selector.state_dict())
    assert other.arms == selector.arms == ["a0", "a2", "late"]
    assert other.retired == {"a1": "gone"}
    assert [a.metric.delta for a in other._arms.values()] == [a.metric.delta for a in selector._arms.values()]


def test_a_finished_run_stays_finished():
    first = make(budget=100, target=5.0)
    first.run(progress=False)
    assert first.result().stopped_by == "target"
    state = first.state_dict()
    second = make(budget=100, target=5.0)
    second.load_state_dict(state)
    assert second.result() == first.result()
    del state["stopped_by"]  # version 0.1 did not save it
    second.load_state_dict(state)
    assert second.result().stopped_by == ""


def test_state_does_not_alias_the_run():
    selector = make(budget=100)
    selector.run(progress=False)
    state = selector.state_dict()
    kept = [v.clone() for v in state["arms"][0]["metric"]["values"]]
    selector.run(progress=False, budget=100)
    assert all(torch.equal(a, b) for a, b in zip(kept, state["arms"][0]["metric"]["values"], strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"pairing": "independent"},
        {"batch_size": 4},
        {"policy": "halving"},
        {"metric": MeanMetric(bound="naive")},
        {"metric": type("OtherMetric", (MeanMetric,), {})()},
    ],
)
def test_state_of_another_run_is_refused(change):
    ours, theirs = make().state_dict(), make(**change).state_dict()
    for selector, state in ((make(**change), ours), (make(), theirs)):
        with pytest.raises(InputError, match="use the same value"):
            selector.load_state_dict(state)
    with pytest.raises(InputError, match="version"):
        make().load_state_dict({**ours, "version": 99})
    with pytest.raises(InputError, match="version"):
        make().load_state_dict({})


def test_state_of_rows_of_another_width_is_refused():
    def selector(width):
        reference = ReferenceStatistics(torch.zeros(width).double(), torch.eye(width).double(), 100)
        metric = OptimisticFID("none", reference=reference)
        return make(metric=metric, samplers={"a": lambda n: torch.randn(n, width)}, budget=50)

    wide, narrow = selector(6), selector(3)
    wide.run(progress=False)
    with pytest.raises(InputError, match="width=3, but got one with 6"):
        narrow.load_state_dict(wide.state_dict())


def test_policies_without_a_plan_can_be_exchanged():
    selector = make(policy="greedy", budget=100)
    selector.run(progress=False)
    other = make(policy="uniform", budget=100)
    other.load_state_dict(selector.state_dict())
    assert other.spent == 100


def test_a_policy_whose_memory_is_empty_at_first_can_be_resumed():
    class Counting(Uniform):
        def __init__(self):
            self.seen = {}

        def choose(self, arms, rng):
            name = super().choose(arms, rng)
            self.seen[name] = self.seen.get(name, 0) + 1
            return name

        def state_dict(self):
            return dict(self.seen)

        def load_state_dict(self, state):
            self.seen = dict(state)

    first = make(policy=Counting(), budget=100)
    first.run(progress=False)
    second = make(policy=Counting(), budget=100)
    second.load_state_dict(first.state_dict())
    assert second.policy.seen == first.policy.seen != {}
    with pytest.raises(InputError, match="plan='Race', but got one with 'Counting'"):
        make().load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    "lost", ["arms", "history", "policy", "budget", "a bound", "metric of an arm", "numbers of an arm"]
)
def test_a_broken_state_changes_nothing(lost):
    saved = make(arms(0.0, 0.3), policy="halving", budget=200)
    saved.run(progress=False)
    state = saved.state_dict()
    if lost.endswith("arm"):
        state["arms"][1]["metric" if lost.startswith("metric") else "stats"] = {}
    elif lost == "a bound":
        state["arms"][0]["stats"]["pessimistic"] = None
    else:
        state.pop(lost)
    selector = make(policy="halving", budget=90)
    selector.run(progress=False)
    before = selector.state_dict()
    result = selector.result()
    with pytest.raises(InputError, match="broken state"):
        selector.load_state_dict(state)
    assert selector.result() == result
    after = selector.state_dict()
    assert [arm["name"] for arm in after["arms"]] == [arm["name"] for arm in before["arms"]]
    assert {name: after[name] for name in ("policy", "initial")} == {
        name: before[name] for name in ("policy", "initial")
    }
    assert selector.run(progress=False, budget=60).total_samples == 150


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_cuts_a_load_short_changes_nothing(error, monkeypatch):
    saved, selector = make(arms(0.0, 0.3), budget=200), make(budget=90)
    saved.run(progress=False)
    selector.run(progress=False)
    result = selector.result()

    def cut(history, columns):
        raise error

    monkeypatch.setattr(History, "load", cut)
    with pytest.raises(error):
        selector.load_state_dict(saved.state_dict())
    monkeypatch.undo()
    assert selector.result() == result
    assert selector._initial == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["history"].update(n=[]),
        lambda state: state["verdict"].update(best="nobody"),
        lambda state: state["verdict"].update(likely_out="x"),
        lambda state: state["verdict"].update(certified_out=[]),
        lambda state: state["verdict"].update(tied=[{}]),
        lambda state: state["verdict"].update(waiting=["nobody"]),
    ],
)
def test_parts_that_contradict_the_rest_are_refused(change):
    selector = make(arms(0.0, 0.3), budget=90)
    selector.run(progress=False)
    state, result = selector.state_dict(), selector.result()
    change(state)
    with pytest.raises(InputError, match="broken state"):
        selector.load_state_dict(state)
    assert selector.result() == result


@pytest.mark.parametrize("part", ["moment_count", "moment_mean", "moment_scatter", "rows"])
def test_samples_that_contradict_an_arm_s_numbers_are_refused(part):
    reference = ReferenceStatistics(torch.zeros(2), torch.eye(2), 1000)

    def fresh():
        metric = OptimisticFID("none", reference, bound="naive" if part != "rows" else "witness")
        draw = {name: lambda n, generator: torch.randn(n, 2, generator=generator) for name in "ab"}
        return make(draw, metric=metric, budget=60)

    selector = fresh()
    selector.run(progress=False)
    state, result = selector.state_dict(), selector.result()
    assert state["arms"][0]["metric"][part]
    state["arms"][0]["metric"][part] = state["arms"][0]["metric"][part][:-1]
    for one in (selector, fresh()):
        with pytest.raises(InputError, match="broken state"):
            one.load_state_dict(state)
    assert selector.result() == result
