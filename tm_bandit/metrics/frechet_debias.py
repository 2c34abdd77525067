"""The near-unbiased Frechet distance of a metric's rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit.functional.crossfit import fold_numbers
from tm_bandit.functional.debias import RootTrace, merge_biases, slope_ratio, slope_weight, spectral_bias
from tm_bandit.functional.frechet import sqrt_trace
from tm_bandit.functional.jackknife import root_traces_without
from tm_bandit.functional.moments import Moments, merge_moments
from tm_bandit.functional.witness_fd import FrechetSums, block_size, damp_witness, fit_frechet_map, gaussian_score_std
from tm_bandit.metrics.frechet_stream import WitnessSummary
from tm_bandit.metrics.row_log import RowLog
from tm_bandit.metrics.sample_spectrum import BLOCK, SampleSpectrum, rotated_moments, shifted
from tm_bandit.reference import ReferenceStatistics

#: At most this many rows, the latest, are left out in turn: a limit on time, not tuned.
_MOST = 512
#: Two halves of two rows: with fewer one of them has no covariance.
_FEWEST = 4


class Parts(NamedTuple):
    """What parts of the rows say about all of them.

    Args:
        num: number of rows at which it was measured.
        ratio: slope ratio of the bias, if it was asked for.
        left_out: distance of the latest rows without each of them in turn, less its bias.
        second: variance that such a distance has next to the reference, where it is of second order in the rows.
    """

    num: int
    ratio: float | None
    left_out: Tensor
    second: float

    def stderr(self, count: int) -> float:
        """Return the standard error of the distance of this many rows.

        Efron and Stein: the jackknife's variance counts what is linear in the rows once and what is of second order
        twice. The latter is known where it matters, next to the reference, and is at most half of the total.

        Args:
            count: how many.
        """
        variance = _jackknife(self.left_out)
        return math.sqrt(max(variance - self.second, variance / 2) * len(self.left_out) / count)

    def stderr_of_difference(self, other: Parts, count: int) -> float | None:
        """Return the standard error of the difference to another arm's distance, both over this many common draws.

        Args:
            other: what parts of the other arm's rows say.
            count: how many.
        """
        if len(self.left_out) != len(other.left_out):
            return None
        return math.sqrt(_jackknife(self.left_out - other.left_out) * len(self.left_out) / count)


def curve_scale(spectrum: SampleSpectrum) -> float:
    """Return what the reference's bias curve is multiplied by for rows of another total variance.

    Args:
        spectrum: spectra of the rows.
    """
    total = float(spectrum.reference.trace)
    own = float(spectrum.trace) / max(spectrum.count - 1, 1)
    return math.sqrt(own / total) if total > 0 else 1.0


def measure_parts(reference: ReferenceStatistics, log: RowLog, count: int, slope: bool) -> Parts | None:
    """Compare disjoint parts of the rows.

    Args:
        reference: statistics of the real data.
        log: the rows; those that are no longer kept are one of the parts.
        count: how many of the rows to look at, those that are no longer kept included.
        slope: whether the slope of the bias is wanted as well.

    Returns:
        What was found, or ``None`` if too few rows are kept.
    """
    if count - log.gone < _FEWEST:
        return None
    kept = torch.cat(list(log.blocks(0, count - log.gone, count)))
    return Parts(count, _slope(reference, log.folded, kept) if slope else None, *_left_out(reference, kept))


def _slope(reference: ReferenceStatistics, folded: Moments | None, kept: Tensor) -> float:
    """How fast the bias falls, as a ratio to the reference's own curve."""
    if folded is not None:
        later = shifted(torch.split(kept, BLOCK), reference.mean)
        parts = [rotated_moments(reference, folded, ()), rotated_moments(reference, None, later)]
    else:
        # Half of every ten rows, so that a drift of the sampler affects both parts alike.
        side = fold_numbers(0, len(kept)).to(kept.device) % 2
        halves = (shifted(torch.split(kept[side == half], BLOCK), reference.mean) for half in (0, 1))
        parts = [rotated_moments(reference, None, half) for half in halves]
    # Merged, not measured: turning the rows and multiplying them with each other is most of the work.
    whole, *traces = (_root_trace(moments) for moments in (merge_moments(*parts), *parts))
    return slope_ratio(whole, traces, reference.bias)


