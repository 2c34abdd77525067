"""Witnesses of the Frechet distance: on the right side whatever they are, tight when they are good."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests._make import gaussian_rows, make_basis, random_covariance
from tm_bandit.functional import frechet_distance, moments_from_rows
from tm_bandit.functional.witness_fd import (
    FrechetFit,
    FrechetSums,
    FrechetWitness,
    block_size,
    damp_witness,
    fit_frechet_map,
    gaussian_score_std,
    make_axes,
    score_rows,
    sum_rows,
)


def fit_witness(rows, basis, damping=1.0):
    """One witness, fitted on rows in plain coordinates."""
    single = sum_rows(basis.rotate(rows), basis.axes, block_size(*rows.shape))
    fit = fit_frechet_map(FrechetSums(*(part[None] for part in single)), basis.axes)
    witness = damp_witness(fit, basis.axes, torch.full_like(fit.predicted, damping))
    return FrechetWitness(*(part[0] for part in witness))


def score(witness, rows, basis):
    """The scores of rows in plain coordinates."""
    return score_rows(witness, basis.rotate(rows)) * basis.scale**2


def expected_score(witness, basis, mean, covariance):
    """Expectation of a score over a distribution with these moments, written out from the quadratic form."""
    turn = basis.projection.double()
    m = (mean - basis.center) @ turn
    c = turn.T @ covariance @ turn
    k = witness.block.shape[-1]
    quadratic = torch.diag(witness.curvature)
    quadratic[:k, :k] = witness.block
    value = (quadratic * c).sum() + m @ quadratic @ m + witness.linear @ m + witness.constant
    return float(value) * basis.scale**2


class TestOneWitness:
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(seed=st.integers(0, 10_000), dim=st.integers(2, 12), count=st.integers(2, 60), damping=st.floats(0.05, 1.0))
    def test_no_witness_exceeds_the_distance(self, seed, dim, count, damping):
        """Whatever rows it was fitted on, its expectation under any moments is at most their distance."""
        generator = torch.Generator().manual_seed(seed)
        reference, other, third = (random_covariance(dim, generator, decay) for decay in (1.0, 0.5, 2.0))
        means = torch.randn(3, dim, generator=generator, dtype=torch.float64)
        basis = make_basis(means[0], reference)
        witness = fit_witness(gaussian_rows(count, means[2], third, generator), basis, damping)
        truth = float(frechet_distance(means[1], other, means[0], reference))
        assert expected_score(witness, basis, means[1], other) <= truth * (1 + 1e-9) + 1e-9

    def test_the_best_witness_attains_it(self):
        generator = torch.Generator().manual_seed(0)
        reference, own = random_covariance(6, generator), random_covariance(6, generator, 0.5)
        mean = torch.randn(6, generator=generator, dtype=torch.float64)
        basis = make_basis(torch.zeros(6, dtype=torch.float64), reference)
        rows = gaussian_rows(100_000, mean, own, generator)
        moments = moments_from_rows(rows)
        witness = fit_witness(rows, basis)
        truth = float(frechet_distance(moments.mean, moments.scatter / moments.count, mean * 0, reference))
        found = expected_score(witness, basis, moments.mean, moments.scatter / moments.count)
        assert found == pytest.approx(truth, rel=2e-3)
        assert found <= truth

    def test_axes_beyond_the_block_are_stretched_as_transport_does(self):
        """Of 40 axes, 16 are in the block; with many rows the others are mapped by the ratio of standard deviations."""
        generator = torch.Generator().manual_seed(3)
        reference = torch.linspace(4.0, 1.0, 40, dtype=torch.float64)
        ratio = torch.linspace(0.3, 3.0, 40, dtype=torch.float64)
        axes = make_axes(reference)
        rows = torch.randn(50_000, 40, generator=generator, dtype=torch.float64) * (ratio * reference.sqrt())
        fit = fit_frechet_map(FrechetSums(*(part[None] for part in sum_rows(rows, axes, 16))), axes)
        torch.testing.assert_close(fit.diagonal[0], 1 / ratio[16:], rtol=0.02, atol=0.0)
        torch.testing.assert_close(fit.block[0].diagonal(), 1 / ratio[:16], rtol=0.02, atol=0.0)

    def test_scores_average_to_their_expectation(self):
        generator = torch.Generator().manual_seed(1)
        basis = make_basis(torch.ones(5, dtype=torch.float64), random_covariance(5, generator))
        rows = torch.randn(400, 5, generator=generator, dtype=torch.float64)
        witness = fit_witness(rows[:200], basis)
        moments = moments_from_rows(rows[200:])
        expected = expected_score(witness, basis, moments.mean, moments.scatter / moments.count)
        assert float(score(witness, rows[200:], basis).mean()) == pytest.approx(expected)

    def test_two_moments_are_all_that_counts(self):
        """Rows on the corners of a cube and Gaussian rows of the same moments have the same expected score."""
        generator = torch.Generator().manual_seed(2)
        basis = make_basis(torch.zeros(4, dtype=torch.float64), 2 * torch.eye(4, dtype=torch.float64))
        witness = fit_witness(torch.randn(50, 4, generator=generator, dtype=torch.float64) + 1, basis)
        corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 4)
        found = float(score(witness, corners, basis).mean())
        assert found == pytest.approx(
            expected_score(witness, basis, torch.zeros(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64))
        )

    def test_full_damping_is_the_trivial_witness(self):
        basis = make_basis(torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
        rows = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 2
        scores = score(fit_witness(rows, basis, damping=1e-9), rows, basis)
        assert scores.abs().max() < 1e-6

    def test_a_map_that_is_not_positive_says_nothing(self):
        axes = make_axes(torch.ones(2))
        bad = FrechetFit(-torch.eye(2).double()[None], torch.ones(1, 0).double(), *[torch.zeros(1, 2).double()] * 3)
        bad = bad._replace(predicted=torch.zeros(1).double())
        witness = damp_witness(bad, axes, torch.ones(1).double())
        assert score_rows(witness, torch.ones(1, 5, 2).double()).abs().max() == 0

    def test_gaussian_spread_equals_that_of_gaussian_rows(self):
        generator = torch.Generator().manual_seed(3)
        covariance = random_covariance(5, generator)
        basis = make_basis(torch.zeros(5, dtype=torch.float64), torch.eye(5, dtype=torch.float64))
        rows = gaussian_rows(200_000, torch.full((5,), 0.3, dtype=torch.float64), covariance, generator)
        sums = FrechetSums(*(part[None] for part in sum_rows(basis.rotate(rows), basis.axes, 5)))
        fit = fit_frechet_map(sums, basis.axes)
        witness = damp_witness(fit, basis.axes, torch.ones_like(fit.predicted))
        expected = float(score_rows(witness, basis.rotate(rows)[None]).std())
        assert float(gaussian_score_std(witness, sums)) == pytest.approx(expected, rel=0.02)
