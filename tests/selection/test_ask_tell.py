"""Pulls as values: several under way, told in any order, given back, or told wrongly."""

import random
from dataclasses import replace

import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector, OptimisticFID, Pull, ReferenceStatistics
from tm_bandit.errors import ArmError, InputError
from tm_bandit.execution import carry_out
from tm_bandit.policies import Policy

SAMPLERS = {"a": gaussian(0.0), "b": gaussian(0.5), "c": gaussian(1.0)}


def make(policy="ucb", samplers=SAMPLERS, **kwargs):
    kwargs = {"budget": 500, "samples": "features", "stop": "budget", **kwargs}
    return ModelSelector(kwargs.pop("metric", None) or MeanMetric(), samplers, policy, **{"batch_size": 5, **kwargs})


def rows_of(selector, pull):
    return carry_out(pull, SAMPLERS[pull.arm], selector.metric, samples="features")


def snapshot(selector):
    return selector.result(), {name: selector.stats(name) for name in SAMPLERS}, selector.spent


@pytest.mark.parametrize("policy", ["ucb", "halving", "thompson", "random", "race"])
def test_one_pull_at_a_time_is_the_run_itself(policy):
    selector = make(policy)
    selector.policy.prepare(num_arms=3, budget=500, batch_size=5)
    while pulls := selector.ask():
        for pull in pulls:
            selector.tell(pull, rows_of(selector, pull))
    assert selector.result() == make(policy).run(progress=False)


def test_a_pull_says_all_that_a_worker_needs():
    selector = make(seed=3)
    (pull,) = selector.ask()
    assert pull == Pull("a", draw=0, size=5, seed=selector.seed_for("a", 0))
    assert pull.conditions == ()
    assert [p.draw for p in selector.ask(5) if p.arm == "a"] == [1]


def test_pulls_under_way_are_all_different_and_fit_the_budget():
    selector = make("uniform", budget=48)
    pulls = selector.ask(100)
    # The burn-in alone: nobody is asked about an arm before its first samples are there.
    assert [p.arm for p in pulls] == ["a", "b", "c"] * 2
    assert selector.ask() == []
    assert selector.result().status == "unfinished"
    for pull in pulls:
        selector.tell(pull, rows_of(selector, pull))
    pulls = selector.ask(100)
    assert [(p.arm, p.draw) for p in pulls] == [("a", 2), ("b", 2), ("c", 2)]
    assert {p.seed for p in pulls} == {selector.seed_for("a", 2)}, "the same noise for all"
    assert selector.ask() == []
    for pull in pulls:
        selector.tell(pull, rows_of(selector, pull))
    assert selector.ask() == []
    assert selector.result().stopped_by == "budget"


def reference_metric():
    return OptimisticFID("none", reference=ReferenceStatistics(torch.zeros(1), torch.eye(1), 1000))


@pytest.mark.parametrize("metric", [MeanMetric, reference_metric])
@pytest.mark.parametrize("policy", ["uniform", "ucb"])
def test_the_order_of_tells_does_not_matter(policy, metric):
    ends = []
    for order in (None, 0, 1):
        selector = make(policy, metric=metric())
        for _ in range(8):
            pulls = selector.ask(9)
            if order is not None:
                random.Random(order).shuffle(pulls)
            for pull in pulls:
                selector.tell(pull, rows_of(selector, pull))
        ends.append(selector)
    for selector in ends[1:]:
        assert {name: selector.stats(name) for name in SAMPLERS} == {n: ends[0].stats(n) for n in SAMPLERS}
        assert selector.result().arms == ends[0].result().arms
        assert selector.best == ends[0].best


def test_rows_wait_for_an_earlier_draw_of_their_arm():
    selector = make(samplers={"a": SAMPLERS["a"]})
    first, second = selector.ask(2)
    selector.tell(second, rows_of(selector, second))
    assert selector.stats("a").pulls == 0
    selector.tell(first, rows_of(selector, first))
    assert selector.stats("a").pulls == 2
    assert len(selector.result().history["arm"]) == 2


