"""What is said of few samples: the debiased estimates and the standard error of the score."""

import pytest
import torch

from tm_bandit import OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit.functional import frechet_distance
from tm_bandit.simulation import class_bank

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


def equal_classes(count, generator):
    bank = class_bank(range(100), 100, 9.0, 4000, torch.Generator().manual_seed(0))
    return bank[torch.randint(len(bank), (count,), generator=generator)]


def sure_answers(count, generator):
    return torch.eye(10)[torch.randint(10, (count,), generator=generator)]


def sure_answers_of_zipf_classes(count, generator):
    return torch.eye(10)[torch.multinomial(1 / torch.arange(1, 11), count, replacement=True, generator=generator)]


def sure_answers_of_mostly_one_class(count, generator):
    return torch.eye(10)[(torch.randint(45, (count,), generator=generator) - 35).clamp_min(0)]


def sure_answers_of_a_thousand_classes(count, generator):
    return torch.eye(1000)[torch.randint(1000, (count,), generator=generator)]


@pytest.mark.parametrize(
    ("sample", "counts", "most"),
    [
        (equal_classes, (20, 120, 500), 1.0),
        (sure_answers, (20, 120, 500), 1.0),
        (sure_answers_of_zipf_classes, (20, 120, 500), 1.3),
        (sure_answers_of_mostly_one_class, (10, 20), 2.0),
        (sure_answers_of_a_thousand_classes, (120, 500), 1.2),
    ],
)
def test_the_standard_error_of_the_score_is_that_of_many_runs(sample, counts, most):
    """Spread of 100 runs, good to 7 %, over what the runs say it is.

    The error of the witness alone would be up to 50 times too small, and without a class that was not seen up to three
    times (mostly one class, a thousand classes).
    """
    generator = torch.Generator().manual_seed(0)
    for count in counts:
        found = []
        for _ in range(100):
            metric = OptimisticIS("none", log_scale=True)
            metric.update_probs(sample(count, generator))
            found.append(tuple(map(float, metric.debiased())))
        values, errors = torch.tensor(found, dtype=torch.float64).T
        assert 0.3 < float(values.std() / errors.mean()) < most


def test_one_class_so_far_is_no_certainty():
    metric = OptimisticIS("none", log_scale=True)
    metric.update_probs(torch.eye(5)[[2] * 10])
    value, error = map(float, metric.debiased())
    assert value == pytest.approx(0.0, abs=1e-9)
    assert 0.1 < error < 1.0


@pytest.mark.parametrize("count", [20, 100, 500])
def test_the_debiased_score_is_within_its_own_interval_and_the_number_of_classes(count):
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        metric = OptimisticIS("none")
        metric.update_probs(sure_answers(count, generator))
        lower, upper = map(float, metric.bounds())
        assert lower <= float(metric.debiased().value) <= upper <= 10.0 + 1e-12
