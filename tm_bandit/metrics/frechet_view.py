"""What the rows of a metric say about their Frechet distance: each number is computed on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tm_bandit.bounds.bound import Bound, Guarantee
from tm_bandit.bounds.fd_bounds import CovarianceNorms, FrechetTuning, covariance_norms, threshold_covariance
from tm_bandit.functional.confidence import MIN_CERTIFIED, deviation
from tm_bandit.functional.crossfit import MIN_ROWS, refit_counts
from tm_bandit.functional.debias import slope_weight, spectral_bias
from tm_bandit.functional.frechet import assemble
from tm_bandit.functional.reference_noise import ReferenceNoise, tail_ratio
from tm_bandit.metrics.frechet_debias import Fit, Parts, debiased_value, measure_parts
from tm_bandit.metrics.frechet_stream import FrechetStream, WitnessSummary, upper_bound
from tm_bandit.metrics.row_log import RowLog, as_list
from tm_bandit.metrics.sample_spectrum import SampleSpectrum
from tm_bandit.reference import ReferenceStatistics

#: Rows that show how heavy the tails are: with this many, a fourth moment is known to a tenth, if it exists at all.
_TAIL_ROWS = 512


@dataclass(frozen=True)
class RowView:
    """One look at rows, with the settings that the metric has at that moment.

    Args:
        log: the rows, and what was derived from them before.
        reference: statistics of the real data.
        settled: witness scores of rows that are no longer kept: a list state.
        level: failure probability of the look.
        width: confidence sequence of the witness bound.
        fitting: how witnesses are kept independent of the rows they score.
        tuning: returns the hyper-parameters of the reproduced bounds.
        scored: whether all rows have witness scores, including those no longer kept.
    """

    log: RowLog
    reference: ReferenceStatistics
    settled: Tensor | Sequence[Tensor]
    level: float
    width: Any
    fitting: Any
    tuning: Callable[[], FrechetTuning]
    scored: bool

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.log.length

    @property
    def dim(self) -> int:
        """Number of features."""
        return self.reference.num_features

    def gaps(self) -> tuple[float, float]:
        """Return the distance between the means, not squared, and the trace of the reference's root."""
        return math.sqrt(float(self.spectrum().mean_gap_squared)), float(self.reference.trace_root)

    def spectrum(self) -> SampleSpectrum:
        """Return the spectra of the rows."""
        spectrum = self.log.derive("spectrum", lambda: SampleSpectrum(self.reference), self.reference)
        spectrum.read(self.log)
        return spectrum

    def estimate(self) -> float:
        """Return the plug-in distance with the ``n - 1`` covariance, as all FID tools define it."""
        return self.plug_in(unbiased=True)

    def plug_in(self, unbiased: bool) -> float:
        """Return the plug-in distance.

        Args:
            unbiased: whether the covariance has ``n - 1`` or ``n``.
        """
        spectrum = self.spectrum()
        divisor = spectrum.count - int(unbiased)
        cross = spectrum.root_trace(self.log) / math.sqrt(divisor)
        return float(assemble(spectrum.mean_gap_squared, spectrum.trace / divisor, self.reference.trace, cross))

    def norms(self, unbiased: bool) -> CovarianceNorms:
        """Return the norms of the rows' covariance, thresholded if need be.

        Args:
            unbiased: whether the covariance has ``n - 1`` or ``n``.
        """
        spectrum, threshold = self.spectrum(), self.tuning().threshold
        divisor = spectrum.count - int(unbiased)
        if threshold > 0:
            return covariance_norms(threshold_covariance(spectrum.scatter(self.log) / divisor, self.count, threshold))
        return spectrum.norms(self.log, divisor)

    def stream(self) -> FrechetStream:
        """Return the witness scores of the rows; each end of the interval has half of the level."""
        settings = (self.reference, self.level / 2, self.width, self.fitting)

        def start() -> FrechetStream:
            scores = torch.cat(as_list(self.settled)) if len(self.settled) else None
            return FrechetStream(self.reference.witness_basis, *settings[1:], scores)

        return self.log.derive("stream", start, self.log.epoch, *settings)

    def summary(self) -> WitnessSummary:
        """Return what the witness says about the rows; one look needs it several times."""
        stream = self.stream()
        return self.log.derive("summary", lambda: stream.summary(self.log), self.log.key, stream)

    def reference_noise(self) -> ReferenceNoise | None:
        """Return what the noise of the reference does to an end of the interval; ``None`` if its size is not known.

        It is measured again when the rows have grown by a refit.
        """
        log, reference, images = self.log, self.reference, self.reference.num_samples
        if images is None:
            return None
        count = max(refit_counts(log.length), default=log.length)
        spectrum = self.summary().spectrum

        def measure() -> ReferenceNoise:
            # Of the reference's own spectrum and of the arm's, the one with more bias: both are guesses.
            own = 0.0 if spectrum is None else spectral_bias(spectrum, images)
            bias, largest = max(reference.bias(images), own), float(reference.eigenvalues[0])
            stop, basis = count - log.gone if count > log.gone else log.kept, reference.witness_basis
            latest = torch.cat(list(log.blocks(max(0, stop - _TAIL_ROWS), stop, _TAIL_ROWS)))
            tails = tail_ratio(basis.rotate(latest), basis.axes.floored)
            return ReferenceNoise.of(bias, reference.noise, largest, self.dim, images, self.level / 2, tails)

        settings = (reference, self.level, self.width, self.fitting)
        return log.derive("reference noise", measure, log.epoch, count, *settings)

    def parts(self) -> Parts | None:
        """Return what parts of the rows say about all of them, measured again when they have grown by a refit."""
        log, reference = self.log, self.reference
        if not log.kept:
            return None
        count, slope = max(refit_counts(log.length), default=0), slope_weight(log.length, self.dim) > 0
        key = (log.epoch, reference, count, slope)
        return log.derive("parts", lambda: measure_parts(reference, log, count, slope), *key)

    def debiased(self) -> tuple[float, float]:
        """Return the near-unbiased distance and its standard error."""
        log, reference, parts = self.log, self.reference, self.parts()
        if log.folded is not None and not self.scored:
            fit = Fit.of_moments(reference, log.folded)
        else:
            fit = Fit.of_summary(self.summary())
        return debiased_value(self.spectrum(), self.plug_in(unbiased=False), fit, parts)


