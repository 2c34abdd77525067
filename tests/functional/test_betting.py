"""Betting bounds: equal to a plainly written gambler, and above the mean no more often than promised."""

import math

import pytest
import torch

from tm_bandit.errors import InputError
from tm_bandit.functional import betting_lower_bound

RUNS, LOOKS = 200, (2, 3, 5, 8, 12, 20, 40, 80, 160, 320)


def capital(scores, alpha, mean):
    """The logarithm of a gambler's capital, straight from the formulas, one score at a time."""
    total = 0.0
    for i, score in enumerate(scores, start=1):
        earlier = scores[: i - 1]
        means = [(0.5 + sum(earlier[: j + 1])) / (j + 2) for j in range(i - 1)]
        variance = (0.25 + sum((x - m) ** 2 for x, m in zip(earlier, means, strict=True))) / i
        bet = math.sqrt(2 * math.log(1 / alpha) / (variance * i * math.log(1 + i)))
        total += math.log(1 + min(bet, 0.5 / mean) * (score - mean))
    return total


def draw(kind, generator, shape=(RUNS, LOOKS[-1])):
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    return {"rare": (uniform < 0.05).double(), "even": (uniform < 0.5).double(), "skewed": uniform**4}[kind]


MEANS = {"rare": 0.05, "even": 0.5, "skewed": 0.2}


@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_the_bound_is_where_the_capital_is_what_it_may_be(alpha):
    scores = draw("skewed", torch.Generator().manual_seed(1), (40,))
    bound = float(betting_lower_bound(scores, alpha))
    assert capital(scores.tolist(), alpha, bound) == pytest.approx(math.log(1 / alpha), abs=1e-8)
    assert 0 < bound < float(scores.mean())


def test_series_are_independent_of_each_other():
    scores = draw("even", torch.Generator().manual_seed(2), (5, 30))
    together = betting_lower_bound(scores, 0.05)
    assert torch.equal(together, torch.stack([betting_lower_bound(series, 0.05) for series in scores]))


@pytest.mark.parametrize("kind", MEANS)
@pytest.mark.parametrize("upper", [False, True])
def test_coverage_from_two_scores_on(kind, upper):
    scores, mean = draw(kind, torch.Generator().manual_seed(3)), MEANS[kind]
    if upper:
        scores, mean = 1 - scores, 1 - mean
    crossed = torch.zeros(RUNS, dtype=torch.bool)
    for count in LOOKS:
        crossed |= betting_lower_bound(scores[:, :count], 0.05) > mean
    assert int(crossed.sum()) <= 0.05 * RUNS


def test_it_tightens_to_the_mean():
    scores = draw("skewed", torch.Generator().manual_seed(4), (20000,))
    bound = float(betting_lower_bound(scores, 0.05))
    # Six standard errors: an anytime bound of 20,000 scores of standard deviation 0.27.
    assert float(scores.mean()) - 0.012 < bound < 0.2


def test_nothing_is_known_of_nothing():
    assert float(betting_lower_bound(torch.zeros(0), 0.05)) == 0.0
    assert float(betting_lower_bound(torch.zeros(100), 0.05)) == 0.0


@pytest.mark.parametrize("bad", [1.01, -0.01, math.nan])
def test_scores_outside_of_the_unit_interval_are_refused(bad):
    with pytest.raises(InputError, match=r"Expected scores in \[0, 1\]"):
        betting_lower_bound(torch.tensor([0.5, bad]), 0.05)
