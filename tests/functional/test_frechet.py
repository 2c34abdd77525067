"""The Frechet distance against scipy's square root, mpmath's digits and closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests._reference import frechet as oracle
from tm_bandit.errors import InputError
from tm_bandit.functional import covariance, frechet_distance, moments_from_rows
from tm_bandit.functional.frechet import largest_eigenvalue


def problem(seed, count, dim, decay=0.0):
    generator = np.random.default_rng(seed)
    scale = np.arange(1, dim + 1) ** -decay
    mix = generator.normal(size=(dim, dim)) * scale
    sigma = mix @ mix.T / dim
    return generator.normal(size=(count, dim)) @ mix.T + 0.3, generator.normal(size=dim), sigma


def tensors(*arrays):
    return [torch.from_numpy(array) for array in arrays]


@pytest.mark.parametrize(("count", "dim"), [(40, 6), (7, 6), (200, 16)])
def test_the_distance_equals_scipy(count, dim):
    rows, mu, sigma = problem(count, count, dim)
    expected = oracle.distance(rows, mu, sigma)
    x, m, s = tensors(rows, mu, sigma)
    own = moments_from_rows(x)
    assert float(frechet_distance(own.mean, covariance(own), m, s)) == pytest.approx(expected, rel=1e-9)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 12), dim=st.integers(1, 12), rank=st.integers(0, 12))
def test_symmetric_nonnegative_and_zero_on_itself(seed, count, dim, rank):
    generator = np.random.default_rng(seed)
    factor = generator.normal(size=(dim, rank))
    sigma = torch.from_numpy(factor @ factor.T)
    mu = torch.from_numpy(generator.normal(size=dim))
    own = moments_from_rows(torch.from_numpy(generator.normal(size=(count, dim))))
    there = frechet_distance(own.mean, covariance(own), mu, sigma)
    back = frechet_distance(mu, sigma, own.mean, covariance(own))
    scale = 1.0 + float(there)
    assert float(there) >= 0
    # A square root turns rounding of 1e-16 in a vanishing eigenvalue into 1e-8.
    assert abs(float(there) - float(back)) <= 1e-6 * scale
    assert float(frechet_distance(mu, sigma, mu, sigma)) <= 1e-6 * (1.0 + float(sigma.trace()))


def test_closed_form_for_commuting_covariances():
    a, b = torch.tensor([4.0, 9.0, 0.0]), torch.tensor([1.0, 16.0, 25.0])
    got = frechet_distance(torch.zeros(3), torch.diag(a), torch.tensor([0.0, 2.0, 0.0]), torch.diag(b))
    assert float(got) == pytest.approx(4 + 1 + 1 + 25, rel=1e-14)


@pytest.mark.parametrize("size", [1, 5, 129, 300])
def test_largest_eigenvalue(size):
    factor = torch.randn(size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    matrix = factor @ factor.T - size * torch.eye(size, dtype=torch.float64)
    assert largest_eigenvalue(matrix) == pytest.approx(float(torch.linalg.eigvalsh(matrix)[-1]), rel=1e-9)


def test_largest_eigenvalue_of_hard_cases():
    assert largest_eigenvalue(torch.zeros(200, 200, dtype=torch.float64)) == pytest.approx(0.0, abs=1e-300)
    assert largest_eigenvalue(torch.eye(200, dtype=torch.float64)) == pytest.approx(1.0, rel=1e-12)


def test_shapes_are_checked():
    with pytest.raises(InputError, match="two covariances"):
        frechet_distance(torch.zeros(3), torch.eye(3), torch.zeros(2), torch.eye(2))
