"""The reference in its own eigenbasis, in which witnesses are fitted."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit.functional.moments import Moments
from tm_bandit.functional.witness_fd import Axes, FrechetSums, make_axes

#: Up to this dimension rows are rotated and scored in float64; beyond it float32 halves memory and time.
_DOUBLE_UP_TO = 256
#: Beyond this, in units of the reference's scale, float32 is not an option: a cube of it nearly overflows.
_LARGEST_SINGLE = 1e12
#: This few rows are multiplied with strips of this many columns: otherwise threads wait for each other.
_FEW_ROWS, _STRIP = 64, 256


class FrechetBasis(NamedTuple):
    """The reference as the witness sees it: made once, shared by all arms.

    Args:
        center: mean of the reference, ``(d,)``.
        projection: its eigenvectors divided by ``scale``, ``(d, d)``, in the dtype that rows are rotated in.
        axes: its eigenvalues in units of ``scale`` squared.
        scale: root of the mean eigenvalue; in its units no score overflows.
    """

    center: Tensor
    projection: Tensor
    axes: Axes
    scale: float

    @classmethod
    def from_eigen(cls, mean: Tensor, eigenvalues: Tensor, eigenvectors: Tensor) -> FrechetBasis:
        """Prepare an eigen-decomposition of the reference covariance.

        Args:
            mean: mean of the reference, ``(d,)``.
            eigenvalues: in descending order, ``(d,)``.
            eigenvectors: as columns, ``(d, d)``.
        """
        level = float(eigenvalues.mean().clamp_min(0))
        scale = level**0.5 if level > 0 else 1.0
        dtype = torch.float64 if mean.numel() <= _DOUBLE_UP_TO else torch.float32
        projection = (eigenvectors.double() / scale).to(dtype).contiguous()
        return cls(mean.double(), projection, make_axes(eigenvalues.double() / scale**2), scale)

    def rotate(self, rows: Tensor) -> Tensor:
        """Map rows ``(n, d)`` to centred, scaled coordinates of the eigenbasis.

        Args:
            rows: feature rows of any floating dtype.

        Returns:
            The rotated rows, in the projection's dtype unless they are so far out that their squares would overflow it.
        """
        centred = rows.to(self.center) - self.center
        rotated = _product(centred.to(self.projection.dtype), self.projection)
        if rotated.dtype == torch.float64 or bool((rotated.abs() < _LARGEST_SINGLE).all()):
            return rotated
        return centred @ self.projection.double()

    def sums_of(self, moments: Moments, block: int) -> FrechetSums:
        """Sums for the fit from moments of rows that are gone; the energies of single rows are gone with them.

        Args:
            moments: count, mean and scatter in the original coordinates.
            block: number of leading axes in the block.
        """
        turn = self.projection.double()
        mean = (moments.mean - self.center) @ turn
        half = moments.scatter @ turn
        second = (turn * half).sum(0) + moments.count * mean.square()
        head = turn[:, :block].T @ half[:, :block] + moments.count * mean[:block, None] * mean[:block]
        num = torch.tensor(float(moments.count), dtype=torch.float64, device=mean.device)
        empty = torch.zeros(self.axes.membership.shape[1], dtype=torch.float64, device=mean.device)
        return FrechetSums(num, moments.count * mean, second, head, empty, empty)


def _product(rows: Tensor, projection: Tensor) -> Tensor:
    """Multiply; a few rows times a large matrix leave threads waiting, but a few rows times its strips do not."""
    count, dim = rows.shape
    if not rows.is_cpu or not 1 < count <= _FEW_ROWS or dim % _STRIP or dim == _STRIP:
        return rows @ projection
    strips = projection.view(dim, dim // _STRIP, _STRIP).transpose(0, 1)
    return torch.bmm(rows.expand(len(strips), count, dim), strips).transpose(0, 1).reshape(count, dim)
