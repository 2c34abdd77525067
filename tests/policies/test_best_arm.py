"""Policies that aim to name the best arm: every choice can be checked by hand."""

import pytest

from tests.fuzz.junk import soon
from tests.policies.parts import arm, chosen
from tm_bandit.policies import LUCB, ArmStats, SuccessiveHalving


def test_lucb_plays_leader_against_challenger():
    a = arm("a", optimistic=1.0, pessimistic=3.0)
    b = arm("b", optimistic=0.5, pessimistic=4.0)
    c = arm("c", optimistic=2.9, pessimistic=90.0)
    assert chosen(LUCB(), a, b, c) == "b"  # the challenger's interval is wider than the leader's, c is no danger
    assert chosen(LUCB(), arm("a", optimistic=-9.0, pessimistic=3.0), b, c) == "a"
    assert chosen(LUCB(), a) == "a"


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
    with soon():
        policy.prepare(num_arms=4, budget=1200, batch_size=5)
    assert [rung.arms for rung in policy.rungs] == sizes
