"""The witness bound of a growing set of rows, extended instead of recomputed."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import InitVar, dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit._device import one_thread
from tm_bandit.functional import crossfit
from tm_bandit.functional.confidence import ScoreMoments, WidthKind, deviation, sequence_width
from tm_bandit.functional.frechet_basis import FrechetBasis
from tm_bandit.functional.moments import Moments
from tm_bandit.functional.witness_fd import FrechetSums, FrechetWitness, block_size, score_rows
from tm_bandit.metrics.row_log import RowLog

#: Up to this many multiplications a rotation is done in one thread: more threads would wait longer than they work.
_SMALL_PRODUCT = 2**22
#: At most this many rows are rotated at a time, because they pass through float64.
_MANY_ROWS = 512


class WitnessSummary(NamedTuple):
    """What the witness says about the rows so far.

    Args:
        scores: moments of the witness scores, in units of the Frechet distance.
        damping: mean damping factor of the witnesses in use; one means undamped.
        largest: largest eigenvalue of the rows' covariance, on the axes of the block.
        spectrum: fitted eigenvalues of the reference's covariance times the rows', in no particular order, if fitted.
    """

    scores: ScoreMoments
    damping: float
    largest: float
    spectrum: Tensor | None = None


def upper_bound(plug_in: float, summary: WitnessSummary, alpha: float, kind: WidthKind = "mixture") -> float:
    r"""Return the pessimistic end of the interval: the plug-in plus the width of its own deviation.

    The plug-in (with the :math:`1/n` covariance) is too large on average; to first order it deviates from its
    expectation like the mean of the scores :math:`\psi` of the *optimal* witness, its influence function. A shrunken
    witness may have far less spread than that, so the spread is taken as the larger of what was measured and of
    :math:`2 \sqrt{\lambda_{\max}(S_g) \, \mathrm{FD}}`: the gradient of :math:`\psi` is twice the distance that a
    row is moved, whose mean square is the distance itself, and Poincare's inequality bounds a Gaussian's variance by
    :math:`\lambda_{\max}` times the mean squared gradient. The guarantee is asymptotic and, over time, measured.

    Args:
        plug_in: the plug-in distance.
        summary: what the witness says about the same rows.
        alpha: failure probability of this end.
        kind: the confidence sequence.
    """
    unit = deviation(replace(summary.scores, std=1.0), alpha, upper=True, kind=kind)
    if not math.isfinite(unit):
        return math.inf
    measured = plug_in + unit * summary.scores.std / summary.damping
    # The truth is at most the bound itself, so the bound U solves U = plug_in + a sqrt(U).
    slope = 2 * unit * math.sqrt(max(summary.largest, 0.0))
    return max(measured, ((slope + math.sqrt(slope**2 + 4 * plug_in)) / 2) ** 2)


@dataclass(eq=False)
class FrechetStream:
    r"""Cross-fitted (or predictable) witness scores of rows that arrive over time.

    ``fitting="crossfit"``: at each refit all rows so far are rescored, each by the witness of its own fold, which
    was fitted on the other folds; rows that arrive between refits are scored by their fold's current witness. At every
    fixed sample count :math:`E[\psi] \le \mathrm{FD}`; that the confidence sequence also holds *over* time is
    measured, not proved, because a refit changes old scores.

    ``fitting="predictable"``: rows are scored once, by a witness fitted on earlier rows only; rows before the first fit
    are not scored. The centred scores are a martingale, so the anytime guarantee is proved (asymptotically); the bound
    is looser because early rows were scored by poor witnesses.

    Either way the summary is a pure function of the ordered rows, not of how they were batched.

    The rows stay in their log; the stream keeps one score per row and one witness per fold. At a refit all rows are
    rotated again: that is cheap, and a second copy of every arm's rows would not be. Memory need not grow without bound
    either: rows can be *settled*. Their scores are frozen, and their moments serve as training data for later rows, of
    which they are independent.

    Args:
        basis: the reference.
        alpha: level of the one-sided bound for which witnesses are damped.
        width: its confidence sequence.
        fitting: see above.
        settled_scores: scores of the log's earlier rows that are no longer kept.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> basis = FrechetBasis.from_eigen(torch.zeros(4), torch.ones(4), torch.eye(4))
        >>> log = RowLog([torch.randn(300, 4) + 1.0])
        >>> 3.0 < FrechetStream(basis).summary(log).scores.mean < 5.0  # the truth is 4
        True
    """

    basis: FrechetBasis
    alpha: float = 0.05
    width: WidthKind = "mixture"
    fitting: crossfit.Fitting = "crossfit"
    settled_scores: InitVar[Tensor | None] = None

    def __post_init__(self, settled_scores: Tensor | None) -> None:
        empty = self.basis.center.new_empty(0)
        self._frozen = (empty if settled_scores is None else settled_scores.to(empty)) / self.basis.scale**2
        self._settled_sums: FrechetSums | None = None
        self._dtype = self.basis.projection.dtype
        self._scores = empty
        self._scored = 0
        self._fitted = -1
        self._witness: FrechetWitness | None = None
        self._damping = 1.0
        self._largest = 0.0
        self._spectrum: Tensor | None = None

    def summary(self, log: RowLog) -> WitnessSummary:
        """Fit if a fit is due, score what has no score yet, and return the moments of the scores.

        Args:
            log: the rows: the same log each time, as long as its epoch is the same.
        """
        scores = self._scores_so_far(log)
        moments = ScoreMoments.of(torch.cat([self._frozen, scores]) if len(self._frozen) else scores)
        unit = self.basis.scale**2
        moments = replace(moments, mean=moments.mean * unit, std=moments.std * unit)
        spectrum = None if self._spectrum is None else self._spectrum * unit**2
        return WitnessSummary(moments, self._damping, self._largest * unit, spectrum)

    def scores(self, log: RowLog) -> Tensor:
        """Return the scores of the kept rows in units of the Frechet distance; some rows may have none.

        Args:
            log: as in :meth:`summary`.
        """
        return self._scores_so_far(log) * self.basis.scale**2

    def _scores_so_far(self, log: RowLog) -> Tensor:
        counts = crossfit.refit_counts(log.length)
        # Settled rows alone are enough for a first fit; fits on fewer rows are no longer possible.
        if not counts and not log.gone:
            return self._scores[:0]
        first = 0 if log.gone else counts[0]
        if len(self._scores) < log.kept:
            self._scores = _grown(self._scores, self._scored, log.kept)
        if self.fitting == "crossfit":
            due = max(counts[-1] - log.gone, 0) if counts else 0
            if due != self._fitted:
                self._scored = 0
                self._fit(log, due)
            self._score(log, log.kept)
            return self._scores[: log.kept]
        for due in (first, *(count - log.gone for count in counts)):
            if due > self._fitted:
                self._score(log, due)
                self._fit(log, due)
        self._score(log, log.kept)
        return self._scores[first : log.kept]

    def _fit(self, log: RowLog, count: int) -> None:
        """Fit the witnesses on the settled rows and on the first ``count`` of the others, and rescore those."""
        total = log.gone + count
        crossed = self.fitting == "crossfit"
        layout, grouped = self._grouped(log, 0, count, crossfit.num_folds(total) if crossed else 1)
        recent = slice(max(0, crossfit.recent_rows(total).start - log.gone), count)
        with one_thread():
            sums = crossfit.sum_folds(grouped, layout, self.basis.axes, block_size(total, self.basis.center.numel()))
            training = crossfit.leave_one_out(sums) if crossed else sums
            if log.folded is not None:
                training = self._with_settled(training, log.folded)
            latest, fold = grouped[layout.fold[recent], layout.slot[recent]], layout.fold[recent]
            fold = fold if crossed else fold - 1  # without folds all rows are training rows
            width = sequence_width(total, self.alpha, self.width)
            witness, damping, fit = crossfit.fit_folds(training, self.basis.axes, latest, fold, width)
            self._witness = FrechetWitness(*(part.to(grouped) for part in witness))._replace(constant=witness.constant)
            self._damping = float(damping.mean())
            self._largest = _largest_eigenvalue(training)
            self._spectrum = fit.spectrum.mean(0)
            self._fitted = count
            if crossed and count:
                self._scores[:count] = score_rows(self._witness, grouped)[layout.fold, layout.slot]
                self._scored = count

    def _grouped(self, log: RowLog, start: int, stop: int, folds: int) -> tuple[crossfit.FoldLayout, Tensor]:
        """Rotate the kept rows ``start`` to ``stop`` and group them by fold."""
        basis = self.basis
        layout = crossfit.FoldLayout.of(log.gone + start, log.gone + stop, folds, basis.center.device)
        grouped = layout.empty(width=basis.center.numel(), like=basis.projection).to(self._dtype)
        done = 0
        for rows in log.blocks(start, stop, _MANY_ROWS):
            with one_thread() if rows.numel() * rows.shape[1] <= _SMALL_PRODUCT else nullcontext():
                rotated = basis.rotate(rows)
            if rotated.dtype == torch.float64 != self._dtype:
                # A row this far out makes witnesses that float32 cannot hold either.
                self._dtype, grouped = torch.float64, grouped.double()
            until = done + rows.shape[0]
            grouped[layout.fold[done:until], layout.slot[done:until]] = rotated.to(self._dtype)
            done = until
        return layout, grouped

    def _with_settled(self, training: FrechetSums, settled: Moments) -> FrechetSums:
        """Add the settled rows to every fold's training rows."""
        block = training.block.shape[-1]
        if self._settled_sums is None or self._settled_sums.block.shape[-1] != block:
            self._settled_sums = self.basis.sums_of(settled, block)
        both = self._settled_sums.plus(training)
        # Energies of single rows are known for the kept ones only; they stand for all.
        stretch = (both.num / training.num.clamp_min(1))[:, None]
        return both._replace(bins=training.bins * stretch, bins_squared=training.bins_squared * stretch)

    def _score(self, log: RowLog, stop: int) -> None:
        """Score the rows up to ``stop`` that have no score yet, each with the witness of its fold."""
        start, witness = self._scored, self._witness
        if witness is not None and start < stop:
            layout, grouped = self._grouped(log, start, stop, witness.constant.shape[0])
            with one_thread():
                self._scores[start:stop] = score_rows(witness, grouped)[layout.fold, layout.slot]
        self._scored = max(start, stop)


def _largest_eigenvalue(sums: FrechetSums) -> float:
    """Return the largest eigenvalue of the covariance of one fold's training rows, on the axes of the block."""
    num, mean = sums.num[0], sums.first[0, : sums.block.shape[-1]] / sums.num[0]
    return max(0.0, float(torch.linalg.eigvalsh(sums.block[0] / num - mean[:, None] * mean)[-1]))


def _grown(buffer: Tensor, used: int, size: int) -> Tensor:
    """Return a larger buffer that begins with the used part of the old one."""
    grown = buffer.new_empty(max(size, len(buffer) * 3 // 2))
    grown[:used] = buffer[:used]
    return grown
