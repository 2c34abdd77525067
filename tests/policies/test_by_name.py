"""Policies by name."""

import math

import pytest

from tests.policies.parts import arm, chosen
from tm_bandit.errors import InputError
from tm_bandit.policies import (
    LUCB,
    POLICIES,
    UCB,
    EpsilonGreedy,
    Greedy,
    Random,
    SuccessiveHalving,
    Thompson,
    Uniform,
    make_policy,
)


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_named_policy_answers_with_an_arm(name):
    policy = make_policy(name)
    policy.prepare(num_arms=2, budget=100, batch_size=5)
    arms = [
        arm(n, witness=w, stderr=0.1, estimate=w, optimistic=w - 1, pessimistic=w + 1)
        for n, w in (("a", 1.0), ("b", 2.0))
    ]
    assert chosen(policy, *arms) in ("a", "b")


@pytest.mark.parametrize("policy", [UCB(), UCB(index="bound"), Greedy(), LUCB(), Thompson()])
def test_an_arm_without_a_number_is_never_preferred(policy):
    good = arm("good", 20, witness=5.0, stderr=1.0, estimate=6.0, optimistic=3.0, pessimistic=9.0)
    assert chosen(policy, arm("nan"), good) == "good"


@pytest.mark.parametrize(
    "make",
    [
        lambda: UCB(index="mean"),
        lambda: UCB(exploration=-1.0),
        lambda: UCB(exploration=math.nan),
        lambda: UCB(exploration=2.0, index="bound"),
        lambda: Thompson(-1.0),
        lambda: EpsilonGreedy(1.5),
        lambda: SuccessiveHalving(1.0),
        lambda: make_policy("fastest"),
        lambda: make_policy(3),
    ],
)
def test_arguments_out_of_range_are_refused(make):
    with pytest.raises(InputError, match="Expected"):
        make()


def test_needs_name_only_what_is_read():
    assert UCB().needs == frozenset()
    assert UCB(index="bound").needs == {"optimistic"}
    assert Uniform().needs == Random().needs == frozenset()
