"""Every optimistic Inception Score against a second, plainly written version of its formula."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests._make import softmax_probs as draw
from tm_bandit.bounds.is_bounds import (
    bernstein_radius,
    is_bound_authors,
    is_bound_naive,
    is_bound_paper,
    optimistic_marginal,
)
from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.functional.inception_score import class_sums, inception_score

FORMULAS = {"paper": is_bound_paper, "authors": is_bound_authors, "naive": is_bound_naive}


def entropy_of(row):
    return -sum(p * math.log(p) for p in row if p > 0)


def plain_formula(probs, delta, bound):
    """Equations 15, 22 and 29, sample by sample and class by class."""
    rows = np.asarray(probs, dtype=np.float64)
    n, d = rows.shape
    entropies = np.array([entropy_of(row) for row in rows])
    log_term = math.log(4 / delta) if bound == "authors" else math.log(4 * d / delta)
    spread = 0 if bound == "authors" else 1

    def radius(variance, width):
        return math.sqrt(2 * variance / n * log_term) + 7 * width * log_term / (3 * (n - 1))

    optimistic = []
    for j in range(d):
        variance = 1.0 if bound == "naive" else np.var(rows[:, j], ddof=spread)
        p, epsilon = rows[:, j].mean(), radius(variance, 1.0)
        gap = 1 / math.e - p
        optimistic.append(p + math.copysign(epsilon, gap) if abs(gap) >= epsilon else 1 / math.e)
    variance = math.log(d) ** 2 if bound == "naive" else np.var(entropies, ddof=spread)
    return entropy_of(optimistic) - entropies.mean() + radius(variance, math.log(d))


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    bound=st.sampled_from(sorted(FORMULAS)),
    num=st.sampled_from([2, 3, 10, 100, 2000]),
    classes=st.sampled_from([1, 2, 3, 10]),
    sharpness=st.sampled_from([0.0, 1.0, 20.0]),
    delta=st.sampled_from([1e-6, 0.05, 0.5]),
    seed=st.integers(0, 1000),
)
def test_equals_the_plain_formula(bound, num, classes, sharpness, delta, seed):
    probs = draw(num, classes, sharpness, seed)
    got = float(FORMULAS[bound](class_sums(probs), delta))
    # The variance of constant values comes out of sums as 1e-17 rather than 0, of which a square root is taken.
    assert got == pytest.approx(plain_formula(probs, delta, bound), rel=1e-9, abs=1e-6)


def test_the_bounds_differ_as_described():
    sums = class_sums(draw(300, 50, 2.0, seed=0))
    paper, authors, naive = (float(f(sums, 0.05)) for f in (is_bound_paper, is_bound_authors, is_bound_naive))
    assert authors < paper < naive


def test_the_sums_are_left_alone():
    sums = class_sums(draw(50, 20, 2.0, seed=0))
    before = [field.clone() for field in sums]
    first = [float(bound(sums, 0.05)) for bound in FORMULAS.values()]
    second = [float(bound(sums, 0.05)) for bound in FORMULAS.values()]
    assert first == second
    for old, new in zip(before, sums, strict=True):
        assert torch.equal(old, new)


def test_marginal_moves_towards_one_over_e():
    at = 1 / math.e
    marginal = torch.tensor([0.0, 0.3, at, 0.4, 1.0], dtype=torch.float64)
    moved = optimistic_marginal(marginal, torch.tensor(0.1, dtype=torch.float64))
    torch.testing.assert_close(moved, torch.tensor([0.1, at, at, at, 0.9], dtype=torch.float64))
    # A radius of nothing changes nothing, not even at the point where the direction is undefined.
    torch.testing.assert_close(optimistic_marginal(marginal, torch.zeros(5, dtype=torch.float64)), marginal)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-1, 1), st.floats(0, 1)), min_size=1, max_size=8))
def test_marginal_is_optimistic_if_the_truth_is_within_the_radius(cases):
    estimate = torch.tensor([case[0] for case in cases], dtype=torch.float64)
    radius = torch.tensor([case[2] for case in cases], dtype=torch.float64)
    truth = (estimate + radius * torch.tensor([case[1] for case in cases], dtype=torch.float64)).clamp(0, 1)
    moved = optimistic_marginal(estimate, radius)
    assert (torch.special.entr(moved) >= torch.special.entr(truth) - 1e-12).all()


def test_paper_bound_covers_the_truth():
    """Two hundred runs; with delta = 0.3 up to 60 misses would be in order, and the bound is known to be loose."""
    classes, delta = 4, 0.3
    population = draw(4000, classes, 3.0, seed=5)
    truth = float(inception_score(population, log=True))
    generator = torch.Generator().manual_seed(6)
    values = []
    for _ in range(200):
        sample = population[torch.randint(len(population), (400,), generator=generator)]
        values.append(float(is_bound_paper(class_sums(sample), delta)))
    assert min(values) > truth
    # Loose, but not infinitely so: it shrinks with the sample size.
    assert float(is_bound_paper(class_sums(population.repeat(100, 1)), delta)) < truth + 0.1


def test_many_classes_and_two_samples_stay_finite():
    sums = class_sums(draw(2, 21_000, 1.0, seed=0))
    for bound in FORMULAS.values():
        value = bound(sums, 1e-12)
        assert torch.isfinite(value)
        assert float(value) > 700  # exp of it would overflow


def test_radius():
    got = bernstein_radius(torch.tensor(0.5), torch.tensor(8.0), 2.0, width=3.0)
    assert float(got) == pytest.approx(math.sqrt(2 * 0.5 * 2 / 8) + 7 * 3 * 2 / (3 * 7), rel=1e-6)


@pytest.mark.parametrize("bound", FORMULAS.values())
def test_refusals(bound):
    with pytest.raises(NotReadyError, match="two samples, but got 1"):
        bound(class_sums(draw(1, 3, 1.0, seed=0)), 0.05)
    for delta in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="delta"):
            bound(class_sums(draw(5, 3, 1.0, seed=0)), delta)
