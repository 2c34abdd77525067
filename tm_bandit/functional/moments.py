"""Centred first and second moments: made from rows, merged in any order, turned into a covariance."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit.errors import InputError

#: Beyond this, powers of features (up to the sixth, in moments of scores) overflow float64 and values would be NaN.
LARGEST_FEATURE = 1e45

#: The covariance of more features takes over 8 GiB. More than that are images that went through no network.
MOST_FEATURES = 2**15


class Moments(NamedTuple):
    r"""Count, mean and scatter of a set of rows, in float64.

    The scatter is centred, :math:`\sum_i (x_i - \bar x)(x_i - \bar x)^\top`: raw second moments lose all digits of the
    covariance once the mean is large.

    Args:
        count: number of rows.
        mean: their mean, shape ``(d,)``.
        scatter: their centred scatter matrix, shape ``(d, d)``.
    """

    count: int  # type: ignore[assignment]
    mean: Tensor
    scatter: Tensor


def check_width(num_features: int) -> None:
    """Raise ``InputError`` if rows have so many features that their covariance would fill a machine's memory.

    Args:
        num_features: length of a row.
    """
    if num_features > MOST_FEATURES:
        raise InputError(
            f"Expected rows of at most {MOST_FEATURES:,} features, but got {num_features:,}, whose covariance takes "
            f"{8 * num_features**2 / 2**30:,.0f} GiB; give a feature network."
        )


def moments_from_rows(rows: Tensor) -> Moments:
    """Compute the moments of rows.

    Args:
        rows: shape ``(n, d)`` with ``n >= 1``, any floating dtype.

    Raises:
        InputError: if ``rows`` is not a matrix with at least one row, or has too many columns.

    Example:
        >>> import torch
        >>> from tm_bandit.functional import moments_from_rows
        >>> moments_from_rows(torch.tensor([[1.0, 0.0], [3.0, 0.0]])).scatter
        tensor([[2., 0.],
                [0., 0.]], dtype=torch.float64)
    """
    if rows.ndim != 2 or rows.shape[0] < 1:
        raise InputError(f"Expected rows of shape (n, d) with n >= 1, but got shape {tuple(rows.shape)}.")
    check_width(rows.shape[1])
    values = rows.to(torch.float64)
    mean = values.mean(dim=0)
    centred = values - mean
    return Moments(values.shape[0], mean, centred.T @ centred)


def merge_moments(first: Moments, *others: Moments) -> Moments:
    r"""Merge the moments of disjoint sets of rows (Chan, Golub and LeVeque, 1983).

    .. math::
        n = n_a + n_b, \quad \delta = \bar x_b - \bar x_a, \quad
        \bar x = \bar x_a + \tfrac{n_b}{n} \delta, \quad
        A = A_a + A_b + \tfrac{n_a n_b}{n} \delta \delta^\top

    Args:
        first: moments of one set.
        others: moments of further sets.

    Example:
        >>> import torch
        >>> from tm_bandit.functional import merge_moments, moments_from_rows
        >>> rows = torch.arange(8.0).reshape(4, 2)
        >>> merged = merge_moments(moments_from_rows(rows[:1]), moments_from_rows(rows[1:]))
        >>> merged.count, merged.mean
        (4, tensor([3., 4.], dtype=torch.float64))
    """
    merged = first
    for other in others:
        if merged.mean.shape != other.mean.shape:
            raise InputError(
                f"Expected moments of one dimension, but got {len(merged.mean)} and {len(other.mean)}; use one."
            )
        count = merged.count + other.count
        if merged.count == 0 or other.count == 0:
            merged = other if merged.count == 0 else merged
            continue
        delta = other.mean - merged.mean
        scatter = merged.scatter + other.scatter + torch.outer(delta, delta * (merged.count * other.count / count))
        merged = Moments(count, merged.mean + delta * (other.count / count), scatter)
    return merged


def add_rows_(moments: Moments, rows: Tensor) -> Moments:
    """Merge rows into moments, overwriting ``moments.scatter`` (one pass over it, however few the rows).

    Args:
        moments: what to add to; its scatter matrix is changed in place and must not be used under its old name.
        rows: shape ``(b, d)``.
    """
    if rows.shape[0] == 0:
        return moments
    values = rows.to(torch.float64)
    batch_mean = values.mean(dim=0)
    batch, count = values.shape[0], moments.count + values.shape[0]
    delta = batch_mean - moments.mean
    # Chan's correction is one more rank-one term, so it rides along in the same product as the batch's own scatter.
    stacked = torch.cat([values - batch_mean, (delta * (moments.count * batch / count) ** 0.5).unsqueeze(0)])
    scatter = moments.scatter.addmm_(stacked.T, stacked)
    return Moments(count, moments.mean + delta * (batch / count), scatter)


def covariance(moments: Moments, unbiased: bool = True) -> Tensor:
    """Return the covariance matrix that belongs to moments.

    Args:
        moments: count, mean and scatter.
        unbiased: divide by ``n - 1`` (as numpy's ``cov``, torchmetrics and pytorch-fid do) or by ``n`` (the paper).

    Raises:
        InputError: if there are too few rows for the divisor.

    Example:
        >>> import torch
        >>> from tm_bandit.functional import covariance, moments_from_rows
        >>> covariance(moments_from_rows(torch.tensor([[1.0], [3.0]])), unbiased=False)
        tensor([[1.]], dtype=torch.float64)
    """
    divisor = moments.count - int(unbiased)
    if divisor < 1:
        raise InputError(f"Expected at least {1 + int(unbiased)} rows for a covariance, but got {moments.count}.")
    return moments.scatter / divisor
