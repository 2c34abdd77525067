"""The near-unbiased Frechet distance and its standard error."""

import math
from itertools import pairwise

import pytest
import torch

from tests._make import POWER, filled, power_reference, power_rows, power_truth
from tm_bandit import OptimisticFID, ReferenceStatistics
from tm_bandit.functional import frechet_distance, moments_from_rows
from tm_bandit.functional.crossfit import fold_numbers, refit_counts
from tm_bandit.functional.debias import RootTrace, slope_ratio
from tm_bandit.metrics.frechet_debias import measure_parts
from tm_bandit.metrics.row_log import RowLog


def root_trace(rows):
    centred = (rows - rows.mean(0)) @ (POWER.eigenvectors * POWER.eigenvalues.sqrt())
    return RootTrace(float(torch.linalg.svdvals(centred).sum()) / math.sqrt(len(rows)), len(rows))


class TestDebiased:
    @pytest.mark.parametrize("gone", [0, 50])
    def test_the_slope_is_that_of_all_rows_against_their_parts(self, gone):
        rows = power_rows(200)
        folded = moments_from_rows(rows[:gone]) if gone else None
        log = RowLog(list(rows[gone:].split(30)), folded)
        found = measure_parts(POWER, log, max(refit_counts(200)), True)
        used = rows[: found.num]
        side = (torch.arange(len(used)) >= gone).long() if gone else fold_numbers(0, len(used)) % 2
        ratio = slope_ratio(root_trace(used), [root_trace(used[side == half]) for half in (0, 1)], POWER.bias)
        assert found.ratio == pytest.approx(ratio, rel=1e-9)

    @pytest.mark.parametrize("ratio", [0.25, 0.5, 1, 2])
    def test_a_third_of_the_error_of_extrapolation(self, ratio):
        """Against a straight line in 1/n through ten subsets; root mean squared error of six runs, d = 64."""
        ref = power_reference(dim=64)
        count, generator = int(64 * ratio), torch.Generator().manual_seed(0)
        exact, ours, theirs = power_truth(0.05, 1.1, ref), [], []
        for seed in range(6):
            rows = power_rows(count, shift=0.05, stretch=1.1, seed=seed, ref=ref)
            ours.append(float(filled(rows, ref=ref).debiased().value) - exact)
            theirs.append(extrapolated(rows, ref, generator) - exact)
        assert root_mean_square(ours) <= root_mean_square(theirs) / 3

    def test_its_error_bar_is_honest(self):
        """The spread over runs, at n = 4d, against the mean reported standard error."""
        values, errors = [], []
        for seed in range(40):
            value, stderr = filled(power_rows(4 * POWER.num_features, seed=seed)).debiased()
            values.append(float(value))
            errors.append(float(stderr))
        spread = torch.tensor(values).std()
        assert 0.6 * spread < torch.tensor(errors).mean() < 1.6 * spread
        assert abs(torch.tensor(values).mean() - power_truth()) < 4 * spread / math.sqrt(40) + 0.03 * power_truth()

    @pytest.mark.parametrize("shift", [0.05, 0.5])
    def test_the_error_of_a_difference_on_common_draws_is_honest(self, shift):
        """The spread of the difference over runs, next to the reference and apart."""
        differences, errors, apart = [], [], []
        for seed in range(60):
            noise = power_rows(2 * POWER.num_features, seed=seed)
            arms = [filled(noise + move * POWER.eigenvalues.sqrt()) for move in (shift, shift + 0.1)]
            values = [arm.debiased() for arm in arms]
            differences.append(float(values[1].value - values[0].value))
            errors.append(arms[1].paired(arms[0], len(noise)).debiased_stderr)
            apart.append(math.hypot(*(float(value.stderr) for value in values)))
        spread = float(torch.tensor(differences).std())
        assert 0.8 * spread < sum(errors) / 60 < 2.0 * spread
        assert sum(apart) > 3 * sum(errors)

    def test_its_error_bar_has_no_jump(self):
        """It once took other evidence into account from the hundredth row on, and doubled there."""
        ref = power_reference(dim=64)
        rows = power_rows(150, shift=0.05, stretch=1.1, ref=ref)
        found = [float(filled(rows[:count], ref=ref).debiased().stderr) for count in range(60, 151, 6)]
        assert all(0.8 < later / sooner < 1.2 for sooner, later in pairwise(found))

    @pytest.mark.parametrize(("count", "dim"), [(16, 64), (64, 64), (125, 64), (200, 64), (60, 256)])
    def test_its_error_bar_is_honest_with_fewer_samples(self, count, dim):
        """Near the reference, where the scores show hardly any noise; 40 runs tell a spread to about a tenth."""
        ref = power_reference(dim=dim)
        found = [
            filled(power_rows(count, shift=0.05, stretch=1.1, seed=seed, ref=ref), ref=ref).debiased()
            for seed in range(40)
        ]
        spread = torch.stack([value for value, _ in found]).std()
        assert 0.6 * spread < torch.stack([stderr for _, stderr in found]).mean() < 1.7 * spread

    def test_labels_in_a_cycle_do_no_harm(self):
        """Ten modes, one far out, drawn in turn: with folds by position each witness would miss one mode."""
        ref = power_reference()
        offset = torch.zeros(10, POWER.num_features, dtype=torch.float64)
        offset[:, 0] = torch.arange(10) - 4.5
        noise = power_rows(600, ref=ref)
        cycle = noise + offset[torch.arange(600) % 10]
        mixed = noise + offset[torch.randperm(600, generator=torch.Generator().manual_seed(0)) % 10]
        one, two = filled(cycle, ref=ref), filled(mixed, ref=ref)
        assert float(one.compute()) == pytest.approx(float(two.compute()), rel=0.05)
        assert float(one.debiased().value) == pytest.approx(float(two.debiased().value), rel=0.05)

    @pytest.mark.parametrize("bound", ["paper", "none"])
    def test_other_bounds_have_it_too(self, bound):
        rows = power_rows(200)
        ours, other = filled(rows).debiased(), filled(rows, bound=bound).debiased()
        assert float(other.value) == pytest.approx(float(ours.value), rel=0.05)
        assert float(other.stderr) == pytest.approx(float(ours.stderr), rel=0.3)

    def test_it_does_not_depend_on_the_number_of_samples(self):
        """The plain estimate begins at three times the truth."""
        found = [float(filled(power_rows(count, shift=0.1)).debiased().value) for count in (30, 100, 1000)]
        plain = [float(filled(power_rows(count, shift=0.1)).estimate()) for count in (30, 100, 1000)]
        exact = power_truth(0.1)
        assert all(abs(value - exact) < 0.5 * exact for value in found)
        assert plain[0] > 3 * exact


