"""Moments are those of numpy, whatever the order and grouping."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tm_bandit.errors import InputError
from tm_bandit.functional import Moments, covariance, merge_moments, moments_from_rows
from tm_bandit.functional.moments import add_rows_


def rows_of(seed, count, dim=4, offset=0.0):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + offset


@pytest.mark.parametrize("unbiased", [True, False])
def test_covariance_equals_numpy(unbiased):
    rows = rows_of(0, 9)
    expected = np.cov(rows.numpy(), rowvar=False, ddof=int(unbiased))
    np.testing.assert_allclose(covariance(moments_from_rows(rows), unbiased).numpy(), expected, rtol=1e-12)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    cuts=st.lists(st.integers(1, 29), max_size=6),
    order=st.permutations(list(range(30))),
    offset=st.sampled_from([0.0, 1e3, 1e7]),
)
def test_any_grouping_and_order_gives_the_same_moments(seed, cuts, order, offset):
    rows = rows_of(seed, 30, offset=offset)
    whole = moments_from_rows(rows)
    edges = [0, *sorted(set(cuts)), 30]
    shuffled = rows[list(order)]
    parts = [moments_from_rows(shuffled[a:b]) for a, b in pairwise(edges)]
    streamed = moments_from_rows(shuffled[: edges[1]])
    for a, b in pairwise(edges[1:]):
        streamed = add_rows_(streamed, shuffled[a:b])
    for got in (merge_moments(*parts), streamed):
        assert got.count == 30
        # Rows near 1e7 carry an absolute rounding error of 1e-9 themselves.
        torch.testing.assert_close(got.mean, whole.mean, rtol=1e-13, atol=1e-12)
        torch.testing.assert_close(got.scatter, whole.scatter, rtol=1e-9, atol=1e-6 if offset > 1e6 else 1e-9)


def test_a_large_offset_costs_no_digits():
    rows = rows_of(1, 50).mul(1024).round().div(1024)  # exactly representable with the offset added
    near, far = moments_from_rows(rows), moments_from_rows(rows + 2.0**23)
    torch.testing.assert_close(far.scatter, near.scatter, rtol=1e-8, atol=1e-8)


def test_empty_sets_merge_as_nothing():
    whole = moments_from_rows(rows_of(2, 5))
    empty = Moments(0, torch.zeros(4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64))
    for merged in (merge_moments(empty, whole), merge_moments(whole, empty), add_rows_(whole, torch.empty(0, 4))):
        assert merged.count == 5
        assert torch.equal(merged.scatter, whole.scatter)


def test_wrong_shapes_are_refused():
    with pytest.raises(InputError, match=r"shape \(n, d\)"):
        moments_from_rows(torch.zeros(3))
    with pytest.raises(InputError, match="one dimension"):
        merge_moments(moments_from_rows(torch.zeros(2, 3)), moments_from_rows(torch.zeros(2, 4)))
    with pytest.raises(InputError, match="at least 2 rows"):
        covariance(moments_from_rows(torch.zeros(1, 3)))
