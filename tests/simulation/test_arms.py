"""Simulated arms have the truth they claim."""

import math

import pytest
import torch

from tm_bandit.errors import InputError
from tm_bandit.functional.frechet import frechet_distance
from tm_bandit.simulation import (
    bank_arm,
    class_bank,
    gaussian_arm,
    paired_gaussian_arm,
    probability_arm,
)

GENERATOR = torch.Generator().manual_seed(0)


def moments(rows):
    return rows.mean(0), torch.cov(rows.T)


def test_gaussian_arm_draws_what_it_scores():
    root = torch.randn(4, 4, generator=GENERATOR, dtype=torch.float64)
    covariance, mean = root @ root.T, torch.tensor([1.0, -2.0, 0.0, 3.0], dtype=torch.float64)
    arm = gaussian_arm("a", mean, covariance, torch.zeros(4), torch.eye(4))
    rows = arm.sample(40_000, generator=torch.Generator().manual_seed(1))
    seen_mean, seen_covariance = moments(rows)
    # Four standard errors of the largest entry: 4 * |S| / sqrt(40000).
    assert torch.allclose(seen_mean, mean, atol=0.03 * float(covariance.norm()) ** 0.5)
    assert torch.allclose(seen_covariance, covariance, atol=0.03 * float(covariance.norm()))
    assert torch.equal(rows, arm.sample(40_000, generator=torch.Generator().manual_seed(1)))


def test_paired_arm_agrees_with_the_general_formula_and_with_its_samples():
    variances, reference = torch.tensor([4.0, 1.0, 0.5, 0.2, 2.0]), torch.tensor([3.0, 2.0, 1.0, 0.5, 0.1])
    pairs, mean = torch.tensor([[0, 3], [2, 1]]), torch.tensor([0.5, 0.0, 0.0, 1.0, 0.0])
    arm = paired_gaussian_arm("a", mean, variances, 0.7, pairs, reference)
    turn = torch.eye(5, dtype=torch.float64)
    for i, j in pairs.tolist():
        turn[i, i] = turn[j, j] = math.cos(0.7)
        turn[i, j], turn[j, i] = -math.sin(0.7), math.sin(0.7)
    covariance = turn @ torch.diag(variances.double()) @ turn.T
    zero = torch.zeros(5, dtype=torch.float64)
    exact = frechet_distance(mean.double(), covariance, zero, torch.diag(reference.double()))
    assert arm.score == pytest.approx(float(exact), rel=1e-9)
    seen = moments(arm.sample(40_000, generator=torch.Generator().manual_seed(2)))
    assert torch.allclose(seen[1], covariance, atol=0.15)
    assert torch.allclose(seen[0], mean.double(), atol=0.05)


def test_banks_are_drawn_with_replacement_and_have_exact_truth():
    rows = torch.randn(50, 3, generator=GENERATOR, dtype=torch.float64)
    arm = bank_arm("bank", rows, torch.zeros(3), torch.eye(3))
    mean, covariance = rows.mean(0), torch.cov(rows.T, correction=0)
    exact = frechet_distance(mean, covariance, torch.zeros(3).double(), torch.eye(3).double())
    assert arm.score == pytest.approx(float(exact))
    drawn = arm.sample(500, generator=torch.Generator().manual_seed(3))
    assert all(bool((rows == row).all(1).any()) for row in drawn)


def test_class_banks_score_lower_when_classes_are_dropped_or_unsure():
    def score(classes, sharpness):
        bank = class_bank(range(classes), 20, sharpness, 2000, torch.Generator().manual_seed(4))
        assert torch.allclose(bank.sum(1), torch.ones(2000, dtype=torch.float64))
        return probability_arm("a", bank).score

    assert 20 >= score(20, 9.0) > score(15, 9.0) > score(10, 9.0) > 1
    assert score(20, 9.0) > score(20, 6.0) > score(20, 3.0)
    with pytest.raises(InputError, match="classes"):
        probability_arm("a", torch.ones(3))
