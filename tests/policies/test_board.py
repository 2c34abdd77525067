"""What a policy sees, and how two arms compare."""

import math

import pytest

from tests.policies.parts import arm
from tm_bandit.comparison import anytime_margin
from tm_bandit.policies import Board, compare


def numbers(name, n, witness, estimate, debiased, stderr=0.1, debiased_stderr=0.3):
    return arm(
        name,
        n,
        witness=witness,
        estimate=estimate,
        debiased=debiased,
        stderr=stderr,
        debiased_stderr=debiased_stderr,
    )


def test_margin_grows_with_arms_and_certainty():
    assert anytime_margin(1000, 0.05 / 5) < anytime_margin(1000, 0.05 / 50) < anytime_margin(1000, 0.005 / 50)
    # By hand: sqrt(1100 / 1000 * (2 ln 100 + ln 11)).
    assert anytime_margin(1000, 0.05 / 5) == pytest.approx(math.sqrt(1.1 * (2 * math.log(100) + math.log(11))))


def test_comparison_by_hand():
    first, second = numbers("a", 100, 2.0, 4.0, 3.0), numbers("b", 100, 1.0, 3.5, 1.4, 0.2, 0.4)
    found = compare(first, second, num_arms=3, delta=0.1)
    width = anytime_margin(100, 0.1 / 3) * math.sqrt(0.01 + 0.04)
    assert (found.n, found.correlation) == (100, 0.0)
    assert found.difference == pytest.approx(1.6)
    assert found.stderr == pytest.approx(0.5)
    assert (found.lower, found.upper) == pytest.approx((0.5 - width, 1.0 + width))


def test_comparing_the_other_way_round_changes_the_sign_alone():
    first, second = numbers("a", 100, 2.0, 4.0, 3.0), numbers("b", 100, 1.0, 3.5, 1.5, 0.2, 0.4)
    one, other = compare(first, second), compare(second, first)
    assert (one.difference, one.lower, one.upper) == (-other.difference, -other.upper, -other.lower)


@pytest.mark.parametrize(
    "second",
    [
        numbers("b", 50, 1.0, 2.0, 1.5),
        numbers("b", 100, 1.0, 2.0, 1.5, stderr=0.0),
        numbers("b", 100, 1.0, 2.0, 1.5, stderr=math.nan),
        numbers("b", 100, math.nan, 2.0, 1.5),
        numbers("b", 100, 1.0, math.nan, 1.5),
    ],
)
def test_where_too_little_is_known_the_interval_is_infinite(second):
    found = compare(numbers("a", 100, 2.0, 4.0, 3.0), second)
    assert (found.lower, found.upper) == (-math.inf, math.inf)
    assert found.difference == 1.5


def test_a_board_is_the_sequence_that_policies_had_before():
    arms = [arm("a", 20), arm("b", 10)]
    board = Board(arms)
    assert list(board) == arms
    assert (len(board), board[0], board[1:], board["b"]) == (2, arms[0], [arms[1]], arms[1])
    assert arms[1] in board
    assert (board.pending, board.spent) == ({}, 0)
    with pytest.raises(KeyError):
        board["c"]


def test_arms_are_compared_at_the_largest_common_count():
    now = [numbers("a", 400, 0.0, 0.0, 2.0), numbers("b", 100, 1.0, 1.0, 3.0)]
    then = {50: numbers("a", 50, 0.0, 0.0, 9.0), 100: numbers("a", 100, 0.5, 0.5, 5.0), 400: now[0]}
    board = Board(now, traces={"a": then, "b": {50: numbers("b", 50, 0.0, 0.0, 0.0), 100: now[1]}})
    assert board.compare("a", "b") == compare(then[100], now[1])
    assert board.only(now[:1]).compare("a", "a").difference == 0.0
    # Without a common count only the latest numbers are left.
    assert Board(now).compare("a", "b") == compare(*now)


def test_samples_under_way_count_as_promised():
    board = Board([arm("a", 20), arm("b", 10)], pending={"b": 15}, spent=30)
    assert [board.promised(a) for a in board] == [20, 25]
