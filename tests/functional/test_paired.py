"""Scores of several arms on the same draws, against plain loops and known distances."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from tests._make import gaussian_rows, make_basis, random_covariance
from tm_bandit.comparison import Pair
from tm_bandit.functional import frechet_distance
from tm_bandit.functional.crossfit import FOLDS, fold_numbers, num_folds
from tm_bandit.functional.debias import bias_curve
from tm_bandit.functional.paired import paired_frechet_scores, paired_kl_scores, safe_bias
from tm_bandit.functional.witness_fd import (
    FrechetSums,
    FrechetWitness,
    block_size,
    damp_witness,
    fit_frechet_map,
    score_rows,
    sum_rows,
)
from tm_bandit.functional.witness_is import crossfit_marginals


def arms_of(count, dim=5, number=3, seed=0):
    """Arms that turn the same noise into rows, and the basis of a reference."""
    generator = torch.Generator().manual_seed(seed)
    basis = make_basis(torch.zeros(dim, dtype=torch.float64), random_covariance(dim, generator))
    noise = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return [(1.0 + 0.2 * i) * noise + 0.3 * i for i in range(number)], basis


def scored(arms, basis, common):
    """Scores of rows as they came."""
    return paired_frechet_scores([basis.rotate(rows) for rows in arms], basis, common=common)


def test_means_are_those_of_all_rows_by_the_witness_of_each_fold():
    arms, basis = arms_of(60, number=2)
    found = scored(arms, basis, common=True)
    fold = fold_numbers(0, 60) % num_folds(60)
    for held_out in range(num_folds(60)):
        sums = [sum_rows(basis.rotate(rows[fold != held_out]), basis.axes, block_size(60, 5)) for rows in arms]
        average = FrechetSums(*(((a + b) / 2)[None] for a, b in zip(*sums, strict=True)))
        fit = fit_frechet_map(average, basis.axes)
        witness = damp_witness(fit, basis.axes, torch.ones_like(fit.predicted))
        alone = FrechetWitness(*(part[0] for part in witness))
        for i, rows in enumerate(arms):
            expected = score_rows(alone, basis.rotate(rows)).mean() * basis.scale**2
            assert found.means[i, held_out] == pytest.approx(float(expected))


@pytest.mark.parametrize(("one", "two"), [(1.0, 0.9), (1.0, 1.3), (1.05, 0.9)])
def test_next_to_the_reference_the_noise_of_the_fit_is_counted(one, two):
    """Arms on either side of the reference, on the same noise: the stated error is the spread over a hundred runs."""
    dim, count = 8, 60
    eye = torch.eye(dim, dtype=torch.float64)
    basis = make_basis(torch.zeros(dim, dtype=torch.float64), eye)
    found = []
    for seed in range(100):
        noise = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        found.append(Pair.of(*scored([one * noise, two * noise], basis, common=True)))
    spread = np.std([pair.difference for pair in found])
    stated = np.median([math.hypot(pair.stderr, pair.fit_stderr) for pair in found])
    assert 0.7 < stated / spread < 2.0
    # The truth is dim ((one - 1)^2 - (two - 1)^2), below zero; rows alone would be as sure of the wrong sign.
    assert np.mean([pair.difference for pair in found]) < 0.0
    assert (
        max(pair.difference - 3 * math.hypot(pair.stderr, pair.fit_stderr) for pair in found) <= 0.0
    )  # zero where the witness says nothing


def looped(arms, basis, common):
    """One witness per fold, fitted on the rows of the other folds, in a plain loop."""
    count, dim = arms[0].shape
    folds = num_folds(count) if common else FOLDS
    fold = fold_numbers(0, count) % folds
    scores = torch.full((len(arms), count), torch.nan, dtype=torch.float64)
    for held_out in range(folds):
        sums = [sum_rows(basis.rotate(rows[fold != held_out]), basis.axes, block_size(count, dim)) for rows in arms]
        if common:
            average = [sum(parts) / len(arms) for parts in zip(*sums, strict=True)]
            sums = [FrechetSums(*average)] * len(arms)
        for i, (training, rows) in enumerate(zip(sums, arms, strict=True)):
            fit = fit_frechet_map(FrechetSums(*(part[None] for part in training)), basis.axes)
            witness = damp_witness(fit, basis.axes, torch.ones_like(fit.predicted))
            alone = FrechetWitness(*(part[0] for part in witness))
            scores[i, fold == held_out] = score_rows(alone, basis.rotate(rows[fold == held_out]))
    return scores * basis.scale**2


@pytest.mark.parametrize("common", [True, False])
@pytest.mark.parametrize("count", [23, 300])
def test_scores_are_those_of_a_plain_loop_over_the_folds(count, common):
    arms, basis = arms_of(count)
    scores = scored(arms, basis, common=common).scores
    assert scores.shape == (3, count)
    assert torch.allclose(scores, looped(arms, basis, common), rtol=1e-8, atol=1e-8)


def test_no_row_is_scored_by_a_witness_that_has_seen_it_or_its_partner():
    arms, basis = arms_of(60)
    before = scored(arms, basis, common=True).scores
    changed = [rows.clone() for rows in arms]
    changed[0][7] += 50.0
    after = scored(changed, basis, common=True).scores
    fold = fold_numbers(0, 60) % num_folds(60)
    same = fold == fold[7]
    assert torch.allclose(after[1:, same], before[1:, same])
    assert not torch.allclose(after[1:, ~same], before[1:, ~same])


@pytest.mark.parametrize("common", [True, False])
def test_the_mean_difference_is_that_of_the_distances(common):
    """Gaussians of known distances; the noise that they share cancels, what is left is within four standard errors."""
    dim, count = 6, 4000
    generator = torch.Generator().manual_seed(3)
    eye = torch.eye(dim, dtype=torch.float64)
    zero = torch.zeros(dim, dtype=torch.float64)
    basis = make_basis(zero, eye)
    noise = gaussian_rows(count, zero, eye, generator)
    shifts, scales = (0.4, 0.45), (1.2, 1.25)
    arms = [scale * noise + shift for shift, scale in zip(shifts, scales, strict=True)]
    truths = [
        float(frechet_distance(zero + shift, scale**2 * eye, zero, eye))
        for shift, scale in zip(shifts, scales, strict=True)
    ]
    one, two = scored(arms, basis, common=common).scores
    error = float((two - one).std()) / count**0.5
    assert abs(float((two - one).mean()) - (truths[1] - truths[0])) < 4 * error
    # Four standard errors are less than a third of the difference, and of what two independent runs would have.
    assert 12 * error < truths[1] - truths[0]
    assert 3 * error < float(torch.hypot(one.std(), two.std())) / count**0.5


@pytest.mark.parametrize("common", [True, False])
def test_kl_scores_are_those_of_scipy(common):
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(80, 4, generator=generator, dtype=torch.float64) + torch.tensor([2.0, 0.0, 0.0, -2.0])
    arms = torch.stack([logits.softmax(1), (0.5 * logits).softmax(1)])
    prior = torch.full((1, 4), 0.25, dtype=torch.float64)
    scores, means = paired_kl_scores(arms, prior, common=common)
    fold = fold_numbers(0, 80) % num_folds(80)
    for i in range(2):
        trained = arms.mean(0) if common else arms[i]
        sums = torch.stack([trained[fold == k].sum(0) for k in range(num_folds(80))])
        marginals = crossfit_marginals(sums, fold.bincount().double(), prior)
        expected = [entropy(row, marginals[k]) for row, k in zip(arms[i], fold.tolist(), strict=True)]
        assert scores[i].tolist() == pytest.approx(expected)
        by_fold = [np.mean([entropy(row, marginal) for row in arms[i]]) for marginal in marginals]
        assert means[i].tolist() == pytest.approx(by_fold)


def test_a_class_of_probability_zero_costs_nothing():
    sure = torch.eye(3, dtype=torch.float64).repeat(20, 1)
    scores = paired_kl_scores(
        torch.stack([sure, sure]), torch.full((1, 3), 1 / 3, dtype=torch.float64), common=False
    ).scores
    assert bool(scores.isfinite().all())
    assert torch.equal(scores[0], scores[1])
    assert float(scores.mean()) == pytest.approx(float(np.log(3)), abs=0.02)


def plug_in_distance(rows, basis):
    """The distance with the 1/n covariance, by the textbook's formula."""
    reference = torch.diag(basis.axes.eigenvalues)
    moments = rows.mean(0), torch.cov(rows.T, correction=0), torch.zeros(len(reference)).double(), reference
    return float(frechet_distance(*moments)) * basis.scale**2


