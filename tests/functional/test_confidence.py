"""Widths of confidence sequences, and the moments they are multiplied with."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tm_bandit.errors import InputError
from tm_bandit.functional.confidence import ScoreMoments, deviation, lil_width, mixture_width, sequence_width


def test_the_mixture_is_tightest_near_a_hundred_samples():
    counts = np.unique(np.geomspace(10, 5000, 200).astype(int))
    scaled = [math.sqrt(n) * mixture_width(int(n), 0.05) for n in counts]
    assert 60 < counts[int(np.argmin(scaled))] < 160


@pytest.mark.parametrize(("count", "expected"), [(20, 3.04), (50, 2.81), (100, 2.78), (500, 2.92), (3000, 3.18)])
def test_the_mixture_has_its_published_values(count, expected):
    assert math.sqrt(count) * mixture_width(count, 0.05) == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize("width", [mixture_width, lil_width])
def test_widths_shrink_with_samples_and_grow_with_confidence(width):
    assert width(100, 0.05) > width(200, 0.05) > width(400, 0.05)
    assert width(100, 0.01) > width(100, 0.05) > width(100, 0.2)
    for count in (20, 100, 1000):
        # Anytime costs something over one look at a fixed sample count.
        assert width(count, 0.05) > stats.norm.isf(0.05) / math.sqrt(count)


def test_the_safer_sequence_is_wider():
    for count in (20, 100, 1000, 10_000):
        assert lil_width(count, 0.025) > mixture_width(count, 0.025)


def test_normal_means_cross_no_more_often_than_promised():
    """Standard normal scores, looked at after each of 2,000 samples: 1,000 runs, 5 % plus two standard errors."""
    generator = np.random.default_rng(0)
    counts = np.arange(1, 2001)
    means = generator.standard_normal((1000, 2000)).cumsum(1) / counts
    for kind in ("mixture", "lil"):
        width = np.array([sequence_width(int(n), 0.05, kind) for n in counts])
        share = (means > width)[:, 9:].any(1).mean()
        assert share <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 1000)
    fixed = (means > stats.norm.isf(0.05) / np.sqrt(counts))[:, 9:].any(1).mean()
    assert fixed > 0.2  # what peeking does to an ordinary interval


def test_moments_equal_scipy():
    scores = torch.from_numpy(np.random.default_rng(1).gamma(2.0, size=500))
    moments = ScoreMoments.of(scores)
    assert moments.count == 500
    assert moments.mean == pytest.approx(float(scores.mean()))
    assert moments.std == pytest.approx(float(scores.std()))
    assert moments.skewness == pytest.approx(float(stats.skew(scores.numpy())))
    assert moments.stderr == pytest.approx(float(stats.sem(scores.numpy())))


def test_huge_scores_do_not_overflow():
    scores = torch.from_numpy(np.random.default_rng(1).gamma(2.0, size=500))
    huge, tame = ScoreMoments.of(1e140 * scores), ScoreMoments.of(scores)
    assert huge.std == pytest.approx(1e140 * tame.std)
    assert huge.skewness == pytest.approx(tame.skewness)


@pytest.mark.parametrize("value", [0.0, 1e-8, 3.7, 1e8])
def test_equal_scores_have_no_spread(value):
    moments = ScoreMoments.of(torch.full((50,), value, dtype=torch.float64))
    assert moments.std <= 1e-12 * max(value, 1e-300)
    assert moments.skewness == 0.0
    assert deviation(moments, 0.05, upper=False) <= 1e-11 * max(value, 1e-300)


def test_too_few_scores_say_nothing():
    assert deviation(ScoreMoments.of(torch.empty(0)), 0.05, upper=True) == math.inf
    assert deviation(ScoreMoments.of(torch.ones(1)), 0.05, upper=True) == math.inf
    assert ScoreMoments.of(torch.ones(1)).stderr == math.inf
    assert deviation(ScoreMoments(10, 0.0, math.inf, 0.0), 0.05, upper=True) == math.inf


def test_a_long_tail_widens_its_own_side_only():
    tame, tailed = ScoreMoments(100, 0.0, 1.0, 0.0), ScoreMoments(100, 0.0, 1.0, 2.0)
    assert deviation(tailed, 0.05, upper=True) > deviation(tame, 0.05, upper=True)
    assert deviation(tailed, 0.05, upper=False) == deviation(tame, 0.05, upper=False)


@pytest.mark.parametrize(("count", "skewness"), [(20, 0.0), (100, 0.0), (100, 1.5), (7, -2.0)])
def test_the_deviation_is_its_formula(count, skewness):
    scores, width = ScoreMoments(count, 4.0, 2.5, skewness), mixture_width(count, 0.05)
    for upper, sign in ((True, 1.0), (False, -1.0)):
        tail = max(sign * skewness, 0.0) * (1 + 2 * count * width**2) / (6 * count)
        assert deviation(scores, 0.05, upper=upper) == pytest.approx(2.5 * (width + 3 * width / count + tail))


def test_an_unknown_sequence_is_refused():
    with pytest.raises(InputError, match="mixture"):
        sequence_width(10, 0.05, "normal")
