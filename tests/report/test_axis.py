"""The axis: where values are, and which numbers are beside it."""

import math
from itertools import pairwise

import numpy as np
import pytest

from tm_bandit.report.axis import Axis, nice_ticks


@pytest.mark.parametrize("knee", [math.inf, 0.01])
def test_values_are_inside_in_order_and_the_ends_are_clipped(knee):
    values = [-0.3, 0.0, 0.02, 5.0, 80.0]
    axis = Axis.around(values, knee)
    places = [axis.place(value) for value in values]
    assert places[0] > 0
    assert places[-1] < 1
    assert min(np.diff(places)) > 0
    assert (axis.place(-math.inf), axis.place(math.inf)) == (0, 1)


def test_far_from_zero_equal_ratios_are_equal_distances():
    axis = Axis(0.0, 1000.0, knee=1e-3)
    first, second = (axis.place(10 * x) - axis.place(x) for x in (1.0, 10.0))
    assert first == pytest.approx(second, rel=1e-5)


@pytest.mark.parametrize("values", [[], [0.0], [3.0, 3.0]])
def test_an_axis_without_extent_has_some(values):
    axis = Axis.around(values)
    assert axis.low < axis.high
    assert len(axis.ticks()) >= 2


@pytest.mark.parametrize(("low", "high", "knee"), [(-0.5, 300.0, 0.02), (-1e-3, 9e4, 1e-4), (0.9, 40.0, 1.0)])
def test_numbers_of_a_logarithmic_axis_are_round_inside_and_apart(low, high, knee):
    axis = Axis(low, high, knee)
    ticks = axis.ticks()
    assert 3 <= len(ticks) <= 11
    assert low <= ticks[0] <= ticks[-1] <= high
    assert min(np.diff([axis.place(tick) for tick in ticks])) >= 0.1 - 1e-9
    assert all(tick == float(f"{tick:.0e}") for tick in ticks)


def test_small_numbers_have_room_for_all_their_digits():
    axis = Axis(-0.00001, 0.12, knee=0.00005)
    ticks = axis.ticks()
    for one, two in pairwise(ticks):
        letters = (len(f"{one:g}") + len(f"{two:g}")) / 2
        assert axis.place(two) - axis.place(one) >= 0.024 * letters  # on a page with long names, a letter takes that


def test_ticks_are_round_and_inside():
    for low, high in [(0.0, 1.0), (-3.2, 17.9), (1e-4, 2e-4), (1e6, 1.5e6)]:
        ticks = nice_ticks(low, high)
        assert 2 <= len(ticks) <= 7
        assert low <= ticks[0] <= ticks[-1] <= high
        steps = np.diff(ticks)
        np.testing.assert_allclose(steps, steps[0], rtol=1e-6)