def test_a_pull_that_is_given_back_comes_again():
    selector = make(samplers={"a": SAMPLERS["a"]})
    first, second = selector.ask(2)
    selector.tell(second, rows_of(selector, second))
    selector.give_back(first)
    # Nothing waits for a pull that will never be told.
    assert selector.stats("a").pulls == 1
    assert selector.draws("a") == 0
    assert selector.ask() == [first]
    selector.tell(first, rows_of(selector, first))
    assert selector.draws("a") == selector.stats("a").pulls == 2


def test_policies_see_what_is_under_way():
    seen = []

    class Watcher(Policy):
        needs = frozenset()

        def choose(self, board, rng):
            seen.append(dict(board.pending))
            return min(board, key=board.promised).name

    selector = make(Watcher())
    for pull in selector.ask(6):
        selector.tell(pull, rows_of(selector, pull))
    assert [p.arm for p in selector.ask(4)] == ["a", "b", "c", "a"]
    assert seen[-1] == {"a": 5, "b": 5, "c": 5}


def test_policies_of_version_0_1_run_unchanged():
    class Laziest(Policy):
        needs = frozenset()

        def choose(self, arms, rng):
            return min(arms, key=lambda arm: arm.num_samples).name

    assert make(Laziest()).run(progress=False).history["arm"] == make("uniform").run(progress=False).history["arm"]


def test_an_error_retires_the_arm_and_what_comes_later_is_dropped():
    selector = make()
    pulls = selector.ask(6)
    one, two = (p for p in pulls if p.arm == "b")
    selector.tell(one, RuntimeError("out of memory"))
    assert selector.retired == {"b": "RuntimeError: out of memory"}
    selector.tell(two, RuntimeError("again"))
    assert selector.retired == {"b": "RuntimeError: out of memory"}
    assert selector.stats("b").pulls == 0
    for pull in pulls:
        if pull.arm != "b":
            selector.tell(pull, ArmError("no such file") if pull.arm == "c" else rows_of(selector, pull))
            if pull.arm == "c":
                break
    assert selector.retired["c"] == "no such file"
    assert selector.result().best == "a"


def test_an_error_that_ends_the_run_gives_its_pull_back():
    selector = make(on_error="raise")
    (pull,) = selector.ask()
    with pytest.raises(ArmError, match="The arm 'a' failed: RuntimeError: out of memory"):
        selector.tell(pull, RuntimeError("out of memory"))
    assert selector.retired == {}
    assert selector.ask() == [pull]


def test_rows_of_an_arm_that_was_taken_out_are_dropped():
    selector = make()
    pulls = [p for p in selector.ask(6) if p.arm == "b"]
    selector.retire_arm("b", "its file is gone")
    selector.tell(pulls[0], rows_of(selector, pulls[0]))
    selector.give_back(pulls[1])
    assert selector.stats("b").pulls == 0
    with pytest.raises(InputError, match="told or given back before"):
        selector.tell(pulls[0], rows_of(selector, pulls[0]))


def test_costs_add_up():
    selector = make(samplers={"a": SAMPLERS["a"]})
    for pull in selector.ask(2):
        selector.tell(pull, rows_of(selector, pull), cost=1.5)
    (pull,) = selector.ask()
    selector.tell(pull, rows_of(selector, pull))
    assert selector.stats("a").cost == 3.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draw": 7}, "draw 7 of 'a', which was never asked"),
        ({"seed": 1}, "never asked"),
        ({"size": 6}, "never asked"),
        ({"arm": "nobody"}, "one of the arms .* but got 'nobody'"),
    ],
)
def test_a_pull_that_was_never_asked_is_refused(change, message):
    selector = make()
    (pull,) = selector.ask()
    before = snapshot(selector)
    for call in (lambda p: selector.tell(p, rows_of(selector, pull)), selector.give_back):
        with pytest.raises(InputError, match=message):
            call(replace(pull, **change))
    assert snapshot(selector) == before
    selector.tell(pull, rows_of(selector, pull))


