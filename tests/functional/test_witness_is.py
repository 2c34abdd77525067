"""Witnesses of the Inception Score: on the right side whatever they are, from sums that do not grow."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests._make import class_probs, fold_sums, marginal_sums
from tm_bandit.functional import class_sums, crossfit_marginals, log_inception_score, predict_marginal, score_probs
from tm_bandit.functional.confidence import ScoreMoments
from tm_bandit.functional.crossfit import fold_numbers
from tm_bandit.functional.witness_is import (
    block_index,
    block_sums,
    crossfit_mean,
    moments_of_sums,
    recent_spread,
    uniform_prior,
)
from tm_bandit.metrics.marginal_stream import FOLDS, witness_moments


def entropy(probs):
    return torch.special.entr(probs).sum()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), classes=st.integers(2, 30), sharpness=st.floats(0, 12))
def test_no_witness_falls_below_the_score(seed, classes, sharpness):
    """For the empirical distribution of any samples, the mean score under any marginal is at least log IS."""
    probs = class_probs(30, classes, sharpness, seed)
    marginal = class_probs(1, classes, 1.0, seed + 1)[0]
    exact = float(log_inception_score(class_sums(probs)))
    assert float(score_probs(probs, marginal).mean()) >= exact - 1e-12
    best = probs.mean(0)
    assert float(score_probs(probs, best).mean()) == pytest.approx(exact, abs=1e-12)


def test_the_mean_from_sums_is_the_mean_of_scores():
    probs = class_probs(203)
    prob, num = fold_sums(probs)
    witnesses = crossfit_marginals(prob, num, uniform_prior(20))
    own = fold_numbers(0, 203)
    scores = torch.cat([score_probs(probs[own == fold], witnesses[fold]) for fold in range(FOLDS)])
    assert float(crossfit_mean(prob, num, entropy(probs), witnesses)) == pytest.approx(float(scores.mean()), rel=1e-12)


def test_a_fold_never_enters_its_own_witness():
    probs = class_probs(100)
    changed = probs.clone()
    changed[fold_numbers(0, 100) == 3] = class_probs(10, seed=9, sharpness=12.0)
    before, after = (crossfit_marginals(*fold_sums(rows), uniform_prior(20)) for rows in (probs, changed))
    assert torch.allclose(before[3], after[3], rtol=1e-12)
    assert not torch.allclose(before[4], after[4], rtol=1e-3)


def test_few_samples_are_smoothed_more_than_many():
    prior = uniform_prior(50)
    few, many = (predict_marginal(*fold_sums(class_probs(count, 50, 8.0)), prior) for count in (20, 5000))
    assert float(few.min()) > 0.2 / 50
    assert float((many - 1 / 50).abs().max()) < 0.3 / 50


def test_a_few_samples_of_one_class_prove_nothing():
    """Ten sure samples of a hundred classes, three of them of one class and two of another, as happens by chance."""
    label = torch.tensor([3, 3, 3, 8, 8, 20, 31, 47, 66, 90])
    probs = torch.full((10, 100), 1e-4, dtype=torch.float64)
    probs[torch.arange(10), label] = 1 - 99e-4
    truth = math.log(100) - float(entropy(probs)) / 10  # if all classes are equally likely
    scores = witness_moments(marginal_sums(probs), entropy(probs), uniform_prior(100))
    assert scores.mean > truth - 0.1


def test_blocks_double():
    assert block_index(torch.tensor([0, 9, 10, 19, 20, 40, 10 * 2**20])).tolist() == [0, 0, 1, 1, 2, 3, 21]
    assert int(block_index(torch.tensor(2**62))) == 39


def test_block_sums_give_the_moments_back():
    scores = torch.rand(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    blocks = block_sums(scores[:123], 0) + block_sums(scores[123:], 123)
    everything = moments_of_sums(blocks.sum(0))
    exact = ScoreMoments.of(scores)
    assert (everything.count, everything.mean) == (500, pytest.approx(exact.mean))
    assert everything.std == pytest.approx(exact.std)
    assert everything.skewness == pytest.approx(exact.skewness, abs=1e-9)
    assert recent_spread(blocks).count == 180 + 160  # the blocks from 160 and from 320 on: more than half
    assert recent_spread(block_sums(scores[:30], 0)).count == 30
