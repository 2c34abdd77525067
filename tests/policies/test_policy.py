"""The numbers of arms, and what a user's own policy needs."""

from tests.policies.parts import RNG, arm
from tm_bandit.policies import Policy, make_policy
from tm_bandit.policies.policy import lowest


def test_ties_go_to_the_fewest_samples_then_to_the_first():
    arms = [arm("a", 20, estimate=1.0), arm("b", 10, estimate=1.0), arm("c", 10, estimate=1.0)]
    assert lowest(arms, lambda a: a.estimate).name == "b"


def test_a_policy_object_is_taken_as_it_is_and_ten_lines_are_enough():
    class Laziest(Policy):
        needs = frozenset()

        def choose(self, arms, rng):
            return min(arms, key=lambda a: a.num_samples).name

    mine = Laziest()
    assert make_policy(mine) is mine
    assert mine.choose([arm("a", 20), arm("b", 10)], RNG) == "b"
    assert (mine.recommend([]), mine.state_dict(), mine.describe()) == (None, {}, "")
