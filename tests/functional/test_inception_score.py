"""The Inception Score against a brute-force computation, and the checks of what goes in."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.image.inception import InceptionScore

from tests._make import softmax_probs as draw
from tm_bandit import functional
from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.functional.inception_score import (
    ClassSums,
    check_probabilities,
    class_sums,
    inception_score,
    log_inception_score,
    sample_variance,
)


def brute_force(probs):
    """Mean Kullback-Leibler divergence to the marginal, term by term."""
    rows = np.asarray(probs, dtype=np.float64)
    marginal = rows.mean(axis=0)
    total = 0.0
    for row in rows:
        for p, q in zip(row, marginal, strict=True):
            if p > 0:
                total += p * math.log(p / q)
    return total / len(rows)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    num=st.integers(1, 40),
    classes=st.integers(1, 12),
    sharpness=st.sampled_from([0.0, 0.1, 1.0, 10.0, 1000.0]),
    seed=st.integers(0, 10_000),
)
def test_equals_the_mean_divergence_to_the_marginal(num, classes, sharpness, seed):
    probs = draw(num, classes, sharpness, seed)
    assert float(inception_score(probs, log=True)) == pytest.approx(brute_force(probs), rel=1e-10, abs=1e-13)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    num=st.integers(2, 60),
    classes=st.integers(1, 8),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    seed=st.integers(0, 10_000),
)
def test_order_and_batches_do_not_matter(num, classes, cuts, seed):
    probs = draw(num, classes, 3.0, seed)
    whole = class_sums(probs)
    shuffled = probs[torch.randperm(num, generator=torch.Generator().manual_seed(seed))]
    edges = sorted({0, num, *(cut for cut in cuts if cut < num)})
    parts = [class_sums(shuffled[a:b]) for a, b in itertools.pairwise(edges)]
    merged = ClassSums(*(torch.stack(field).sum(dim=0) for field in zip(*parts, strict=True)))
    for name in ClassSums._fields:
        torch.testing.assert_close(getattr(merged, name), getattr(whole, name), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(log_inception_score(merged), log_inception_score(whole), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Metric `InceptionScore` will save all")
@pytest.mark.filterwarnings("ignore:std\\(\\)")
def test_equals_torchmetrics_with_one_split():
    logits = torch.randn(64, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    theirs = InceptionScore(feature=torch.nn.Identity(), splits=1)
    theirs.update(logits)
    assert float(inception_score(logits.softmax(dim=1))) == pytest.approx(float(theirs.compute()[0]), rel=1e-12)


def test_extremes():
    assert float(inception_score(torch.eye(7))) == pytest.approx(7.0, rel=1e-14)
    assert float(inception_score(torch.full((5, 3), 1 / 3))) == pytest.approx(1.0, rel=1e-14)
    assert float(inception_score(torch.ones(4, 1))) == 1.0
    # Equal rows: both entropies are the same up to rounding, and the score must not fall below one.
    rows = draw(1, 1000, 2.0, seed=3).expand(333, -1)
    assert float(inception_score(rows, log=True)) >= 0.0


def test_half_precision_rows_are_accumulated_in_float64():
    probs = draw(500, 50, 2.0, seed=1)
    value = inception_score(probs.half())
    assert value.dtype == torch.float64
    assert float(value) == pytest.approx(float(inception_score(probs)), rel=2e-3)


@pytest.mark.parametrize("unbiased", [True, False])
def test_variance_from_sums(unbiased):
    values = torch.rand(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = sample_variance(values.sum(0), values.square().sum(0), torch.tensor(30.0), unbiased=unbiased)
    torch.testing.assert_close(got, values.var(dim=0, unbiased=unbiased), rtol=1e-12, atol=0)
    assert float(sample_variance(torch.tensor(0.3), torch.tensor(0.03 - 1e-18), torch.tensor(3.0))) >= 0.0


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (torch.ones(3), r"shape \(3,\)"),
        (torch.ones(3, 0), r"shape \(3, 0\)"),
        ([[0.5, 0.5]], "a list"),
        (torch.ones(2, 1, dtype=torch.long), "torch.int64"),
        (torch.tensor([[0.5, 0.5], [float("nan"), 0.5], [float("inf"), 0.0]]), "in 2 of 3 rows"),
        (torch.tensor([[1.5, -0.5]]), "-0.5"),
        (torch.tensor([[0.5, 0.5], [0.5, 0.6]]), "off by 0.1"),
        (torch.tensor([[0.5, 0.5004]], dtype=torch.float64), "off by 0.0004"),
    ],
)
def test_refuses_what_are_no_probabilities(probs, message):
    with pytest.raises(InputError, match=message):
        check_probabilities(probs)


def test_rounding_is_no_mistake_and_is_repaired():
    single = draw(100, 1008, 5.0, seed=2).float()
    for probs in (single, single.half(), single.bfloat16()):
        torch.testing.assert_close(
            check_probabilities(probs).sum(dim=1), torch.ones(100, dtype=torch.float64), rtol=1e-14, atol=0
        )
    assert check_probabilities(torch.zeros(0, 5)).shape == (0, 5)


def test_no_samples_is_no_score():
    with pytest.raises(NotReadyError, match="at least one sample"):
        inception_score(torch.zeros(0, 5))


def test_the_public_names():
    assert functional.inception_score is inception_score
    assert {"ClassSums", "inception_score", "log_inception_score"} <= set(functional.__all__)
