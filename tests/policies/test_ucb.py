"""The optimistic index by hand."""

import math

import pytest

from tests.policies.parts import arm, chosen
from tm_bandit.comparison import Pair
from tm_bandit.errors import InputError
from tm_bandit.policies import UCB


def test_the_vacuous_bound_is_the_most_optimistic():
    assert chosen(UCB(index="bound"), arm("a", optimistic=-math.inf), arm("b", optimistic=-5.0)) == "a"


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_index_by_hand(factor):
    # Of the loose witness of a the debiased value says more, of the noisy debiased value of b the witness does.
    a = arm("a", 100, witness=2.0, stderr=1.0, debiased=4.0, debiased_stderr=0.5)
    root = math.sqrt(2 * math.log1p(30))
    index_a = 4.0 - (0.3 * factor * root + 0.15) * 0.5
    index_b = 3.4 - (0.3 * factor * root + 0.3) * 0.5
    for shift, expected in ((index_a - index_b - 1e-9, "b"), (index_a - index_b + 1e-9, "a")):
        # A shift of both numbers of b moves its index by just as much.
        moved = arm("b", 50, witness=3.4 + shift, stderr=0.5, debiased=3.5 + shift, debiased_stderr=6.0)
        assert chosen(UCB(exploration=factor), a, moved) == expected


def test_without_a_debiased_value_the_witness_is_all_there_is():
    a, b = arm("a", 100, witness=2.0, stderr=0.0), arm("b", 100, witness=2.1, stderr=0.0)
    assert chosen(UCB(), b, a) == "a"


def test_a_larger_exploration_factor_explores_more():
    leader, rival = arm("leader", 1000, witness=2.0, stderr=0.01), arm("rival", 200, witness=2.8, stderr=0.6)
    assert chosen(UCB(), leader, rival) == "leader"
    assert chosen(UCB(exploration=2.0), leader, rival) == "rival"


def test_samples_under_way_narrow_the_width():
    a, b = (arm(name, 50, witness=1.0, stderr=0.5, debiased=1.2, debiased_stderr=0.5) for name in "ab")
    assert chosen(UCB(), a, b) == "a"
    assert chosen(UCB(), a, b, pending={"a": 5}) == "b"
    assert chosen(UCB(), a, b, pending={"a": 10, "b": 5}) == "b"
    root = math.sqrt(2 * math.log1p(20))
    index = 1.2 - (0.3 * root + 15 / 200) * 0.5 * math.sqrt(50 / 200)
    for value, expected in ((index - 1e-9, "c"), (index + 1e-9, "a")):
        exact = arm("c", 50, witness=value, stderr=0.0, debiased=value, debiased_stderr=0.0)
        assert chosen(UCB(), a, exact, pending={"a": 150}) == expected


def test_what_is_left_open_is_filled_in():
    assert UCB(exploration=2.0).with_index("witness").exploration == 2.0
    assert UCB(index="bound").with_index("witness").index == "bound"


def test_policies_of_a_user_stay_what_they_are():
    class Mine(UCB):
        pass

    mine = Mine()
    assert type(mine.with_index("witness")) is Mine
    assert mine.index is None
    with pytest.raises(InputError, match="standard errors for index='witness', but got none"):
        Mine(index="witness").with_index("bound")


def paired(a, b, difference, stderr, **kwargs):
    """The choice between two arms with the same noise, compared on the draws that both have."""
    pair = Pair(difference, stderr, 1.0)

    def at(one, two, n):
        return pair if one == a.name else pair._replace(difference=-difference)

    traces = {arm.name: {min(a.num_samples, b.num_samples): arm} for arm in (a, b)}
    return chosen(UCB(), a, b, pair=at, traces=traces, paired=True, **kwargs)


def test_arms_with_the_same_noise_are_judged_by_their_difference():
    # By themselves the two are as good as equal, and each explores the other; their difference is known exactly.
    near, far = (
        arm(name, 100, witness=value, stderr=0.5, debiased=value, debiased_stderr=0.5)
        for name, value in (("near", 1.0), ("far", 1.01))
    )
    assert chosen(UCB(), near, far, pending={"near": 5}) == "far"
    assert paired(near, far, difference=-0.01, stderr=0.0, pending={"near": 5}) == "near"
    assert paired(near, far, difference=-0.01, stderr=0.1, pending={"near": 5}) == "far"


def test_the_width_of_a_difference_by_hand():
    near, far = (
        arm(name, 100, witness=value, stderr=0.5, debiased=value, debiased_stderr=0.5)
        for name, value in (("near", 1.0), ("far", 1.1))
    )
    width = 0.3 * math.sqrt(2 * math.log1p(40)) + 15 / 100
    for factor, expected in ((0.99, "near"), (1.01, "far")):
        assert paired(near, far, difference=-0.1, stderr=factor * 0.1 / width) == expected


def test_the_width_of_a_difference_is_that_of_the_arm_with_fewer_draws():
    numbers = {"stderr": 0.5, "debiased_stderr": 0.5}
    near = arm("near", 100, witness=1.0, debiased=1.0, **numbers)
    far = arm("far", 50, witness=1.1, debiased=1.1, **numbers)
    width = 0.3 * math.sqrt(2 * math.log1p(30)) + 15 / 50
    for factor, expected in ((0.99, "near"), (1.01, "far")):
        assert paired(near, far, difference=-0.1, stderr=factor * 0.1 / width) == expected


def test_a_leader_with_fewer_draws_is_pulled_before_its_rival():
    numbers = {"stderr": 0.5, "debiased_stderr": 0.5}
    few = arm("few", 50, witness=1.0, debiased=1.0, **numbers)
    many = arm("many", 100, witness=1.01, debiased=1.01, **numbers)
    assert paired(few, many, difference=-0.01, stderr=0.1) == "few"
    assert paired(few, many, difference=-0.01, stderr=0.1, pending={"few": 60}) == "many"


def test_arms_of_which_nothing_is_known_are_pulled_first():
    known = arm("known", 50, witness=1.0, stderr=0.1, debiased=1.0, debiased_stderr=0.1)
    assert chosen(UCB(), known, arm("new", 10), paired=True) == "new"
