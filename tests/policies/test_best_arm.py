"""Policies that are to name the best arm: every choice can be checked by hand."""

from dataclasses import replace

import pytest

from tests.policies.parts import arm, chosen
from tm_bandit.policies import LUCB, UCB, ArmStats, SuccessiveHalving, TopTwo


def test_lucb_plays_leader_against_challenger():
    a = arm("a", optimistic=1.0, pessimistic=3.0)
    b = arm("b", optimistic=0.5, pessimistic=4.0)
    c = arm("c", optimistic=2.9, pessimistic=90.0)
    assert chosen(LUCB(), a, b, c) == "b"  # the challenger's interval is wider than the leader's, c is no danger
    assert chosen(LUCB(), arm("a", optimistic=-9.0, pessimistic=3.0), b, c) == "a"
    assert chosen(LUCB(), a) == "a"


def test_top_two_keeps_the_leader_and_its_challenger_at_equal_counts():
    leader = arm("leader", 100, witness=1.0, stderr=0.1, debiased=2.0, debiased_stderr=0.1)
    # The worst arm has the best witness and a debiased loss that says little, so UCB alone would pull it for ever.
    blind = arm("blind", 100, witness=0.5, stderr=0.1, debiased=3.0, debiased_stderr=9.0)
    other = arm("other", 10, witness=1.5, stderr=0.1, debiased=2.5, debiased_stderr=0.1)
    counts = {"leader": 100, "blind": 100, "other": 10}
    for _ in range(40):
        now = [replace(a, num_samples=counts[a.name]) for a in (leader, blind, other)]
        assert chosen(UCB(), *now) == "blind"
        counts[chosen(TopTwo(), *now)] += 5
    assert counts == {"leader": 200, "blind": 200, "other": 10}
    assert chosen(TopTwo(), leader) == "leader"
    assert (TopTwo().needs, TopTwo(UCB(index="bound")).needs) == (UCB().needs, {"optimistic"})


def test_top_two_is_led_by_the_debiased_loss():
    # By the witness, "blind" would lead, and "second" would be its challenger.
    blind = arm("blind", 100, witness=0.5, stderr=0.1, debiased=9.0, debiased_stderr=0.1)
    leader = arm("leader", 50, witness=2.0, stderr=0.1, debiased=2.5, debiased_stderr=0.1)
    second = arm("second", 10, witness=1.0, stderr=0.1, debiased=9.5, debiased_stderr=0.1)
    assert chosen(TopTwo(), blind, leader, second) == "leader"


def test_top_two_does_not_wait_for_an_arm_that_cannot_win():
    leader = arm("leader", 5000, witness=5.0, stderr=0.1, debiased=5.1, debiased_stderr=0.1)
    numbers = {"witness": 8.0, "stderr": 0.5, "debiased": 9.0, "debiased_stderr": 0.5}
    assert chosen(TopTwo(), leader, arm("newcomer", 50, optimistic=5.0, **numbers)) == "newcomer"
    assert chosen(TopTwo(), leader, arm("newcomer", 50, optimistic=5.2, **numbers)) == "leader"
    assert chosen(TopTwo(), leader, arm("unknown", 50)) == "leader"


class TestHalving:
    def run(self, policy, values, budget=1200, batch=5, burn_in=10):
        policy.prepare(num_arms=len(values), budget=budget, batch_size=batch)
        counts = dict.fromkeys(values, burn_in)
        while sum(counts.values()) + batch <= budget:
            arms = [ArmStats(n, c // batch, c, witness=values[n]) for n, c in counts.items()]
            counts[chosen(policy, *arms)] += batch
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
        assert chosen(policy, *arms) == "new"

    def test_when_the_survivor_is_retired_the_others_are_all_there_is(self):
        policy = SuccessiveHalving()
        self.run(policy, {"a": 1.0, "b": 2.0})
        assert chosen(policy, arm("b", 600, witness=2.0)) == "b"

    def test_state_goes_on_where_it_was(self):
        values = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
        policy = SuccessiveHalving()
        self.run(policy, values, budget=800)
        other = SuccessiveHalving()
        other.load_state_dict(policy.state_dict())
        arms = [arm(n, 100, witness=w) for n, w in values.items()]
        assert chosen(other, *arms) == chosen(policy, *arms)
        assert other.state_dict() == policy.state_dict()
        assert "samples per arm" in other.describe()


@pytest.mark.parametrize(("factor", "sizes"), [(1.2, [4, 3, 2]), (1.5, [4, 3, 2]), (2.0, [4, 2]), (3.0, [4, 2])])
def test_every_rung_of_halving_loses_an_arm(factor, sizes):
    policy = SuccessiveHalving(factor)
    policy.prepare(num_arms=4, budget=1200, batch_size=5)
    assert [rung.arms for rung in policy.rungs] == sizes
