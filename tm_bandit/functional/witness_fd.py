r"""Witnesses of the Frechet distance: any of them bounds it from below by an ordinary mean.

Why any witness is on the optimistic side
-----------------------------------------
Move mass from the generator's Gaussian to the reference's along any coupling; the least mean squared move is the
Frechet distance. Take a convex quadratic :math:`u(x) = x'Tx/2 + a'x` and its convex conjugate
:math:`u^*(z) = (z-a)'T^{-1}(z-a)/2`. Fenchel's inequality :math:`u(x) + u^*(z) \ge x'z` turns every single move into

.. math:: \|x - z\|^2 = \|x\|^2 + \|z\|^2 - 2x'z \;\ge\; \|x\|^2 - 2u(x) \;+\; \|z\|^2 - 2u^*(z).

The right side no longer couples :math:`x` and :math:`z`, so its expectation is the same for every coupling, including
the cheapest one. With the reference's part in closed form this is the *witness score*

.. math::
    \psi(x) = \|x\|^2 - x'Tx - 2a'x + \mathrm{Tr} S_r + \|m_r\|^2
              - \mathrm{Tr}(S_r T^{-1}) - (m_r - a)'T^{-1}(m_r - a), \qquad E_g[\psi] \le \mathrm{FD}_g.

Only the first two moments of :math:`g` enter :math:`E_g[\psi]`, hence no Gaussian assumption. (The *width* around the
mean of scores needs two moments of :math:`\psi`, which are four of :math:`g`.) The best witness (the optimal transport
map) makes it an equality; a poor one makes it loose, never wrong, as long as it was fitted on samples other than those
it scores.

All functions work in the coordinates ``y = (x - m_r) V / scale`` of the eigenbasis ``V`` of the reference covariance,
with eigenvalues in descending order, and are vectorised over leading dimensions: one fold, all folds, or all folds of
many runs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

#: Leading axes with a full (rotating) witness: up to 256, where 512 would add at most 3 % at 500 rows for 8 times the
#: cost; then one for every four rows, up to what a rare late refit can afford (2048 take 14 s and a gigabyte).
EARLY_BLOCK, ROWS_PER_AXIS, MAX_BLOCK = 256, 4, 1024
#: Least share of the mean eigenvalue that the fit gives to an axis of the reference: dead features have no logarithm.
_EIGENVALUE_FLOOR = 1e-6
#: Least share of the reference's variance in a fit: the map is its inverse root, so it stretches no axis beyond 100.
_VARIANCE_FLOOR = 1e-4
#: Bias and variance, times n, of a log variance: 1 and 2 for Gaussian rows; tuned on arms of real features.
_LOG_BIAS, _LOG_VARIANCE = 1.15, 2.3
#: Multiple of its noise that a bin's mean shift must exceed: with James and Stein's 1, half of pure noise would pass.
_SHIFT_MARGIN = 1.5
#: Rows by which the noise of squared correlations is overstated: 0 was bad below 200 rows, factor 2 or 3 lost 11-18 %.
_ROTATION_ROWS = 10
#: Least share of an axis's uncorrelated value that an eigenvalue of the block keeps while rows are fewer than three per
#: axis: shrunken sub-blocks are then inconsistent, and negative eigenvalues have no root.
_EIGEN_SHARE = 0.3
#: Least damping factor, tuned on arms of real features: at 0 a witness is the trivial one, whose bound is zero.
_MIN_DAMPING = 0.3


class FrechetSums(NamedTuple):
    """Sums over rows from which a witness is fitted; they can be added, so "all folds but one" needs no rows.

    Args:
        num: number of rows, shape ``(...)``.
        first: sum of the rows, ``(..., d)``.
        second: sum of the squared rows, ``(..., d)``.
        block: sum of the outer products of the leading ``k`` axes, ``(..., k, k)``.
        bins: per bin of axes, the sum of the rows' energy in it, ``(..., b)``.
        bins_squared: sum of the squared energies, ``(..., b)``.
    """

    num: Tensor
    first: Tensor
    second: Tensor
    block: Tensor
    bins: Tensor
    bins_squared: Tensor

    def plus(self, other: FrechetSums) -> FrechetSums:
        """Sums of the union of two disjoint sets of rows."""
        return FrechetSums(*(a + b for a, b in zip(self, other, strict=True)))


class FrechetFit(NamedTuple):
    """The optimal map from the shrunken moments of the training rows to the reference, one per leading index.

    Args:
        block: the map ``T`` on the leading axes, ``(..., k, k)``.
        diagonal: the map on the other axes, ``(..., d - k)``.
        mean: the shrunken mean, ``(..., d)``.
        predicted: the Frechet distance of the shrunken moments, ``(...)``: what the witness aims to show.
        spectrum: fitted eigenvalues of ``S_r^1/2 S_g S_r^1/2``, ``(..., d)``, in no particular order.
    """

    block: Tensor
    diagonal: Tensor
    mean: Tensor
    predicted: Tensor
    spectrum: Tensor


class FrechetWitness(NamedTuple):
    """The score ``y'Ay + c'y^2 + b'y + const``, one per leading index.

    Args:
        block: ``A = I - T`` on the leading axes, ``(..., k, k)``.
        curvature: ``c = 1 - t`` on the other axes and zero on the block, ``(..., d)``.
        linear: ``b = -2a``, ``(..., d)``.
        constant: everything that does not depend on the row, ``(...)``.
    """

    block: Tensor
    curvature: Tensor
    linear: Tensor
    constant: Tensor


class Axes(NamedTuple):
    """What the fit needs to know about the reference, in its own eigenbasis and scale.

    Args:
        eigenvalues: of the reference covariance, descending, not negative, ``(d,)``.
        floored: the same with a floor, which stands for them wherever a logarithm or an inverse is taken.
        membership: which bin an axis belongs to, one-hot, ``(d, b)``.
    """

    eigenvalues: Tensor
    floored: Tensor
    membership: Tensor


def make_axes(eigenvalues: Tensor) -> Axes:
    """Prepare the reference's eigenvalues for the fit: floor them and lay the bins ``[0, 8), [8, 16), [16, 32), ...``.

    Args:
        eigenvalues: of the reference covariance in descending order, ``(d,)``.

    Example:
        >>> make_axes(torch.ones(20)).membership.sum(0).tolist()
        [8.0, 8.0, 4.0]
    """
    values = eigenvalues.double().clamp_min(0)
    mean = values.mean()
    floor = _EIGENVALUE_FLOOR * mean if mean > 0 else torch.ones_like(mean)
    index = torch.arange(values.numel(), device=values.device)
    label = (index.clamp_min(4).double() / 4).log2().floor().long()
    membership = torch.nn.functional.one_hot(label).to(values)
    return Axes(values, values.clamp_min(floor), membership)


def block_size(count: int, dim: int) -> int:
    """Number of leading axes that get a full block with ``count`` rows.

    Args:
        count: number of rows.
        dim: number of features.

    Example:
        >>> [block_size(n, 2048) for n in (1, 20, 300, 1500, 2048, 9000)], block_size(300, 10)
        ([1, 16, 256, 256, 512, 1024], 10)
    """
    most = min(count, max(EARLY_BLOCK, min(count // ROWS_PER_AXIS, MAX_BLOCK)))
    return dim if dim <= most else 2 ** int(math.log2(max(most, 1)))


def sum_rows(rows: Tensor, axes: Axes, block: int) -> FrechetSums:
    """Sum what the fit needs over the second-to-last dimension of ``rows``.

    Args:
        rows: rotated rows, ``(..., n, d)``.
        axes: the reference.
        block: number of leading axes in the block.
    """
    squared = rows.square()
    energy = (squared @ (axes.membership / axes.floored.sqrt()[:, None]).to(rows)).double()
    head = rows[..., :block]
    count = torch.full(rows.shape[:-2], rows.shape[-2], dtype=torch.float64, device=rows.device)
    return FrechetSums(
        count,
        rows.sum(-2).double(),
        squared.sum(-2).double(),
        (head.transpose(-1, -2) @ head).double(),
        energy.sum(-2),
        energy.square().sum(-2),
    )


def fit_frechet_map(sums: FrechetSums, axes: Axes) -> FrechetFit:
    r"""Fit a witness in closed form: empirical Bayes per bin of axes, and nothing is selected.

    * Variances: the log ratios to the reference are shrunk toward their bin's mean, and that toward zero.
    * Mean: a James-Stein factor per bin, so that a mean shift that is noise costs nothing.
    * Rotation: the correlations of the leading axes are shrunk per pair of bins by the share that noise explains.

    The witness is the optimal map between the reference and the Gaussian with these shrunken moments.

    Args:
        sums: sums over the training rows, at least two of them.
        axes: the reference.
    """
    n = sums.num[..., None]
    floored, member = axes.floored, axes.membership
    root = floored.sqrt()
    k = sums.block.shape[-1]
    mean = sums.first / n
    raw = (sums.second - n * mean.square()) / (n - 1).clamp_min(1)
    variance = torch.maximum(raw, _VARIANCE_FLOOR * floored)

    # Variances.
    log_ratio = (variance / floored).log() + _LOG_BIAS / n
    weight = root * variance.sqrt()
    weight_sum = weight @ member
    centre = (weight * log_ratio) @ member / weight_sum
    spread = (weight * (log_ratio - centre @ member.T).square()) @ member / weight_sum
    keep = (1 - (_LOG_VARIANCE / n) / spread.clamp_min(1e-300)).clamp_min(0)
    energy = sums.bins / n
    energy_variance = (sums.bins_squared / n - energy.square()).clamp_min(0)
    noise = energy_variance / n / energy.square().clamp_min(1e-300)
    pulled = centre * (1 - noise / centre.square().clamp_min(1e-300)).clamp_min(0)
    log_fit = pulled @ member.T + (keep @ member.T) * (log_ratio - centre @ member.T)
    fitted = torch.maximum(floored * log_fit.exp(), _VARIANCE_FLOOR * floored)
    map_diagonal = (floored / fitted).sqrt()

    # Mean.
    size = member.sum(0)
    signal = (map_diagonal * mean.square()) @ member
    chance = (map_diagonal * variance / n) @ member * (size - 2).clamp_min(1) / size
    mean = mean * ((1 - _SHIFT_MARGIN * chance / signal.clamp_min(1e-300)).clamp_min(0) @ member.T)

    # Rotation of the leading axes.
    head = sums.first[..., :k] / n
    covariance = sums.block - n[..., None] * head[..., :, None] * head[..., None, :]
    deviation = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    scale = torch.where(deviation > 0, 1 / deviation.clamp_min(1e-150), 0.0)
    correlation = (scale[..., :, None] * covariance * scale[..., None, :]).clamp(-1, 1)
    off_diagonal = 1 - torch.eye(k, dtype=correlation.dtype, device=correlation.device)
    correlation = correlation * off_diagonal
    head_member = member[:k]
    pairs = (head_member.T @ off_diagonal @ head_member).clamp_min(1)
    strength = head_member.T @ correlation.square() @ head_member / pairs
    rows = n[..., None]
    factor = (1 - (1 + _ROTATION_ROWS / rows) / (rows * strength).clamp_min(1e-300)).clamp_min(0)
    shrunk = correlation * (head_member @ factor @ head_member.T)
    spread_root = root[:k] * fitted[..., :k].sqrt()
    cross = spread_root[..., :, None] * shrunk * spread_root[..., None, :]
    cross = cross + torch.diag_embed(spread_root.square())
    values, vectors = torch.linalg.eigh(cross)
    # Shrinking sub-blocks by different factors can leave negative eigenvalues. None may fall below a share of what its
    # direction would have without any correlation; the share vanishes as rows outnumber the axes.
    alone = (vectors.square().transpose(-1, -2) @ spread_root.square()[..., None]).squeeze(-1)
    values = torch.maximum(values, (k / n).clamp_max(_EIGEN_SHARE) * alone)
    inverse_root = (vectors * values.rsqrt()[..., None, :]) @ vectors.transpose(-1, -2)
    map_block = root[:k, None] * inverse_root * root[:k]

    spectrum = torch.cat([values, floored[k:] * fitted[..., k:]], -1)
    predicted = mean.square().sum(-1) + fitted.sum(-1) + floored.sum() - 2 * spectrum.sqrt().sum(-1)
    return FrechetFit(map_block, map_diagonal[..., k:], mean, predicted, spectrum)


def damp_witness(fit: FrechetFit, axes: Axes, damping: Tensor) -> FrechetWitness:
    r"""Turn a fit into a score, pulled back toward the trivial witness ``T = I, a = 0`` whose score is zero.

    With ``damping`` :math:`\lambda`, :math:`T \leftarrow (1-\lambda) I + \lambda T` and
    :math:`m \leftarrow \lambda m`. The mean of the score falls as :math:`2\lambda - \lambda^2`, its standard deviation
    as :math:`\lambda`: while the width is of the order of the gain, a damped witness gives the better bound.

    Args:
        fit: the optimal maps.
        axes: the reference.
        damping: one number in (0, 1] per fit, ``(...)``.
    """
    raw, block, mean, mapped = _damped_parts(fit, damping)
    k = block.shape[-1]
    diagonal = 1 - raw.curvature[..., k:]
    # Tr(S_r T^-1) with the true eigenvalues: a floor there would be a bound on the distance to another reference.
    factor, failed = torch.linalg.cholesky_ex(block)
    usable = torch.where((failed == 0)[..., None, None], factor, torch.eye(k).to(factor))
    inverse = torch.cholesky_inverse(usable).diagonal(dim1=-2, dim2=-1)
    trace = (axes.eigenvalues[:k] * inverse).sum(-1) + (axes.eigenvalues[k:] / diagonal).sum(-1)
    constant = axes.eigenvalues.sum() - trace - (mapped * mean).sum(-1)
    # A map that is not numerically positive proves nothing; the trivial witness, whose score is zero, replaces it.
    usable = (failed == 0) & constant.isfinite()
    parts = raw._replace(constant=constant)
    return FrechetWitness(
        *(torch.where(usable.reshape(usable.shape + (1,) * (part.dim() - usable.dim())), part, 0.0) for part in parts)
    )


def _damped_parts(fit: FrechetFit, damping: Tensor) -> tuple[FrechetWitness, Tensor, Tensor, Tensor]:
    """Return the damped score without its constant, the damped block of the map, the damped mean and its image."""
    k = fit.block.shape[-1]
    eye = torch.eye(k, dtype=fit.block.dtype, device=fit.block.device)
    part = damping[..., None]
    change = part[..., None] * (eye - fit.block)
    bend = part * (1 - fit.diagonal)
    mean = part * fit.mean
    mapped = mean - torch.cat([(change @ mean[..., :k, None]).squeeze(-1), bend * mean[..., k:]], -1)
    curvature = torch.cat([torch.zeros_like(mean[..., :k]), bend], -1)
    return FrechetWitness(change, curvature, 2 * mapped, torch.zeros_like(damping)), eye - change, mean, mapped


def score_rows(witness: FrechetWitness, rows: Tensor) -> Tensor:
    """Score rows with the witness of the same leading index.

    Args:
        witness: one score per leading index ``(...)``.
        rows: rotated rows, ``(..., n, d)``.

    Returns:
        Scores in float64, ``(..., n)``.
    """
    block, curvature, linear = witness.block.to(rows), witness.curvature.to(rows), witness.linear.to(rows)
    head = rows[..., : block.shape[-1]]
    quadratic = ((head @ block) * head).sum(-1)
    rest = (rows.square() @ curvature[..., None] + rows @ linear[..., None]).squeeze(-1)
    return quadratic.double() + rest.double() + witness.constant[..., None]


def mean_score(witness: FrechetWitness, sums: FrechetSums) -> Tensor:
    """Mean score of rows, from their sums alone.

    Args:
        witness: one score per leading index ``(...)``.
        sums: sums over the rows, with the same block, of no leading index or the same.
    """
    quadratic = (witness.block * sums.block).sum((-1, -2))
    rest = (witness.curvature * sums.second + witness.linear * sums.first).sum(-1)
    return (quadratic + rest) / sums.num + witness.constant


def gaussian_score_std(witness: FrechetWitness, sums: FrechetSums) -> Tensor:
    r"""Standard deviation of the scores if the rows were Gaussian with the moments in ``sums``; for rows that are gone.

    .. math:: \mathrm{Var}\,\psi = 2 \mathrm{Tr} (A S)^2 + \|S^{1/2} (b + 2 A m)\|^2

    The axes beyond the block are taken as uncorrelated.

    Args:
        witness: one score per leading index.
        sums: sums over the rows, with the same leading index and block.
    """
    n = sums.num[..., None]
    k = sums.block.shape[-1]
    mean = sums.first / n
    variance = (sums.second / n - mean.square()).clamp_min(0)
    head = mean[..., :k]
    covariance = sums.block / n[..., None] - head[..., :, None] * head[..., None, :]
    product = witness.block @ covariance
    curved = torch.cat([(witness.block @ head[..., None]).squeeze(-1), witness.curvature[..., k:] * mean[..., k:]], -1)
    slope = witness.linear + 2 * curved
    quadratic = (product * product.transpose(-1, -2)).sum((-1, -2))
    rest = (witness.curvature * variance)[..., k:].square().sum(-1)
    steep = slope[..., :k]
    linear = (steep * (covariance @ steep[..., None]).squeeze(-1)).sum(-1)
    return (2 * (quadratic + rest) + linear + (slope.square() * variance)[..., k:].sum(-1)).clamp_min(0).sqrt()


def choose_damping(fit: FrechetFit, rows: Tensor, use: Tensor, width: float) -> Tensor:
    r"""Choose how much of each fitted witness to keep: the :math:`\lambda` that maximises gain minus width.

    .. math:: \lambda = \mathrm{clip}(1 - W s / (2 M), 0.3, 1)

    with the predicted gain :math:`M`, the spread :math:`s` of the undamped scores on training rows and the width
    :math:`W` of the confidence sequence. Only training rows enter, so the damped witness is as valid as the fit.

    Args:
        fit: the optimal maps, one per leading index ``(...)``.
        rows: some rows, ``(..., n, d)``, seen by all fits of the last leading dimension.
        use: for each fit, which rows it is trained on, ``(..., n)``, zero or one.
        width: half-width of the confidence sequence for scores of variance one.
    """
    block, curvature, linear, _ = (part.to(rows) for part in _damped_parts(fit, torch.ones_like(fit.predicted))[0])
    # All witnesses see the same rows here, so their diagonal and linear parts are one matrix product each.
    head = rows[..., None, :, : block.shape[-1]]
    quadratic = ((head @ block) * head).sum(-1)
    scores = (quadratic + curvature @ rows.square().transpose(-1, -2) + linear @ rows.transpose(-1, -2)).double()
    count = use.sum(-1).clamp_min(2)
    mean = (scores * use).sum(-1) / count
    std = (((scores - mean[..., None]) * use).square().sum(-1) / (count - 1)).sqrt()
    ratio = width * std / (2 * fit.predicted.clamp_min(1e-300))
    return torch.nan_to_num(1 - ratio, nan=0.0).clamp(_MIN_DAMPING, 1.0)
