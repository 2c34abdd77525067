r"""Kernel distances: the unbiased squared maximum mean discrepancy (MMD), row by row.

.. math::
    \widehat{\mathrm{MMD}}^2 = \underbrace{\frac{1}{n(n-1)} \sum_{i \ne j} k(x_i, x_j)}_{G}
        - \frac{2}{n} \sum_i \underbrace{\frac{1}{m} \sum_a k(x_i, y_a)}_{c_i}
        + \underbrace{\frac{1}{m(m-1)} \sum_{a \ne b} k(y_a, y_b)}_{R}

with generated rows :math:`x` and reference rows :math:`y`. Every kernel value between generated rows is computed once,
when the later of the two arrives; :math:`c_i` once per row; :math:`R` once per reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

#: Rows per side of a block of kernel values: 8 MB in float64.
BLOCK = 1024


class Kernel(Protocol):
    """A positive definite kernel: a hashable value, so that what was computed with it can be remembered."""

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the values between all rows of two float64 matrices, shape ``(n, m)``."""


@dataclass(frozen=True)
class PolynomialKernel:
    r"""The kernel of KID, :math:`k(x, y) = (\gamma\, x^\top y + c)^p`.

    Args:
        degree: the power :math:`p`.
        gamma: :math:`\gamma`; ``None`` means one over the dimension.
        coef: :math:`c`.

    Example:
        >>> PolynomialKernel()(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
        tensor([[8., 1.]])
    """

    degree: int = 3
    gamma: float | None = None
    coef: float = 1.0

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the values between all rows of two matrices."""
        gamma = 1.0 / first.shape[1] if self.gamma is None else self.gamma
        return (first @ second.T).mul_(gamma).add_(self.coef).pow_(self.degree)


@dataclass(frozen=True)
class GaussianKernel:
    r"""The kernel of CMMD, :math:`k(x, y) = \exp(-\|x - y\|^2 / (2 \sigma^2))`.

    Args:
        sigma: its width :math:`\sigma`.
        unit_length: whether rows are scaled to length one first, as CMMD does with CLIP features.

    Example:
        >>> GaussianKernel(1.0)(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
        tensor([[1.0000, 0.3679]])
    """

    sigma: float = 10.0
    unit_length: bool = False

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the values between all rows of two matrices."""
        if self.unit_length:
            first, second = (torch.nn.functional.normalize(rows, dim=1) for rows in (first, second))
        squares = first.square().sum(1, keepdim=True) + second.square().sum(1) - 2 * (first @ second.T)
        return squares.clamp_min_(0.0).mul_(-0.5 / self.sigma**2).exp_()


class PairSums(NamedTuple):
    """Kernel sums over pairs of different rows.

    Args:
        totals: for every row, the sum over all others, ``(n,)``.
        squares: the sum of squares over all ordered pairs.
    """

    totals: Tensor
    squares: float

    @classmethod
    def empty(cls, device: torch.device | None = None) -> PairSums:
        """Sums of no rows."""
        return cls(torch.zeros(0, dtype=torch.float64, device=device), 0.0)


def add_pairs(sums: PairSums, blocks: Iterable[Tensor], rows: Tensor, kernel: Kernel) -> PairSums:
    """Return the sums of earlier and new rows together; only pairs with a new row are computed.

    Args:
        sums: the sums of the earlier rows.
        blocks: the earlier rows, in order.
        rows: the new rows, ``(b, d)``.
        kernel: the kernel.

    Example:
        >>> sums = PairSums.empty()
        >>> first, second = torch.eye(3)[:1], torch.eye(3)[1:]
        >>> sums = add_pairs(sums, [], first, PolynomialKernel(gamma=1.0))
        >>> add_pairs(sums, [first], second, PolynomialKernel(gamma=1.0)).totals
        tensor([2., 2., 2.], dtype=torch.float64)
    """
    new = rows.to(torch.float64)
    own = kernel(new, new).fill_diagonal_(0.0)
    totals, squares, earlier = own.sum(1), sums.squares + float(own.square().sum()), sums.totals.clone()
    done = 0
    for block in blocks:
        values = kernel(new, block.to(torch.float64))
        totals += values.sum(1)
        earlier[done : done + len(block)] += values.sum(0)
        squares += 2 * float(values.square().sum())
        done += len(block)
    return PairSums(torch.cat([earlier, totals]), squares)


def mean_similarity(rows: Tensor, others: Tensor, kernel: Kernel) -> Tensor:
    """Return the mean kernel value of every row with all of ``others``, ``(n,)``.

    Args:
        rows: shape ``(n, d)``.
        others: shape ``(m, d)``, taken block by block.
        kernel: the kernel.
    """
    values = rows.to(torch.float64)
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for block in torch.split(others, BLOCK):
        total += kernel(values, block.to(torch.float64)).sum(1)
    return total / len(others)


def mean_of_pairs(rows: Tensor, kernel: Kernel) -> float:
    """Return the mean kernel value of pairs of different rows.

    Args:
        rows: shape ``(n, d)`` with at least two rows.
        kernel: the kernel.
    """
    sums, blocks = PairSums.empty(rows.device), torch.split(rows, BLOCK)
    for number, block in enumerate(blocks):
        sums = add_pairs(sums, blocks[:number], block, kernel)
    return float(sums.totals.sum()) / (len(rows) * (len(rows) - 1))


def mmd_projection(sums: PairSums, similarity: Tensor, reference: float) -> Tensor:
    r"""Return the first-order (Hajek) projection of the unbiased squared MMD on the generated rows.

    .. math:: s_i = 2 g_i - 2 c_i + R - G, \qquad g_i = \frac{1}{n - 1} \sum_{j \ne i} k(x_i, x_j)

    Their mean is the statistic itself, :math:`2G - 2\bar c + R - G`, and their standard deviation over
    :math:`\sqrt n` its jackknife standard error up to a factor of :math:`1 + O(1/n)`: leaving row :math:`i` out changes
    the statistic by :math:`(s_i - \bar s)/n` plus second-order terms.

    Args:
        sums: kernel sums among the generated rows, at least two.
        similarity: mean kernel values :math:`c_i` of these rows with the reference, ``(n,)``.
        reference: the reference's own mean :math:`R`.

    Returns:
        One number per row, ``(n,)``.

    Example:
        >>> sums = PairSums(torch.tensor([2.0, 2.0]), 8.0)
        >>> mmd_projection(sums, torch.tensor([1.0, 2.0]), 3.0).mean()
        tensor(2.)
    """
    near = sums.totals / (len(sums.totals) - 1)
    return 2 * (near - similarity) + (reference - near.mean())


def second_order_variance(sums: PairSums) -> float:
    r"""Return the variance that the projection does not see: that of the kernel after removing both of its means.

    .. math:: \zeta = \frac{1}{n(n-1)} \sum_{i \ne j} \bigl(k(x_i, x_j) - g_i - g_j + G\bigr)^2

    The variance of the statistic is that of its projection plus :math:`2 \zeta / (n(n-1))`. This second part matters
    when the first one vanishes: at a generator whose distribution is that of the reference (*degenerate* statistic).

    Args:
        sums: kernel sums among the generated rows, at least two.
    """
    count = len(sums.totals)
    near = sums.totals / (count - 1)
    mean, pairs = float(near.mean()), count * (count - 1)
    spread = float((near - near.mean()).square().sum())
    return max(sums.squares / pairs - mean**2 - 2 * spread / (count - 1), 0.0)
