"""Comparisons of two arms, and panels of several."""

import math

import numpy as np
import pytest
import torch

from tm_bandit.comparison import Comparison, Pair, anytime_margin, fit_margin, has_few_values, in_units


def test_the_margin_is_the_formula():
    n, delta, r = 250, 0.1, 20.0
    expected = math.sqrt((n + r) / n * math.log((n + r) / (r * delta**2)))
    assert anytime_margin(n, delta) == pytest.approx(expected)


def test_the_margin_is_hardly_ever_crossed():
    """A thousand means of up to two thousand Gaussians, looked at after each; the share that crosses is below delta."""
    steps = torch.randn(1000, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(1)
    margin = torch.tensor([anytime_margin(n, 0.1) * math.sqrt(n) for n in range(1, 2001)], dtype=torch.float64)
    crossed = float((steps.abs() > margin).any(1).double().mean())
    assert 0.02 < crossed <= 0.1


def test_the_margin_of_the_fit_is_two_errors_and_more_at_small_counts():
    assert [fit_margin(n) for n in (1, 25, 50, 100, 10_000)] == pytest.approx([102.0, 6.0, 4.0, 3.0, 2.01])


@pytest.mark.parametrize(
    ("rows", "few"),
    [
        (torch.tensor([[0.7]]), True),  # one score may be one of two
        (torch.rand(1, 3), False),
        (torch.tensor([0.0, 1.0, 1.0, 0.0]), True),
        (torch.tensor([0.0, 1.0, 2.0, 0.0]), False),
        (torch.eye(3).repeat(2, 1), True),
        (torch.cat([torch.zeros(4, 1), torch.rand(4, 1)], 1), False),  # only the first numbers are equal
        (torch.ones(6, 3), True),
        (torch.arange(12.0).repeat(6, 1), False),  # a collapsed model
    ],
)
def test_few_values_are_at_most_half_as_many_as_rows(rows, few):
    assert has_few_values(rows) is few


class TestUnits:
    found = Comparison(40, 0.2, 0.05, 0.5, 0.1, 0.3)

    def test_a_plain_score_has_its_sign_alone(self):
        assert in_units(self.found, 1.0, lambda loss: loss) == pytest.approx(self.found)
        expected = Comparison(40, -0.2, 0.05, 0.5, -0.3, -0.1)
        assert in_units(self.found, 1.0, lambda loss: -loss) == pytest.approx(expected)

    def test_the_inception_score_is_the_exponential(self):
        loss = -math.log(20.0)  # of the second arm, whose score is 20
        got = in_units(self.found, loss, lambda value: math.exp(-value))
        assert got.difference == pytest.approx(20 * math.exp(-0.2) - 20)
        assert (got.lower, got.upper) == pytest.approx((20 * math.exp(-0.3) - 20, 20 * math.exp(-0.1) - 20))
        assert got.stderr == pytest.approx(0.05 * (20 - 20 * math.exp(-0.2)) / 0.2)
        assert (got.n, got.correlation) == (40, 0.5)

    @pytest.mark.parametrize("loss", [0.0, -math.log(20.0)])
    def test_the_error_of_no_difference_has_the_slope_of_the_unit(self, loss):
        none = self.found._replace(difference=0.0)
        got = in_units(none, loss, lambda value: math.exp(-value))
        assert got.stderr == pytest.approx(0.05 * math.exp(-loss), rel=0.03)  # of a secant

    def test_what_is_not_known_stays_so(self):
        unknown = self.found._replace(lower=-math.inf, upper=math.inf)
        got = in_units(unknown, 1.0, lambda loss: -loss)
        assert (got.lower, got.upper) == (-math.inf, math.inf)


class TestPair:
    scores = np.random.default_rng(0).normal(size=(2, 50)) + 2.0 * np.random.default_rng(1).normal(size=50)

    def test_numbers_are_those_of_numpy(self):
        pair = Pair.of(torch.from_numpy(self.scores))
        difference = self.scores[0] - self.scores[1]
        assert pair.difference == pytest.approx(difference.mean())
        assert pair.stderr == pytest.approx(difference.std(ddof=1) / 50**0.5)
        assert pair.correlation == pytest.approx(np.corrcoef(self.scores)[0, 1])

    def test_the_noise_of_the_fit_is_a_jackknife_over_its_parts(self):
        means = np.random.default_rng(2).normal(size=(2, 7))
        pair = Pair.of(torch.from_numpy(self.scores), torch.from_numpy(means))
        left_out = means[0] - means[1]
        fit = 6 / 7 * ((left_out - left_out.mean()) ** 2).sum()
        rows = (self.scores[0] - self.scores[1]).var(ddof=1) / 50
        assert (pair.stderr, pair.fit_stderr) == pytest.approx((rows**0.5, fit**0.5))

    def test_arms_that_are_opposed(self):
        noise = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert Pair.of(torch.stack([noise, -noise])).correlation == pytest.approx(-1.0)

    def test_scores_that_are_all_the_same_are_correlated_with_nothing(self):
        flat = torch.ones(10, dtype=torch.float64)
        assert Pair.of(torch.stack([flat, 2 * flat])) == (-1.0, 0.0, 0.0, 0.0, None)

    def test_twins_differ_by_nothing(self):
        scores = torch.randn(37, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 3 + 7
        assert Pair.of(torch.stack([scores, scores])) == (0.0, 0.0, pytest.approx(1.0), 0.0, None)