def test_a_pull_is_told_or_given_back_once():
    selector = make()
    one, two = selector.ask(2)
    selector.tell(one, rows_of(selector, one))
    selector.give_back(two)
    before = snapshot(selector)
    for pull in (one, two):
        with pytest.raises(InputError, match="told or given back before"):
            selector.tell(pull, rows_of(selector, pull))
        with pytest.raises(InputError, match="told or given back before"):
            selector.give_back(pull)
    assert snapshot(selector) == before


@pytest.mark.parametrize(
    ("rows", "kwargs", "error", "message"),
    [
        (torch.zeros(4, 1), {}, ArmError, "Expected 5 rows, but got 4"),
        (torch.zeros(5, 2), {}, ArmError, "shape"),
        (torch.full((5, 1), torch.nan), {}, ArmError, "finite"),
        ([0.0] * 5, {}, ArmError, "a tensor"),
        (ValueError, {}, ArmError, "a tensor"),
        (KeyboardInterrupt(), {}, ArmError, "a tensor"),
        (torch.zeros(5, 1), {"cost": -1.0}, InputError, "`cost` to be a finite number of at least 0"),
        (torch.zeros(5, 1), {"cost": "cheap"}, InputError, "cost"),
    ],
)
def test_what_cannot_be_used_changes_nothing(rows, kwargs, error, message):
    selector = make()
    (pull,) = selector.ask()
    before = snapshot(selector)
    with pytest.raises(error, match=message):
        selector.tell(pull, rows, **kwargs)
    assert snapshot(selector) == before
    selector.tell(pull, rows_of(selector, pull))
    assert selector.draws("a") == 1


@pytest.mark.parametrize("pulls", [0, -1, 1.5, True, "all"])
def test_ask_wants_a_positive_number(pulls):
    with pytest.raises(InputError, match="`pulls` to be an integer of at least 1"):
        make().ask(pulls)


def test_tell_wants_a_pull():
    with pytest.raises(InputError, match=r"a Pull that ask\(\) returned, but got str"):
        make().tell("a", torch.zeros(5, 1))


def test_a_policy_that_fails_takes_no_pulls_with_it():
    class Broken(Policy):
        needs = frozenset()

        def choose(self, board, rng):
            if board.pending["a"]:
                raise RuntimeError("no idea")
            return "a"

    selector = make(Broken())
    for pull in selector.ask(6):
        selector.tell(pull, rows_of(selector, pull))
    with pytest.raises(RuntimeError, match="no idea"):
        selector.ask(2)
    assert [p.draw for p in selector.ask(1)] == [2]


def test_a_failing_step_leaves_nothing_under_way():
    def interrupted(num_samples):
        raise KeyboardInterrupt

    selector = make(samplers={"a": interrupted})
    with pytest.raises(KeyboardInterrupt):
        selector.step()
    assert selector.draws("a") == 0
    assert selector.run(progress=False).stopped_by == "interrupt"
    assert selector.draws("a") == 0


def test_a_state_gives_pulls_under_way_back(tmp_path):
    selector = make("uniform")
    for pull in selector.ask(6):
        selector.tell(pull, rows_of(selector, pull))
    pulls = selector.ask(6)
    selector.give_back(pulls[0])
    selector.tell(pulls[4], rows_of(selector, pulls[4]))  # draw 3 of b, which waits for draw 2
    torch.save(selector.state_dict(), tmp_path / "state.pt")
    other = make("uniform")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other.spent == 30
    with pytest.raises(InputError, match="never asked"):
        other.tell(pulls[1], rows_of(selector, pulls[1]))
    assert other.run(progress=False).arms == make("uniform").run(progress=False).arms
