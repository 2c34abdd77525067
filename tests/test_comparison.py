"""Comparisons of two arms."""

import math

import pytest
import torch

from tm_bandit.comparison import Comparison, anytime_margin, compare_independent


def test_the_margin_is_the_formula():
    n, delta, r = 250, 0.1, 100.0
    expected = math.sqrt((n + r) / n * math.log((n + r) / (r * delta**2)))
    assert anytime_margin(n, delta) == pytest.approx(expected)


def test_the_margin_is_hardly_ever_crossed():
    """Two thousand walks of a thousand steps, looked at after each; the share that crosses is at most delta."""
    steps = torch.randn(2000, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(1)
    margin = torch.tensor([anytime_margin(n, 0.1) * math.sqrt(n) for n in range(1, 1001)], dtype=torch.float64)
    crossed = float((steps.abs() > margin).any(1).double().mean())
    assert 0.02 < crossed <= 0.1


def test_the_noise_of_two_independent_arms_adds_in_squares():
    found = compare_independent((5.0, 0.3), (3.0, 0.4), 100, 0.05)
    width = 0.5 * anytime_margin(100, 0.05)
    assert found == Comparison(100, 2.0, 0.5, 0.0, pytest.approx(2.0 - width), pytest.approx(2.0 + width))


@pytest.mark.parametrize(
    ("first", "n"), [((5.0, math.inf), 9), ((math.nan, 0.1), 9), ((math.inf, 0.1), 9), ((5.0, 0.1), 0)]
)
def test_what_is_not_known_proves_nothing(first, n):
    found = compare_independent(first, (3.0, 0.4), n, 0.05)
    assert (found.lower, found.upper) == (-math.inf, math.inf)
