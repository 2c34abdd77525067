r"""What a trace of a root would be without one of the rows, for all rows from one decomposition."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Step of the nodes in the logarithm, and how far they reach below and above that of the largest eigenvalue. The
#: integrand is analytic, so a coarser step is still exact to rounding; the tests hold it against rows left out.
_STEP, _BELOW, _ABOVE = 0.5, 35.0, 16.0
#: Eigenvalues below this share of the largest are rounding.
_NEGLIGIBLE = 1e-13


def root_traces_without(rows: Tensor) -> tuple[Tensor, Tensor]:
    r"""Trace of the root of the scatter matrix of all rows, and about the mean of all rows but one for each left out.

    Without row :math:`i` the scatter matrix is :math:`M - \frac{n}{n-1} y_i y_i'`, of which the determinant is known:

    .. math:: \frac{\det(M - \frac{n}{n-1} y_i y_i' + t)}{\det(M + t)}
              = 1 - \frac{n}{n-1} \, y_i' (M + t)^{-1} y_i =: 1 - h_i(t).

    With :math:`\sqrt x = \frac1{2\pi} \int_0^\infty t^{-1/2} \log(1 + x/t) \, dt`, the trace of the root changes by
    :math:`\frac1{2\pi} \int_0^\infty t^{-1/2} \log(1 - h_i(t)) \, dt`.

    Args:
        rows: rows about their mean, at least three of them, ``(n, d)`` in float64.

    Returns:
        The trace of all rows, and those of all but one, ``(n,)``; eigenvalues that are rounding are in neither.

    Example:
        >>> rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> others = rows[1:] - rows[1:].mean(0)
        >>> _, found = root_traces_without(rows - rows.mean(0))
        >>> torch.allclose(found[0], torch.linalg.svdvals(others).sum())
        True
    """
    count, dim = rows.shape
    if wide := count <= dim:
        values, vectors = torch.linalg.eigh(rows @ rows.T)
        squared = vectors.square()
        share = squared * values.clamp_min(0)
    else:
        values, vectors = torch.linalg.eigh(rows.T @ rows)
        share = squared = (rows @ vectors).square()
    top = float(values[-1])
    if top <= 0:
        return rows.new_zeros(()), rows.new_zeros(count)
    kept = values > _NEGLIGIBLE * top
    factor = count / (count - 1)
    values, share, squared = values[kept], share[:, kept] * factor, squared[:, kept] * factor
    nodes = top * torch.arange(-_BELOW, _ABOVE + _STEP, _STEP, dtype=rows.dtype, device=rows.device).exp()
    if wide:
        # Each row takes an axis along, so 1 - h falls to zero as t does: a sum of small terms, never a difference.
        left = squared @ (nodes / (values[:, None] + nodes))
        if len(values) < count - 1:
            left += (1 - squared.sum(1, keepdim=True)).clamp_min(0)
    else:
        # One less rounding: a row that spans an axis alone takes all of it along.
        left = (1 - share @ (1 / (values[:, None] + nodes))).clamp_min(1e-15)
    terms = nodes.sqrt() * torch.log(left)
    tail = -2 * share.sum(1) / math.sqrt(float(nodes[-1]))
    change = _STEP * (terms.sum(1) - terms[:, -1] / 2) + tail
    whole = values.sqrt().sum()
    return whole, (whole + change / (2 * math.pi)).clamp_min(0)
