"""What a policy sees, and how two arms compare."""

import math

import pytest

from tests.policies.parts import arm
from tm_bandit.comparison import Pair, anytime_margin
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


def test_comparison_of_independent_arms_by_hand():
    first, second = numbers("a", 100, 2.0, 4.0, 3.0), numbers("b", 100, 1.0, 3.5, 1.4, 0.2, 0.4)
    found = compare(first, second, delta=0.1)
    width = anytime_margin(100, 0.1) * 0.5
    assert (found.n, found.correlation) == (100, 0.0)
    assert found.difference == pytest.approx(1.6)
    assert found.stderr == pytest.approx(0.5)
    assert (found.lower, found.upper) == pytest.approx((1.6 - width, 1.6 + width))


@pytest.mark.parametrize("sharing", [0.0, 0.5, 1.0])
def test_comparison_on_the_same_draws_by_hand(sharing):
    first, second = numbers("a", 100, 2.4, 4.0, 3.0), numbers("b", 100, 1.9, 3.5, 1.4, 0.2, 0.4)
    found = compare(first, second, Pair(0.5, 0.2, sharing), delta=0.1)
    of_debiased = math.sqrt(0.09 + 0.16 - 2 * sharing * 0.3 * 0.4)
    error = sharing * 0.2 + (1 - sharing) * of_debiased
    difference = sharing * 0.5 + (1 - sharing) * 1.6
    width = anytime_margin(100, 0.1) * error
    assert found.correlation == sharing
    assert (found.difference, found.stderr) == pytest.approx((difference, error))
    # The debiased losses differ by 1.6, the witnesses by 0.5: both are in the interval, whatever its width.
    lower, reach = min(difference - width, 0.5), anytime_margin(100, 0.1) * of_debiased
    assert found.lower == pytest.approx(lower if lower > 0 else min(lower, 1.6 - reach))
    assert found.upper == pytest.approx(max(difference + width, 1.6 + reach))


def test_an_end_that_decides_is_final_and_the_others_allow_for_the_noise_of_the_debiased_losses():
    first, second = numbers("a", 100, 2.4, 4.0, 3.0), numbers("b", 100, 1.9, 3.5, 1.4)
    reach = 0.9 * anytime_margin(100, 0.05)
    decided, open_ = (compare(first, second, Pair(1.0, error, 1.0, debiased_stderr=0.9)) for error in (0.1, 0.4))
    width = anytime_margin(100, 0.05) * 0.1
    assert (decided.lower, decided.upper) == pytest.approx((min(1.0 - width, 0.5), 1.6 + reach))
    assert (open_.lower, open_.upper) == pytest.approx((1.6 - reach, 1.6 + reach))
    turned = compare(second, first, Pair(-1.0, 0.1, 1.0, debiased_stderr=0.9))
    assert (turned.lower, turned.upper) == pytest.approx((-decided.upper, -decided.lower))


def test_a_difference_must_show_above_the_draws_at_all_counts_and_above_the_errors_of_the_fit():
    first, second = numbers("a", 100, 3.0, 4.0, 4.0), numbers("b", 100, 1.0, 3.5, 1.4)
    for draws, fit in ((0.2, 0.1), (0.05, 0.3), (0.05, 0.6)):
        found = compare(first, second, Pair(1.0, draws, 1.0, fit, 0.01))
        assert found.stderr == pytest.approx(math.hypot(draws, fit))
        # The other numbers differ by more.
        width = max(anytime_margin(100, 0.05) * draws, 3 * fit)
        lower = 1.0 - width
        assert found.lower == pytest.approx(lower if lower > 0 else min(lower, 2.6 - 0.01 * anytime_margin(100, 0.05)))


