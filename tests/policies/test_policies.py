"""Policies over plain numbers: every choice can be checked by hand."""

import copy
import math
import pickle
import random
from dataclasses import replace

import pytest

from tm_bandit.errors import InputError
from tm_bandit.policies import (
    LUCB,
    POLICIES,
    UCB,
    ArmStats,
    EpsilonGreedy,
    Greedy,
    Policy,
    Random,
    SuccessiveHalving,
    Thompson,
    TopTwo,
    Uniform,
    make_policy,
)
from tm_bandit.policies.base import lowest

RNG = random.Random(0)


def arm(name, n=10, **numbers):
    return ArmStats(name, n // 5, n, **numbers)


def test_ties_go_to_the_fewest_samples_then_to_the_first():
    arms = [arm("a", 20, estimate=1.0), arm("b", 10, estimate=1.0), arm("c", 10, estimate=1.0)]
    assert lowest(arms, lambda a: a.estimate).name == "b"


@pytest.mark.parametrize(
    "policy", [UCB(), UCB(index="bound"), UCB(natural_zero=False), TopTwo(), Greedy(), LUCB(), Thompson()]
)
def test_an_arm_without_a_number_is_never_preferred(policy):
    good = arm("good", 20, witness=5.0, stderr=1.0, estimate=6.0, optimistic=3.0, pessimistic=9.0)
    assert policy.choose([arm("nan"), good], RNG) == "good"


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_named_policy_answers_with_an_arm(name):
    policy = make_policy(name)
    policy.prepare(num_arms=2, budget=100, batch_size=5)
    arms = [
        arm(n, witness=w, stderr=0.1, estimate=w, optimistic=w - 1, pessimistic=w + 1)
        for n, w in (("a", 1.0), ("b", 2.0))
    ]
    assert policy.choose(arms, RNG) in ("a", "b")


def test_the_vacuous_bound_is_the_most_optimistic():
    arms = [arm("a", optimistic=-math.inf), arm("b", optimistic=-5.0)]
    assert UCB(index="bound").choose(arms, RNG) == "a"


def test_ucb_index_by_hand():
    # The arm with the most samples, a, has tightness 2 / 4, so the debiased estimates have the weight 1/64.
    a = arm("a", 100, witness=2.0, stderr=1.0, debiased=4.0, debiased_stderr=0.5)
    z = math.sqrt(2 * math.log1p(30))
    index_a = (2.0 - (0.05 * z + 0.1) * 1.0 + (4.0 - (0.4 * z + 0.1) * 1.0) / 64) / (65 / 64)
    index_b = (2.4 - (0.05 * z + 0.2) * 0.5 + (4.0 - (0.4 * z + 0.2) * 2.0) / 64) / (65 / 64)
    policy = UCB()
    for shift, expected in ((index_a - index_b - 1e-9, "b"), (index_a - index_b + 1e-9, "a")):
        # A shift of both numbers of b moves its index by just as much.
        moved = arm("b", 50, witness=2.4 + shift, stderr=0.5, debiased=4.0 + shift, debiased_stderr=2.0)
        assert policy.choose([a, moved], RNG) == expected


class TestBeatenArms:
    """UCB's favourite is the rival, whose witness is small; the leader has the most samples."""

    @staticmethod
    def chosen(rival, then, now, policy=None):
        policy = UCB() if policy is None else policy
        policy.recall({"rival": {10: rival}, "leader": {10: then, now.num_samples: now}})
        return policy.choose([rival, now], RNG)

    @staticmethod
    def arms(margin, drift=0.0, even=3.0, plain=3.0, pulls=100):
        """The three records, the rival's estimate being above what is needed by ``margin``."""
        z = 2.5 * math.hypot(1.5, 2.0, math.sqrt(max(0.0, drift**2 - 1.0)))
        common = {"witness": 1.0, "stderr": 0.2}
        then = arm("leader", 10, **common, estimate=60.0, debiased=12.0, debiased_stderr=1.0)
        now = {"witness": 5.0, "stderr": 0.1, "estimate": 7.0, "debiased": 12.0 + drift, "debiased_stderr": 2.0}
        leader = arm("leader", 5 * pulls, **now, coarse_even=2.0, coarse_plain=2.0)
        numbers = {"estimate": 60.0 + drift + z + margin, "debiased": 8.0, "debiased_stderr": 1.5}
        return arm("rival", 10, **common, **numbers, coarse_even=even, coarse_plain=plain), then, leader

    @pytest.mark.parametrize("drift", [0.0, 0.9, 4.0, -4.0])
    def test_an_arm_is_passed_over_from_the_margin_on(self, drift):
        assert self.chosen(*self.arms(1e-6, drift)) == "leader"
        assert self.chosen(*self.arms(-1e-6, drift)) == "rival"

    def test_the_margin_grows_with_the_exploration_factor(self):
        assert self.chosen(*self.arms(0.1)) == "leader"
        assert self.chosen(*self.arms(0.1), policy=UCB(exploration=2.0)) == "rival"

    def test_coarse_losses_that_contradict_or_are_unknown_keep_an_arm_in(self):
        # The standard error is 2.5, so the plain one may be below the leader's 2 by 1.25.
        assert self.chosen(*self.arms(50.0, even=2.0, plain=0.76)) == "leader"
        assert self.chosen(*self.arms(50.0, even=1.99, plain=3.0)) == "rival"
        assert self.chosen(*self.arms(50.0, even=3.0, plain=0.74)) == "rival"
        assert self.chosen(*self.arms(50.0, even=math.nan)) == "rival"
        assert self.chosen(*self.arms(50.0, plain=math.nan)) == "rival"

    def test_nobody_is_passed_over_for_ever(self):
        assert self.chosen(*self.arms(50.0, pulls=2000)) == "leader"
        assert self.chosen(*self.arms(50.0, pulls=2001)) == "rival"

    def test_what_was_recalled_belongs_to_the_selector(self):
        policy = UCB()
        self.chosen(*self.arms(50.0), policy=policy)
        assert not copy.deepcopy(policy)._traces
        assert not pickle.loads(pickle.dumps(policy))._traces
        assert policy._traces

    def test_the_estimates_are_those_at_equal_counts(self):
        rival, then, now = self.arms(50.0)
        moved = replace(rival, num_samples=20, pulls=4, estimate=1.0)
        policy = UCB()
        policy.recall({"rival": {10: rival, 20: moved}, "leader": {10: then, now.num_samples: now}})
        assert policy.choose([moved, now], RNG) == "leader"

    def test_top_two_passes_over_nobody(self):
        rival, then, now = self.arms(50.0)
        best = replace(now, name="best", debiased=7.0, num_samples=300, pulls=60)
        policy = TopTwo()
        policy.recall({"rival": {10: rival}, "leader": {10: then}})
        assert policy.choose([replace(rival, optimistic=0.5), replace(now, optimistic=0.5), best], RNG) == "rival"

    def test_without_common_counts_nobody_is_passed_over(self):
        rival, then, now = self.arms(50.0)
        assert UCB().choose([rival, now], RNG) == "rival"
        policy = UCB()
        policy.recall({"rival": {10: rival}, "leader": {15: then}})
        assert policy.choose([rival, now], RNG) == "rival"

    def test_other_indices_do_not_look_at_it(self):
        rival, then, now = self.arms(50.0)
        assert self.chosen(rival, then, now, UCB(natural_zero=False)) == "rival"
        bounds = [replace(numbers, optimistic=numbers.witness) for numbers in (rival, then, now)]
        assert self.chosen(*bounds, UCB(index="bound")) == "rival"

    def test_among_equal_counts_the_lowest_estimate_leads(self):
        common = {"stderr": 0.2, "debiased_stderr": 1.0, "coarse_even": 2.0, "coarse_plain": 2.0}
        leader = arm("b", 10, witness=2.0, estimate=60.0, debiased=6.0, **common)
        rival = arm("a", 10, witness=1.0, estimate=90.0, debiased=8.0, **common)
        policy = UCB()
        policy.recall({"a": {10: rival}, "b": {10: leader}})
        assert policy.choose([rival, leader], RNG) == "b"


def test_index_of_a_loss_without_a_natural_zero():
    # After 100 samples the debiased estimate has half the weight of the witness, after 50 a third.
    a = arm("a", 100, witness=-2.0, stderr=0.1, debiased=-1.7, debiased_stderr=0.2)
    z = math.sqrt(2 * math.log1p(30))
    index_a = (-2.0 - (0.6 * z + 0.1) * 0.1 + 0.5 * (-1.7 - (0.6 * z + 0.1) * 0.2)) / 1.5
    index_b = (-2.4 - (0.6 * z + 0.2) * 0.3 + (-1.8 - (0.6 * z + 0.2) * 0.3) / 3) / (4 / 3)
    for shift, expected in ((index_a - index_b - 1e-9, "b"), (index_a - index_b + 1e-9, "a")):
        moved = arm("b", 50, witness=-2.4 + shift, stderr=0.3, debiased=-1.8 + shift, debiased_stderr=0.1)
        assert UCB(natural_zero=False).choose([a, moved], RNG) == expected


def test_without_a_tight_witness_the_debiased_estimate_has_no_weight():
    a = arm("a", 100, witness=2.0, stderr=0.0, debiased=9.0, debiased_stderr=0.0)
    b = arm("b", 100, witness=2.1, stderr=0.0, debiased=2.2, debiased_stderr=0.0)
    assert UCB().choose([b, a], RNG) == "b"
    # A leader whose witness says nothing leaves the debiased estimate without weight.
    blunt = arm("a", 200, witness=-0.5, stderr=0.0, debiased=9.0, debiased_stderr=0.0)
    assert UCB().choose([blunt, b], RNG) == "a"


def test_a_larger_exploration_factor_explores_more():
    leader, rival = arm("leader", 1000, witness=2.0, stderr=0.01), arm("rival", 200, witness=2.2, stderr=0.6)
    assert UCB().choose([leader, rival], RNG) == "leader"
    assert UCB(exploration=2.0).choose([leader, rival], RNG) == "rival"


def test_top_two_keeps_the_leader_and_its_challenger_at_equal_counts():
    leader = arm("leader", 100, witness=1.0, stderr=0.1, debiased=2.0, debiased_stderr=0.1)
    # The worst arm has the best witness, so that UCB alone would pull it for ever.
    blind = arm("blind", 100, witness=0.5, stderr=0.1, debiased=3.0, debiased_stderr=0.1)
    other = arm("other", 10, witness=1.5, stderr=0.1, debiased=2.5, debiased_stderr=0.1)
    counts = {"leader": 100, "blind": 100, "other": 10}
    for _ in range(40):
        now = [replace(a, num_samples=counts[a.name]) for a in (leader, blind, other)]
        assert UCB().choose(now, RNG) == "blind"
        counts[TopTwo().choose(now, RNG)] += 5
    assert counts == {"leader": 200, "blind": 200, "other": 10}
    assert TopTwo().choose([leader], RNG) == "leader"
    assert (TopTwo().needs, TopTwo(UCB(index="bound")).needs) == (UCB().needs, {"optimistic"})


def test_top_two_is_led_by_the_debiased_loss():
    # By the witness, "blind" would lead, and "second" would be its challenger.
    blind = arm("blind", 100, witness=0.5, stderr=0.1, debiased=9.0, debiased_stderr=0.1)
    leader = arm("leader", 50, witness=2.0, stderr=0.1, debiased=2.5, debiased_stderr=0.1)
    second = arm("second", 10, witness=1.0, stderr=0.1, debiased=4.0, debiased_stderr=0.1)
    assert TopTwo().choose([blind, leader, second], RNG) == "leader"


def test_top_two_does_not_wait_for_an_arm_that_cannot_win():
    leader = arm("leader", 5000, witness=5.0, stderr=0.1, debiased=5.1, debiased_stderr=0.1)
    numbers = {"witness": 8.0, "stderr": 0.5, "debiased": 9.0, "debiased_stderr": 0.5}
    assert TopTwo().choose([leader, arm("newcomer", 50, optimistic=5.0, **numbers)], RNG) == "newcomer"
    assert TopTwo().choose([leader, arm("newcomer", 50, optimistic=5.2, **numbers)], RNG) == "leader"
    assert TopTwo().choose([leader, arm("unknown", 50)], RNG) == "leader"


def test_needs_name_only_what_is_read():
    assert UCB().needs == {"witness", "stderr"}
    assert UCB(index="bound").needs == {"optimistic"}
    assert Uniform().needs == Random().needs == frozenset()


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


def test_a_policy_object_is_taken_as_it_is_and_ten_lines_are_enough():
    class Laziest(Policy):
        needs = frozenset()

        def choose(self, arms, rng):
            return min(arms, key=lambda a: a.num_samples).name

    mine = Laziest()
    assert make_policy(mine) is mine
    assert mine.choose([arm("a", 20), arm("b", 10)], RNG) == "b"
    assert (mine.recommend([]), mine.state_dict(), mine.describe()) == (None, {}, "")


def test_lucb_plays_leader_against_challenger():
    a = arm("a", optimistic=1.0, pessimistic=3.0)
    b = arm("b", optimistic=0.5, pessimistic=4.0)
    c = arm("c", optimistic=2.9, pessimistic=90.0)
    assert LUCB().choose([a, b, c], RNG) == "b"  # the challenger's interval is wider than the leader's, c is no danger
    assert LUCB().choose([arm("a", optimistic=-9.0, pessimistic=3.0), b, c], RNG) == "a"
    assert LUCB().choose([a], RNG) == "a"


def test_thompson_draws_follow_the_standard_error():
    arms = [arm("a", witness=0.0, stderr=1.0), arm("b", witness=1.0, stderr=1.0)]
    rng = random.Random(1)
    share = sum(Thompson(1.0).choose(arms, rng) == "a" for _ in range(4000)) / 4000
    # P(N(0,1) < N(1,1)) = Phi(1 / sqrt 2) = 0.7602; the tolerance is four standard errors.
    assert abs(share - 0.7602) < 0.027
    assert Thompson(0.0).choose(arms, rng) == "a"


def test_epsilon_is_the_share_of_random_pulls():
    arms = [arm("a", estimate=0.0), arm("b", estimate=1.0)]
    rng = random.Random(1)
    share = sum(EpsilonGreedy(0.4).choose(arms, rng) == "b" for _ in range(4000)) / 4000
    assert abs(share - 0.2) < 0.026
    assert EpsilonGreedy(0.0).choose(arms, rng) == "a"


class TestHalving:
    def run(self, policy, values, budget=1200, batch=5, burn_in=10):
        policy.prepare(num_arms=len(values), budget=budget, batch_size=batch)
        counts = dict.fromkeys(values, burn_in)
        while sum(counts.values()) + batch <= budget:
            arms = [ArmStats(n, c // batch, c, witness=values[n]) for n, c in counts.items()]
            counts[policy.choose(arms, RNG)] += batch
        return counts

    def test_arms_are_compared_at_equal_counts_and_halved(self):
        policy = SuccessiveHalving()
        counts = self.run(policy, {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0})
        assert [tuple(rung) for rung in policy.rungs] == [(4, 150), (2, 450)]
        assert counts == {"a": 450, "b": 450, "c": 150, "d": 150}
        arms = [ArmStats(n, c // 5, c, witness=w) for (n, c), w in zip(counts.items(), (1.0, 2, 3, 4), strict=True)]
        assert policy.recommend(arms) == "a"

    def test_budget_is_not_exceeded_by_the_plan(self):
        for arms in range(1, 21):
            policy = SuccessiveHalving()
            policy.prepare(num_arms=arms, budget=5000, batch_size=5)
            spent, last = 0, 0
            for rung in policy.rungs:
                spent += rung.arms * (rung.samples_per_arm - last)
                last = rung.samples_per_arm
            assert spent <= 5000

    def test_newcomer_catches_up_with_the_current_rung(self):
        policy = SuccessiveHalving()
        policy.prepare(num_arms=2, budget=1000, batch_size=5)
        arms = [arm("a", 100, witness=1.0), arm("b", 100, witness=2.0), arm("new", 10, witness=0.5)]
        assert policy.choose(arms, RNG) == "new"

    def test_when_the_survivor_is_retired_the_others_are_all_there_is(self):
        policy = SuccessiveHalving()
        self.run(policy, {"a": 1.0, "b": 2.0})
        assert policy.choose([arm("b", 600, witness=2.0)], RNG) == "b"

    def test_state_goes_on_where_it_was(self):
        values = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
        policy = SuccessiveHalving()
        self.run(policy, values, budget=800)
        other = SuccessiveHalving()
        other.load_state_dict(policy.state_dict())
        arms = [arm(n, 100, witness=w) for n, w in values.items()]
        assert other.choose(arms, RNG) == policy.choose(arms, RNG)
        assert other.state_dict() == policy.state_dict()
        assert "samples per arm" in other.describe()


@pytest.mark.parametrize(("factor", "sizes"), [(1.2, [4, 3, 2]), (1.5, [4, 3, 2]), (2.0, [4, 2]), (3.0, [4, 2])])
def test_every_rung_of_halving_loses_an_arm(factor, sizes):
    policy = SuccessiveHalving(factor)
    policy.prepare(num_arms=4, budget=1200, batch_size=5)
    assert [rung.arms for rung in policy.rungs] == sizes


def test_what_is_left_open_is_filled_in_by_the_metric():
    own = UCB(exploration=2.0).suited(witness=True, natural_zero=False)
    assert (own.exploration, own.index, own.natural_zero) == (2.0, "witness", False)
    assert UCB(natural_zero=True).suited(witness=True, natural_zero=False).natural_zero is True
    assert UCB().suited(witness=False, natural_zero=True).needs == {"optimistic"}
    assert UCB(index="bound").suited(witness=True, natural_zero=True).index == "bound"


def test_policies_of_a_user_stay_what_they_are():
    class Mine(UCB):
        note = "kept"

    class Two(TopTwo):
        pass

    mine = Mine()
    mine.note = "changed"
    suited = Two(mine).suited(witness=True, natural_zero=False)
    assert (type(suited), type(suited.challenger), suited.challenger.note) == (Two, Mine, "changed")
    assert (suited.challenger.natural_zero, mine.natural_zero) == (False, None)
    with pytest.raises(InputError, match="UCB policy, but got Thompson"):
        TopTwo(Thompson())
