"""One arm's pulls and numbers, and the roster of all arms."""

import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import Pull
from tm_bandit.errors import ArmError, InputError
from tm_bandit.selection.arm import Arm, Roster

NEEDS = ("witness", "stderr")


def make(name="a", growth=1.05, sampler=None):
    return Arm(name, MeanMetric(), sampler, growth, {})


def pull(arm, size=5):
    return arm.reserve(Pull(arm.name, arm.next_draw, size, seed=0))


def rows(value=0.0, size=5):
    return value + torch.arange(size, dtype=torch.float64).unsqueeze(1)


def roster(*counts):
    found = Roster()
    for i, count in enumerate(counts):
        found.join(f"a{i}", MeanMetric(), None, 1.05)
        for _ in range(count):
            found[f"a{i}"].add(rows(i), 0.0, NEEDS, 10)
    return found


class TestPulls:
    def test_draws_are_counted_and_given_back_ones_come_first(self):
        arm = make()
        pulls = [pull(arm) for _ in range(4)]
        assert [p.draw for p in pulls] == [0, 1, 2, 3]
        arm.give_back(pulls[2])
        arm.give_back(pulls[1])
        assert (arm.pending, arm.next_draw) == (10, 1)
        assert [pull(arm).draw for _ in range(3)] == [1, 2, 4]

    def test_rows_are_ready_in_the_order_of_their_draws(self):
        arm = make()
        first, second, third = (pull(arm) for _ in range(3))
        arm.tell(third, rows(3), 1.0)
        arm.tell(first, rows(1), 0.5)
        ready = arm.ready()
        assert torch.equal(ready[0], rows(1))
        assert ready[1] == 0.5
        assert arm.ready() is None
        assert arm.pending == 10
        arm.give_back(second)
        assert torch.equal(arm.ready()[0], rows(3))
        assert (arm.ready(), arm.pending) == (None, 0)

    def test_only_the_very_pull_is_expected(self):
        arm = make()
        mine = pull(arm)
        assert arm.expects(mine)
        assert not arm.expects(Pull("a", 0, 5, seed=1))
        assert not arm.expects(Pull("a", 1, 5, seed=0))

    def test_a_retired_arm_lets_go_of_everything_but_its_numbers(self):
        arm = make()
        for i in range(3):
            arm.add(rows(i), 2.0, NEEDS, 10)
        under_way = pull(arm)
        arm.retire("gone")
        assert (arm.retired, arm.stats.num_samples, arm.stats.cost) == ("gone", 15, 6.0)
        assert (arm.metric.num_samples, arm.trace, arm.pending) == (0, {}, 0)
        assert arm.expects(under_way)

    def test_without_a_sampler_nothing_can_be_drawn(self):
        with pytest.raises(InputError, match="a sampler for arm 'a', but got None"):
            make().carry_out(Pull("a", 0, 5, 0), MeanMetric(), "features")
        drawn = make(sampler=gaussian(1.0)).carry_out(Pull("a", 0, 5, 0), MeanMetric(), "features")
        assert drawn.shape == (5, 1)

    @pytest.mark.parametrize("told", [None, [1.0], torch.zeros(4, 1), torch.zeros(5, 3)])
    def test_rows_that_cannot_be_used_are_refused(self, told):
        with pytest.raises(ArmError, match="Expected"):
            make().checked(Pull("a", 0, 5, 0), told)


class TestNumbers:
    def test_all_numbers_are_refreshed_at_the_same_counts_for_all_arms(self):
        arm, other = make(growth=1.5), make("b", growth=1.5)
        for i in range(12):
            arm.add(rows(i), 0.0, NEEDS, 15)
        for i in range(7):
            other.add(rows(-i), 0.0, (), 15)
        # Looks at 1 and 2 pulls, at the end of the burn-in (3), and then at every growth by a half, rounded up.
        assert list(arm.trace) == [5, 10, 15, 25, 40, 60]
        assert list(other.trace) == [5, 10, 15, 25]
        assert arm.fresh_stats() is arm.stats
        assert other.fresh_stats().witness != other.stats.witness

    def test_a_state_of_other_numbers_loads(self):
        arm, other = make(), make()
        for i in range(3):
            arm.add(rows(i), 0.0, NEEDS, 10)
        state = arm.state_dict()
        state["stats"] |= {"coarse_even": 1.0}  # as version 0.1 had it
        del state["given_back"]
        other.load_state_dict(state)
        assert (other.stats, other.trace, other.next_draw) == (arm.stats, arm.trace, 3)


class TestRoster:
    def test_a_survey_says_where_the_run_stands(self):
        arms = roster(2, 1, 4, 3)
        arms["a3"].retire("gone")
        arms["a2"].held = True
        pull(arms["a1"])
        drawn, newcomers, spent, pending = arms.survey(10)
        assert [arm.name for arm in drawn] == ["a0", "a1"]
        assert [arm.name for arm in newcomers] == ["a1"]
        assert (spent, pending) == (50, 5)

    def test_without_arms_there_is_nothing_to_do(self):
        with pytest.raises(InputError, match="at least one arm"):
            Roster().survey(10)
        arms = roster(1)
        arms["a0"].retire("gone")
        with pytest.raises(ArmError, match=r"all of them have been retired \(a0: gone"):
            arms.survey(10)
        held = roster(1)
        held["a0"].held = True
        assert held.survey(10).drawn == []

    def test_what_was_drawn_since_an_arm_joined(self):
        # The second arm joined when the first had 20 samples, the third when the second had 10.
        arms = roster(4, 2)
        arms.join("late", MeanMetric(), None, 1.05)
        arms["a1"].add(rows(), 0.0, NEEDS, 10)
        assert [arms.drawn_since(arm) for arm in arms.values()] == [20, 15, 5]
        arms["late"].held = True
        assert arms.drawn_since(arms["late"]) == 0

    def test_a_board_shows_what_is_under_way(self):
        arms = roster(2, 3)
        pull(arms["a1"])
        board = arms.board(arms.values(), 25, 0.1)
        assert (dict(board.pending), board.spent, board.delta) == ({"a0": 0, "a1": 5}, 25, 0.1)
        assert board.compare("a1", "a0").n == 10

    @pytest.mark.parametrize(("name", "sampler"), [("", None), (3, None), ("a0", None), ("new", 5)])
    def test_names_and_samplers_are_checked(self, name, sampler):
        with pytest.raises(InputError, match="Expected"):
            roster(1).check_new(name, sampler)

    def test_a_budget_below_the_burn_in_is_warned_of(self):
        with pytest.warns(UserWarning, match="needs 10 more samples, but 5 are left"):
            roster(1, 1).warn_of_a_small_budget(10, 15)
        roster(1, 1).warn_of_a_small_budget(10, 20)
