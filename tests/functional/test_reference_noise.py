"""What a finite reference does to an interval: each part against simulated references."""

import math

import pytest
import torch

from tm_bandit.functional import frechet_distance
from tm_bandit.functional.debias import bias_curve, second_order_noise
from tm_bandit.functional.reference_noise import ReferenceNoise, tail_ratio

DIM = 24


def normal(count, seed):
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def relu(count, seed):
    return (normal(count, seed) - 1.0).clamp_min(0)


def own_bias(sampler, count, truth):
    """Mean distance of references of so many rows from what they are a sample of, and its standard error."""
    found = [
        float(frechet_distance(rows.mean(0), torch.cov(rows.T), *truth))
        for rows in (sampler(count, seed) for seed in range(60))
    ]
    return sum(found) / 60, float(torch.tensor(found).std()) / math.sqrt(60)


def test_the_ends_solve_their_equations():
    noise = ReferenceNoise(0.3, 0.7)
    lower, upper = noise.lower(5.0), noise.upper(5.0)
    assert lower + 0.7 * math.sqrt(lower) + 0.3 == pytest.approx(5.0)
    assert upper - 0.7 * math.sqrt(upper) == pytest.approx(5.0)
    assert noise.lower(0.2) == 0.0
    assert noise.upper(math.inf) == math.inf
    assert ReferenceNoise(0.0, 0.0).lower(4.0) == ReferenceNoise(0.0, 0.0).upper(4.0) == 4.0


@pytest.mark.parametrize("count", [DIM // 2, DIM, 4 * DIM])
def test_the_bias_is_right_though_only_the_sample_s_eigenvalues_are_known(count):
    """Flat spectra are the worst: to a tenth of the simulated bias, which the sample's own curve is far below."""
    truth = torch.zeros(DIM, dtype=torch.float64), torch.eye(DIM, dtype=torch.float64)
    exact, _ = own_bias(normal, count, truth)
    curves = [
        bias_curve(torch.linalg.eigvalsh(torch.cov(normal(count, seed).T)).clamp_min(0), count) for seed in range(20)
    ]
    curve = sum(curves) / 20
    found = ReferenceNoise.of(curve, 0.0, 1.0, DIM, count, 0.025).excess
    assert found == pytest.approx(exact, rel=0.1)
    assert curve < 0.95 * exact


def test_rows_behind_a_relu_have_more_bias_and_the_tails_say_how_much():
    many = relu(200_000, 99)
    truth = many.mean(0), torch.cov(many.T)
    values, turn = torch.linalg.eigh(truth[1])
    exact, error = own_bias(relu, 20 * DIM, truth)
    ratio = tail_ratio((relu(4000, 98) - truth[0]) @ turn, values)
    gaussian = bias_curve(values, 20 * DIM)
    assert exact > 1.5 * gaussian
    assert abs(ratio * gaussian - exact) < 3 * error + 0.15 * exact


def test_gaussian_rows_have_no_tails_whatever_their_variances():
    spread = torch.logspace(0, -2, DIM, dtype=torch.float64)
    rows = normal(8000, 0) * spread.sqrt() * 3 + 2
    assert tail_ratio(rows, spread) == pytest.approx(1.0, abs=0.1)
    assert tail_ratio(torch.ones(9, DIM, dtype=torch.float64), spread) == 1.0


def test_noise_of_first_order_is_not_understated():
    """References of 200 rows and a generator that is a shifted, stretched copy: the spread of the distance."""
    count, mean, covariance = 200, torch.full((DIM,), 0.3).double(), 1.5 * torch.eye(DIM, dtype=torch.float64)
    found = [
        float(frechet_distance(mean, covariance, rows.mean(0), torch.cov(rows.T)))
        for rows in (normal(count, seed) for seed in range(100))
    ]
    exact = float(frechet_distance(mean, covariance, torch.zeros(DIM).double(), torch.eye(DIM).double()))
    quantile_one = ReferenceNoise.of(0.0, 0.0, 1.0, DIM, count, 0.1586552539)  # one standard deviation
    spread = float(torch.tensor(found).std())
    assert 1.0 * spread < quantile_one.slope * math.sqrt(exact) < 2.5 * spread


def test_noise_of_second_order_belongs_to_the_excess():
    noise = second_order_noise(torch.ones(DIM))
    found = (
        ReferenceNoise.of(1.0, noise, 1.0, DIM, 10**6, 0.025).excess
        - ReferenceNoise.of(1.0, 0.0, 1.0, DIM, 10**6, 0.025).excess
    )
    assert found == pytest.approx(1.959964 * noise / 10**6, rel=1e-5)