def test_the_bias_that_is_taken_off_is_that_of_rows_really_left_out():
    generator = torch.Generator().manual_seed(5)
    basis = make_basis(torch.zeros(3, dtype=torch.float64), random_covariance(3, generator))
    rows = basis.rotate(torch.randn(1_000, 3, generator=generator, dtype=torch.float64).pow(3) + 0.5)
    others = [plug_in_distance(torch.cat([rows[:i], rows[i + 1 :]]), basis) for i in range(1_000)]
    jackknife = 999 * (np.mean(others) - plug_in_distance(rows, basis))
    assert safe_bias(rows, basis) == pytest.approx(0.7 * jackknife, rel=1e-3)
    assert safe_bias(rows[:999], basis) == 0.0


@pytest.mark.parametrize("power", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("count", [1_000, 1_300, 2_000, 4_000])
def test_seven_tenths_of_the_slope_are_less_than_the_bias_of_gaussian_rows(power, count):
    """Where rows are as many as dimensions the slope is 1.4 times the bias; with 0.8 of it the test fails there."""
    values = torch.arange(1, 1_001, dtype=torch.float64) ** -power
    step = count // 20
    slope = count * (bias_curve(values, count - step) - bias_curve(values, count + step)) / (2 * step)
    assert 0.5 * slope < 0.7 * slope < bias_curve(values, count)


@pytest.mark.parametrize("tails", [1, 3])
def test_what_is_taken_off_is_less_than_the_bias_on_average(tails):
    """A perfect generator, light and heavy tails: its plug-in distance is all bias."""
    basis = make_basis(torch.zeros(6, dtype=torch.float64), torch.eye(6, dtype=torch.float64))
    generator = torch.Generator().manual_seed(6)
    known = torch.randn(10**6, 6, generator=generator, dtype=torch.float64).pow(tails)
    samples = (known / float(known.std())).view(1_000, 1_000, 6)[:150]
    biased = np.mean([plug_in_distance(rows, basis) for rows in samples])
    taken = np.mean([safe_bias(rows, basis) for rows in samples])
    assert 0.5 * biased < taken < biased