def extrapolated(rows, ref, generator, points=10):
    """Linear extrapolation in 1/n from random subsets of half to all rows."""
    inverse, values = [], []
    for size in torch.linspace(len(rows) / 2, len(rows), points).int().tolist():
        part = rows[torch.randperm(len(rows), generator=generator)[:size]]
        inverse.append(1 / size)
        values.append(float(filled(part, ref=ref, bound="none").estimate()))
    design = torch.stack([torch.ones(points), torch.tensor(inverse)], 1).double()
    return float(torch.linalg.lstsq(design, torch.tensor(values).double()[:, None]).solution[0])


def root_mean_square(values):
    return float(torch.tensor(values).square().mean().sqrt())


DIM = 64
VALUES = 50 * torch.arange(1, DIM + 1, dtype=torch.float64) ** -0.7
ZERO = torch.zeros(DIM, dtype=torch.float64)


def collapsed():
    return torch.diag(VALUES * (-torch.arange(DIM) / 8).exp())


def rotated():
    noise = torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / DIM**0.5
    turn = torch.linalg.matrix_exp(0.3 * (noise - noise.T))
    return turn @ torch.diag(VALUES) @ turn.T


@pytest.mark.parametrize(("make", "tolerance"), [(collapsed, 0.015), (rotated, 0.1)])
def test_the_smaller_of_two_biases_is_right_for_collapsed_and_for_rotated_arms(make, tolerance):
    """Mean of 20 runs with half as many rows as dimensions, against the closed form of the covariance's own distance.

    The reference's curve alone would be off by 2.6 % (collapsed, clipped at the witness), the fitted spectrum
    alone by 57 % (rotated).
    """
    own = make()
    truth = float(frechet_distance(ZERO, own, ZERO, torch.diag(VALUES)))
    reference, root = ReferenceStatistics(ZERO, torch.diag(VALUES)), torch.linalg.cholesky(own)
    found = []
    for seed in range(20):
        metric = OptimisticFID(feature="none", reference=reference)
        rows = torch.randn(DIM // 2, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        metric.update_features(rows @ root.T)
        found.append(float(metric.debiased().value))
    assert sum(found) / len(found) == pytest.approx(truth, rel=tolerance)