class FrechetWitnessBound(Bound):
    """Our own bound: the mean of witness scores minus its width; above, the plug-in plus its own.

    The losses by which arms are compared take the reference, which all arms share, as it is, and exist from ten samples
    on. The interval promised for one arm, :meth:`ends`, allows for the reference's own noise and is vacuous until rare
    modes have had their chance.
    """

    guarantee: Guarantee = "anytime"
    standard_errors = True
    keeps_rows = True
    min_samples = MIN_ROWS
    certifies_from = MIN_CERTIFIED

    def ends(self, view: RowView) -> tuple[float, float]:
        """Return both ends of the distance to the truth behind the reference; below 200 samples the whole half line."""
        if view.count < self.certifies_from:
            return 0.0, math.inf
        lower, upper, noise = self.optimistic(view), self.pessimistic(view), view.reference_noise()
        return (lower, upper) if noise is None else (noise.lower(lower), noise.upper(upper))

    def optimistic(self, view: RowView) -> float:
        """Return the lower end; a squared distance is never negative, so zero is the vacuous bound."""
        scores = view.summary().scores
        return max(0.0, scores.mean - deviation(scores, view.level / 2, upper=False, kind=view.width))

    def pessimistic(self, view: RowView) -> float:
        """Return the upper end: the plug-in, which is too large on average, plus its own width."""
        return upper_bound(view.plug_in(unbiased=False), view.summary(), view.level / 2, view.width)

    def centre(self, view: RowView) -> tuple[float, float]:
        """Return the mean of the scores and its standard error, infinite while there is no witness."""
        scores = view.summary().scores
        return scores.mean, scores.stderr
