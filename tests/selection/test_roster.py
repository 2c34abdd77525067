"""All arms of a run, and how they compare."""

import pytest

from tests.selection.toy import MeanMetric, pull, rows
from tm_bandit import Pull
from tm_bandit.errors import ArmError, InputError
from tm_bandit.selection.costs import Costs
from tm_bandit.selection.pairs import Pairs
from tm_bandit.selection.roster import Roster
from tm_bandit.selection.verdict import Verdict

NEEDS = ("witness", "stderr")


def roster(*counts, growth=1.05):
    found = Roster(Pairs(paired=True))
    for i, count in enumerate(counts):
        found.join(f"a{i}", MeanMetric(), None, growth)
        for _ in range(count):
            found[f"a{i}"].add(rows(i), 0.0, NEEDS, 10)
    return found


def verdict(arms, before=None):
    return arms.verdict(
        {arm.name: arm.stats for arm in arms.values()},
        burn_in=10,
        delta=0.05,
        epsilon=0.0,
        certifies_from=None,
        policy=None,
        before=before or Verdict(None, "open"),
    )


def test_a_survey_says_where_the_run_stands():
    arms = roster(2, 1, 4, 3)
    arms["a3"].retire("gone")
    arms["a2"].held = True
    pull(arms["a1"])
    drawn, newcomers, spent, pending = arms.survey(10)
    assert [arm.name for arm in drawn] == ["a0", "a1"]
    assert [arm.name for arm in newcomers] == ["a1"]
    assert (spent, pending) == (50, 5)


def test_without_arms_there_is_nothing_to_do():
    with pytest.raises(InputError, match="at least one arm"):
        roster().survey(10)
    arms = roster(1)
    arms["a0"].retire("gone")
    with pytest.raises(ArmError, match=r"all of them have been retired \(a0: gone"):
        arms.survey(10)
    held = roster(1)
    held["a0"].held = True
    assert held.survey(10).drawn == []


def test_a_race_may_begin_once_all_are_seen_if_prices_differ():
    arms = roster(2, 1, 0)
    first, both = [arms["a0"], arms["a1"]], {"a0": 1.0, "a1": 50.0, "a2": 50.0}
    assert not arms.all_seen(first)
    arms.costs = Costs("cost", both)
    assert arms.all_seen(first)
    assert not arms.all_seen(arms.values())
    arms.costs = Costs("cost", dict.fromkeys(both, 50.0))
    assert not arms.all_seen(first)


def test_what_was_drawn_since_an_arm_joined():
    # The second arm joined when the first had 20 samples, the third when the second had 10.
    arms = roster(4, 2)
    arms.join("late", MeanMetric(), None, 1.05)
    arms["a1"].add(rows(), 0.0, NEEDS, 10)
    assert [arms.drawn_since(arm) for arm in arms.values()] == [20, 15, 5]
    arms["late"].held = True
    assert arms.drawn_since(arms["late"]) == 0


def test_a_board_shows_what_is_under_way():
    arms = roster(2, 3)
    pull(arms["a1"])
    board = arms.board(arms.values(), 25, 0.1)
    assert (dict(board.pending), board.spent, board.delta) == ({"a0": 0, "a1": 5}, 25, 0.05)
    assert board.compare("a1", "a0").n == 10


@pytest.mark.parametrize(("name", "sampler"), [("", None), (3, None), ("a0", None), ("new", 5)])
def test_names_and_samplers_are_checked(name, sampler):
    with pytest.raises(InputError, match="Expected"):
        roster(1).check_new(name, sampler)


def test_a_budget_below_the_burn_in_is_warned_of():
    with pytest.warns(UserWarning, match="needs 10 more samples, but 5 are left"):
        roster(1, 1).warn_of_a_small_budget(10, 15)
    roster(1, 1).warn_of_a_small_budget(10, 20)


def test_the_failure_probability_is_shared_by_all_arms_that_ever_joined():
    arms = roster(2, 2, 2)
    arms["a2"].retire("gone")
    assert arms.board(arms.active(), 20, 0.06).delta == pytest.approx(0.02)


def test_a_board_compares_on_the_same_draws_and_certifies_by_the_metric():
    arms = roster(4, 4)
    board = arms.board(arms.values(), 40, 0.1)
    # The rows of the two arms are the same but for a shift: nothing of the noise is left.
    found = board.compare("a1", "a0")
    assert (found.difference, found.correlation) == pytest.approx((1.0, 1.0))
    assert found.stderr == pytest.approx(0.0, abs=1e-9)
    assert board.certified("a1", "a0") == arms["a1"].metric.certificate(arms["a0"].metric, 20)


def test_a_round_ends_when_no_arm_in_step_is_still_to_draw():
    arms = roster(4, 3, 4, growth=1.0)
    assert not arms.ends_a_round(arms["a0"], ())
    assert arms.ends_a_round(arms["a0"], {"a1"})  # beaten arms draw no more
    arms["a1"].held = True
    assert arms.ends_a_round(arms["a0"], ())
    arms["a1"].held = False
    arms["a1"].retire("gone")
    assert arms.ends_a_round(arms["a0"], ())


def test_a_round_does_not_wait_for_an_arm_that_is_far_behind():
    arms = roster(8, 2, growth=1.0)
    assert arms.ends_a_round(arms["a0"], ())
    assert arms.ends_a_round(arms["a1"], ())


def test_nobody_has_won_against_an_arm_of_which_nothing_is_known():
    arms = roster(8, 8)
    assert verdict(arms).level == "likely"
    arms.join("new", MeanMetric(), None, 1.05)
    assert (verdict(arms).best, verdict(arms).level) == ("a0", "open")
    arms["new"].held = True  # before the end of its burn-in: no more will be known
    assert verdict(arms).level == "likely"


def test_the_same_rows_in_two_draws_are_one_model():
    arms = roster(0, 0)
    for name in ("a0", "a1"):
        for draw in range(2):
            arms[name].checked(Pull(name, draw, 5, 0), rows(10.0 * draw), lambda arm, draw: draw)
    assert arms.twins() == {"a1": "a0"}
