"""The near-unbiased Frechet distance of a metric's rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit.functional.crossfit import fold_numbers, refit_counts
from tm_bandit.functional.debias import RootTrace, own_weight, slope_ratio, slope_weight, spectral_bias
from tm_bandit.functional.frechet_stream import WitnessSummary
from tm_bandit.functional.moments import Moments
from tm_bandit.functional.witness_fd import FrechetSums, block_size, damp_witness, fit_frechet_map, gaussian_score_std
from tm_bandit.metrics._spectrum import SampleSpectrum
from tm_bandit.reference import ReferenceStatistics


class Slope(NamedTuple):
    """A slope ratio and the number of rows at which it was measured."""

    ratio: float
    num: int


def root_trace(spectrum: SampleSpectrum) -> RootTrace:
    """Return the trace of the root with the ``1/n`` covariance.

    Args:
        spectrum: spectra of some rows.
    """
    return RootTrace(float(spectrum.root_trace) / math.sqrt(spectrum.count), spectrum.count)


def curve_scale(spectrum: SampleSpectrum) -> float:
    """Return what the reference's bias curve is multiplied by for rows of another total variance.

    Args:
        spectrum: spectra of the rows.
    """
    total = float(spectrum.reference.trace)
    own = float(spectrum.trace) / max(spectrum.count - 1, 1)
    return math.sqrt(own / total) if total > 0 else 1.0


def measure_slope(
    reference: ReferenceStatistics, folded: Moments | None, rows: Sequence[Tensor], known: Slope | None
) -> Slope | None:
    """Measure how fast the bias falls, from disjoint parts of the rows; anew when their number has grown by a refit.

    Args:
        reference: statistics of the real data.
        folded: moments of rows that are no longer kept; they are one of the parts.
        rows: batches that are kept.
        known: what was measured before.

    Returns:
        The slope, or ``None`` if there are no two parts.
    """
    gone = 0 if folded is None else folded.count
    count = max(refit_counts(gone + sum(batch.shape[0] for batch in rows)), default=0)
    if known is not None and known.num == count:
        return known
    kept = torch.cat(list(rows))[: max(count - gone, 0)] if rows else None
    if kept is None or len(kept) < 4:
        return known
    if folded is not None:
        parts = [_measured(reference, folded, []), _measured(reference, None, [kept])]
    else:
        # Half of every ten rows, so that a drift of the sampler is in both parts alike.
        side = fold_numbers(0, len(kept)).to(kept.device) % 2
        parts = [_measured(reference, None, [kept[side == half]]) for half in (0, 1)]
    return Slope(slope_ratio(_measured(reference, folded, [kept]), parts, reference.bias), count)


def _measured(reference: ReferenceStatistics, folded: Moments | None, rows: Sequence[Tensor]) -> RootTrace:
    spectrum = SampleSpectrum(reference, norms=False)
    spectrum.read(folded, rows)
    return root_trace(spectrum)


class Fit(NamedTuple):
    """What a fitted witness says beside its bound.

    Args:
        lowest: what the debiased distance is not below, the mean of the scores or zero.
        stderr: first-order standard error of the distance.
        product: fitted eigenvalues of the product of both covariances, if there was a fit.
    """

    lowest: float
    stderr: float
    product: Tensor | None

    @classmethod
    def of_summary(cls, summary: WitnessSummary) -> Fit:
        """Take it from the scores of rows that are at hand.

        Args:
            summary: what the witness says about them.
        """
        scores = summary.scores
        lowest = max(0.0, scores.mean) if scores.count >= 2 else 0.0
        return cls(lowest, scores.stderr / summary.damping, summary.spectrum)

    @classmethod
    def of_moments(cls, reference: ReferenceStatistics, folded: Moments) -> Fit:
        """Fit from the moments of rows that are gone; their scores' spread is then a Gaussian's.

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


def debiased_value(spectrum: SampleSpectrum, plug_in: float, fit: Fit, slope: Slope | None) -> float:
    """Subtract the bias from the plug-in, and stay between the witness mean and the plug-in.

    Args:
        spectrum: spectra of the rows.
        plug_in: their distance with the ``1/n`` covariance.
        fit: what the witness knows of them.
        slope: measured slope ratio, if there are rows enough for it.
    """
    reference, count = spectrum.reference, spectrum.count
    curve = reference.bias(count)
    bias = curve_scale(spectrum) * curve
    if fit.product is not None:
        bias += own_weight(count, reference.num_features) * (spectral_bias(fit.product, count) - bias)
    if slope is not None:
        bias += slope_weight(count, reference.num_features) * (slope.ratio * curve - bias)
    return min(max(plug_in - bias, fit.lowest), max(plug_in, fit.lowest))
