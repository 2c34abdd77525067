"""Kernel distances against plain loops over pairs, and their variance against the jackknife and against repetition."""

import itertools
import math

import numpy as np
import pytest
import torch

from tests._make import normal_rows as draw
from tm_bandit.functional.kernels import (
    BLOCK,
    GaussianKernel,
    PairSums,
    PolynomialKernel,
    add_pairs,
    mean_of_pairs,
    mean_similarity,
    mmd_projection,
    second_order_variance,
)

KERNELS = {
    "polynomial": PolynomialKernel(),
    "quadratic": PolynomialKernel(2, 0.3, 0.5),
    "gaussian": GaussianKernel(2.0),
    "unit": GaussianKernel(0.5, unit_length=True),
}


def plain(name, x, y):
    """One kernel value, in numpy."""
    x, y = np.asarray(x), np.asarray(y)
    if name == "polynomial":
        return (x @ y / len(x) + 1) ** 3
    if name == "quadratic":
        return (0.3 * (x @ y) + 0.5) ** 2
    if name == "unit":
        return math.exp(-(np.linalg.norm(x / np.linalg.norm(x) - y / np.linalg.norm(y)) ** 2) / (2 * 0.25))
    return math.exp(-(np.linalg.norm(x - y) ** 2) / 8)


def sums_of(rows, kernel, batch=4):
    sums = PairSums.empty()
    for start in range(0, len(rows), batch):
        sums = add_pairs(sums, torch.split(rows[:start], 3) if start else [], rows[start : start + batch], kernel)
    return sums


def distance(x, y, kernel):
    """The unbiased squared MMD from whole kernel matrices."""
    within = [(kernel(z, z).sum() - kernel(z, z).trace()) / (len(z) * (len(z) - 1)) for z in (x, y)]
    return float(within[0] + within[1] - 2 * kernel(x, y).mean())


def projection(x, y, kernel, batch=4):
    return mmd_projection(sums_of(x, kernel, batch), mean_similarity(x, y, kernel), mean_of_pairs(y, kernel))


@pytest.mark.parametrize("name", KERNELS)
def test_against_a_loop_over_pairs(name):
    kernel, x, y = KERNELS[name], draw(11), draw(7, seed=1, shift=0.5)
    sums = sums_of(x, kernel)
    pairs = list(itertools.permutations(range(11), 2))
    values = {(i, j): plain(name, x[i], x[j]) for i, j in pairs}
    assert sums.totals.tolist() == pytest.approx([sum(values[i, j] for j in range(11) if i != j) for i in range(11)])
    assert sums.squares == pytest.approx(sum(value**2 for value in values.values()))
    near = [sum(plain(name, row, other) for other in y) / 7 for row in x]
    assert mean_similarity(x, y, kernel).tolist() == pytest.approx(near)
    own = sum(plain(name, y[i], y[j]) for i, j in itertools.permutations(range(7), 2)) / 42
    assert mean_of_pairs(y, kernel) == pytest.approx(own)
    expected = sum(values.values()) / 110 - 2 * sum(near) / 11 + own
    assert float(projection(x, y, kernel).mean()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_second_order_variance_against_its_definition(name):
    kernel, x = KERNELS[name], draw(9)
    values = kernel(x, x).fill_diagonal_(0)
    near = values.sum(1) / 8
    rest = (values - near[:, None] - near + near.mean()).fill_diagonal_(0)
    assert second_order_variance(sums_of(x, kernel)) == pytest.approx(float(rest.square().sum()) / 72, rel=1e-10)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_standard_error_is_the_jackknifes_to_first_order(kernel):
    x, y = draw(300, shift=1.0), draw(50, seed=1)
    scores = projection(x, y, kernel, 300)
    left_out = [distance(torch.cat([x[:i], x[i + 1 :]]), y, kernel) for i in range(0, 300, 5)]
    # A sixtieth of the rows, left out one by one, tell the spread of all.
    jackknife = float(torch.tensor(left_out).std()) * 299 / math.sqrt(300)
    assert float(scores[::5].std()) / math.sqrt(300) == pytest.approx(jackknife, rel=0.02)


def test_the_standard_error_is_the_spread_over_runs():
    kernel, y = PolynomialKernel(), draw(60, seed=1)
    values, errors = [], []
    for seed in range(200):
        scores = projection(draw(80, seed=10 + seed, shift=1.0), y, kernel, 80)
        values.append(float(scores.mean()))
        errors.append(float(scores.std()) / math.sqrt(80))
    assert float(np.mean(errors)) == pytest.approx(float(np.std(values)), rel=0.15)  # three standard errors of 200 runs


def test_paired_differences_have_the_standard_error_of_differences():
    kernel, y = GaussianKernel(2.0), draw(60, seed=1)
    values, errors = [], []
    for seed in range(200):
        x = draw(60, seed=10 + seed, shift=0.7)
        scores = projection(x, y, kernel, 60) - projection(0.9 * x, y, kernel, 60)
        values.append(float(scores.mean()))
        errors.append(float(scores.std()) / math.sqrt(60))
    assert float(np.mean(errors)) == pytest.approx(float(np.std(values)), rel=0.15)


def test_blocks_do_not_matter():
    kernel, rows = PolynomialKernel(), draw(BLOCK + 30)
    values = kernel(rows, rows).fill_diagonal_(0)
    assert mean_of_pairs(rows, kernel) == pytest.approx(float(values.sum()) / (len(rows) * (len(rows) - 1)), rel=1e-12)
    assert torch.allclose(mean_similarity(rows[:3], rows, kernel), kernel(rows[:3], rows).mean(1), rtol=1e-12)