@pytest.mark.parametrize(("witness", "debiased"), [(9.0, 1.0), (-9.0, 1.0), (1.0, 9.0), (1.0, -9.0)])
def test_an_arm_is_not_out_as_long_as_one_number_contradicts(witness, debiased):
    pair = Pair(1.0, 1e-3, 1.0)
    found = compare(numbers("a", 100, witness, 0.0, debiased), numbers("b", 100, 0.0, 0.0, 0.0), pair)
    assert found.difference == pytest.approx(1.0)
    assert found.lower <= min(witness, debiased, 1.0)
    assert found.upper >= max(witness, debiased, 1.0)


def test_opposed_noise_is_no_reason_for_a_narrow_interval():
    pair = Pair(1.0, 0.2, -1.0)
    found = compare(numbers("a", 100, 2.0, 4.0, 3.0), numbers("b", 100, 1.0, 3.5, 1.4, 0.2, 0.4), pair)
    assert (found.correlation, found.stderr) == pytest.approx((-1.0, 0.5))


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
        numbers("b", 100, 1.0, 2.0, 1.5, debiased_stderr=math.nan),
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


def test_where_prices_differ_all_samples_of_unbiased_losses_count():
    now = [numbers("a", 400, 0.0, 0.0, 2.0), numbers("b", 100, 1.0, 1.0, 3.0)]
    then = {100: numbers("a", 100, 0.5, 0.5, 5.0), 400: now[0]}
    prices, pair = {"a": 1.0, "b": 50.0}, Pair(1.5, 0.2, 0.6)

    def behind(first, second, pair=pair, **kwargs):
        known = {"traces": {"a": then, "b": {100: now[1]}}, "pair": lambda a, b, n: pair, **kwargs}
        return Board(now, **known).behind(first, second)

    for unbiased, paid in ((False, prices), (True, {}), (True, {"a": 2.0, "b": 2.0})):
        # 0.6 of the pair's difference at 100 samples, and 0.4 of 5 - 3.
        assert behind("a", "b", unbiased=unbiased, prices=paid) == pytest.approx(0.6 * 1.5 + 0.4 * 2.0)
    # 0.4 of 2 - 3, the losses that are known by now.
    assert behind("a", "b", unbiased=True, prices=prices) == pytest.approx(0.6 * 1.5 - 0.4)
    assert behind("b", "a", pair._replace(difference=-1.5), unbiased=True, prices=prices) == pytest.approx(-0.5)
    # Arms that share nothing, or the opposite: the latest losses alone.
    for share in (0.0, -0.5):
        assert behind("a", "b", pair._replace(correlation=share), unbiased=True, prices=prices) == pytest.approx(-1.0)
    # Without a common count there is nothing to add.
    apart = {"traces": {"a": then, "b": {50: now[1]}}, "unbiased": True, "prices": prices}
    assert behind("a", "b", **apart) == pytest.approx(-1.0)


def test_samples_under_way_count_as_promised():
    board = Board([arm("a", 20), arm("b", 10)], pending={"b": 15}, spent=30)
    assert [board.promised(a) for a in board] == [20, 25]


def test_a_board_asks_for_the_pair_at_the_common_count():
    now = [numbers("a", 400, 0.0, 0.0, 2.0), numbers("b", 100, 1.0, 1.0, 3.0)]
    traces = {"a": {100: numbers("a", 100, 0.5, 0.5, 5.0), 400: now[0]}, "b": {100: now[1]}}
    pair, asked = Pair(0.5, 0.2, 0.75), []
    board = Board(now, traces=traces, delta=0.01, pair=lambda *which: asked.append(which) or pair)
    assert board.compare("a", "b") == compare(traces["a"][100], now[1], pair, delta=0.01)
    assert asked == [("a", "b", 100)]


def test_a_certificate_of_the_difference_comes_before_the_two_intervals():
    arms = [arm("a", 20, optimistic=3.0, pessimistic=4.0), arm("b", 10, optimistic=1.0, pessimistic=2.5)]
    assert Board(arms).certified("a", "b") == 0.5
    assert Board(arms, certificate=lambda a, b: -1.0).certified("a", "b") == -1.0