def _root_trace(rotated: Moments) -> RootTrace:
    """The trace of the root with the ``1/n`` covariance."""
    return RootTrace(float(sqrt_trace(rotated.scatter)) / math.sqrt(rotated.count), rotated.count)


def _jackknife(left_out: Tensor) -> float:
    return (len(left_out) - 1) * float(left_out.var(correction=0))


def _left_out(reference: ReferenceStatistics, kept: Tensor) -> tuple[Tensor, float]:
    """Return the distance without each row in turn, minus its bias, and its variance next to the reference.

    The bias moves with the total variance: the reference's curve like its root, the shrunken fitted spectrum hardly at
    all; so take the middle. What a part of the rows shows is scaled by the root of their number, which falls no faster
    than the noise.
    """
    basis = reference.witness_basis
    rows = basis.rotate(kept[-_MOST:]).double()
    values, total, count = basis.axes.eigenvalues, basis.axes.eigenvalues.sum(), len(rows)
    mean = rows.mean(0)
    rows = rows - mean
    squared = rows.square().sum(1)
    trace = (squared.sum() - count / (count - 1) * squared) / (count - 1)
    shift = mean @ mean - 2 * (rows @ mean) / (count - 1) + squared / (count - 1) ** 2
    root = root_traces_without(rows * values.sqrt())[1] / math.sqrt(count - 1)
    own = (trace / total) ** 0.25 if total > 0 else torch.ones_like(trace)
    distances = shift + trace - 2 * root - own * reference.bias(count - 1) / basis.scale**2
    return distances * basis.scale**2, (reference.noise / count) ** 2


class Fit(NamedTuple):
    """What a fitted witness says besides its bound.

    Args:
        lowest: lower limit of the debiased distance: the mean of the scores, or zero.
        stderr: first-order standard error of the distance.
        product: fitted eigenvalues of the product of both covariances, if there was a fit.
    """

    lowest: float
    stderr: float
    product: Tensor | None

    @classmethod
    def of_summary(cls, summary: WitnessSummary) -> Fit:
        """Build it from the scores of rows that are still kept.

        Args:
            summary: what the witness says about them.
        """
        scores = summary.scores
        lowest = max(0.0, scores.mean) if scores.count >= 2 else 0.0
        return cls(lowest, scores.stderr / summary.damping, summary.spectrum)

    @classmethod
    def of_moments(cls, reference: ReferenceStatistics, folded: Moments) -> Fit:
        """Fit from the moments of rows that are gone; the spread of their scores is then a Gaussian's.

        Args:
            reference: statistics of the real data.
            folded: moments of the rows.
        """
        basis = reference.witness_basis
        single = basis.sums_of(folded, block_size(folded.count, reference.num_features))
        sums = FrechetSums(*(part[None] for part in single))
        fit = fit_frechet_map(sums, basis.axes)
        std = gaussian_score_std(damp_witness(fit, basis.axes, torch.ones_like(fit.predicted)), sums)
        unit = basis.scale**2
        return cls(0.0, float(std) * unit / math.sqrt(folded.count), fit.spectrum[0] * unit**2)


def debiased_value(
    spectrum: SampleSpectrum, plug_in: float, fit: Fit, parts: Parts | None = None
) -> tuple[float, float]:
    """Subtract the bias from the plug-in, and stay between the witness mean and the plug-in.

    Args:
        spectrum: spectra of the rows.
        plug_in: their distance with the ``1/n`` covariance.
        fit: what the witness knows about them.
        parts: what parts of the rows say, if there are enough of them.

    Returns:
        The estimate and its standard error: what leaving out rows in turn shows or, if no rows are kept, what the
        witness sees of the noise, to first and second order.
    """
    reference, count = spectrum.reference, spectrum.count
    curve = reference.bias(count)
    bias = curve_scale(spectrum) * curve
    stderr = math.hypot(fit.stderr, reference.noise / count)
    if fit.product is not None:
        bias = merge_biases(bias, spectral_bias(fit.product, count), count, reference.num_features)
    if parts is not None:
        if parts.ratio is not None:
            bias += slope_weight(count, reference.num_features) * (parts.ratio * curve - bias)
        stderr = parts.stderr(count)
    return min(max(plug_in - bias, fit.lowest), max(plug_in, fit.lowest)), stderr
