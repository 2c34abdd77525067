"""Every bonus against a plain version of its formula, and the paper's claims about them."""

import math

import numpy as np
import pytest
import torch

from tests._reference import frechet as oracle
from tm_bandit.bounds.fd_bounds import (
    CovarianceNorms,
    covariance_norms,
    fd_bonus_authors,
    fd_bonus_bounded,
    fd_bonus_naive,
    fd_bonus_paper,
    fd_burn_in,
    threshold_covariance,
)
from tm_bandit.errors import InputError

DELTA = 0.03


@pytest.fixture(scope="module")
def sample():
    generator = np.random.default_rng(5)
    mix = generator.normal(size=(10, 10))
    rows = generator.normal(size=(37, 10)) @ mix + 0.2
    rows /= np.linalg.norm(rows, axis=1).max()
    return rows, generator.normal(size=10), mix @ mix.T / 50


def inputs(sample, ddof):
    rows, mu, sigma = sample
    norms = covariance_norms(torch.from_numpy(oracle.covariance(rows, ddof)))
    return len(rows), norms, float(np.linalg.norm(rows.mean(axis=0) - mu)), oracle.root_trace(sigma)


@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize("kappa", [1.0, 0.3])
def test_paper(sample, printed, kappa):
    got = fd_bonus_paper(*inputs(sample, 0), DELTA, kappa, as_printed=printed)
    assert got == pytest.approx(oracle.bonus_paper(*sample, DELTA, kappa, printed), rel=1e-12)


@pytest.mark.parametrize("printed", [False, True])
def test_bounded(sample, printed):
    got = fd_bonus_bounded(*inputs(sample, 0), DELTA, dim=10, norm_bound=1.0, kappa=0.7, as_printed=printed)
    assert got == pytest.approx(oracle.bonus_bounded(*sample, DELTA, 1.0, 0.7, printed), rel=1e-12)


@pytest.mark.parametrize("naive", [False, True])
def test_authors_and_naive(sample, naive):
    rows, mu, sigma = sample
    count, norms, gap, root = inputs(sample, 1)
    got = (
        fd_bonus_naive(count, 10, gap, root, DELTA, 0.9)
        if naive
        else fd_bonus_authors(count, norms, gap, root, DELTA, 0.9)
    )
    expected = oracle.distance(rows, mu, sigma) - oracle.authors_score(rows, mu, sigma, DELTA, 0.9, naive=naive)
    assert got == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 2.0])
def test_threshold(sample, threshold):
    cov = oracle.covariance(sample[0], 1)
    kept = threshold_covariance(torch.from_numpy(cov), 37, threshold).numpy()
    limit = threshold * np.sqrt(2 * np.outer(np.diag(cov), np.diag(cov)) * np.log(10) / 37)
    np.testing.assert_array_equal(kept, np.where(np.abs(cov) < limit, 0.0, cov))
    assert (np.count_nonzero(kept) < 100) == (threshold > 0)


def test_the_printed_bound_on_the_mean_fails_and_the_corrected_one_holds():
    """Isotropic, d = 1000, n = 500: the printed radius is exceeded by nearly every sample mean."""
    dim, count, delta = 1000, 500, 0.05
    norms = CovarianceNorms(trace=dim, frobenius=math.sqrt(dim), spectral=1.0)

    def squared_radius(as_printed):
        # With nothing but the mean's term left, bonus = 2 r (r + gap) + the same other terms: solve with two gaps.
        near = fd_bonus_paper(count, norms, 0.0, 0.0, delta, as_printed=as_printed)
        far = fd_bonus_paper(count, norms, 1.0, 0.0, delta, as_printed=as_printed)
        return ((far - near) / 2) ** 2

    errors = np.random.default_rng(0).normal(size=(200, dim)) / math.sqrt(count)
    squares = (errors**2).sum(axis=1)
    assert (squares > squared_radius(True)).mean() == 1.0
    assert (squares > squared_radius(False)).mean() <= delta


def test_burn_in_of_the_papers_inception_arm():
    assert fd_burn_in(CovarianceNorms(trace=17.2, frobenius=3.0, spectral=1.0), 0.05) == pytest.approx(72.9, abs=0.01)


def test_constant_samples_give_finite_bonuses():
    still = CovarianceNorms(0.0, 0.0, 0.0)
    assert still.effective_rank == 1.0
    for bonus in (fd_bonus_paper(5, still, 1.0, 2.0, 0.05), fd_bonus_authors(5, still, 1.0, 2.0, 0.05)):
        assert bonus == 0.0


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, float("nan")])
def test_delta_is_checked(delta):
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        fd_bonus_authors(5, CovarianceNorms(1.0, 1.0, 1.0), 0.0, 1.0, delta)


def test_count_is_checked():
    with pytest.raises(InputError, match="at least 1"):
        fd_bonus_naive(0, 4, 0.0, 1.0, 0.05)
