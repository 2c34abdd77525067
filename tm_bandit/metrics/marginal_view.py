"""What the sums of a metric say about their Inception Score, as losses: each number is computed on demand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tm_bandit.bounds.bound import Bound, Guarantee
from tm_bandit.functional.confidence import MIN_CERTIFIED, ScoreMoments
from tm_bandit.functional.crossfit import MIN_ROWS
from tm_bandit.functional.debias import debiased_log_is
from tm_bandit.functional.inception_score import ClassSums, log_inception_score
from tm_bandit.metrics.marginal_stream import MarginalSums, marginal_spread, witness_interval, witness_moments
from tm_bandit.metrics.row_log import RowLog


@dataclass(frozen=True)
class SumView:
    """One look at class sums, with the settings that the metric has at that moment.

    Args:
        log: what was derived from the sums before.
        sums: sums of the samples.
        folds: their sums per fold, for the witness.
        priors: returns the first guesses at the marginal.
        level: failure probability of the look.
        width: confidence sequence of the witness bound.
        fitting: how witnesses are kept independent of the samples they score.
    """

    log: RowLog
    sums: ClassSums
    folds: MarginalSums
    priors: Callable[[], Tensor]
    level: float
    width: Any
    fitting: Any

    def estimate(self) -> float:
        """Return minus the logarithm of the plain score; raise if there are no samples."""
        return self.log.derive("estimate", lambda: -float(log_inception_score(self.sums)), self.log.key)

    def scores(self) -> ScoreMoments:
        """Return the moments of the witness scores; one look needs them several times."""
        make = lambda: witness_moments(self.folds, self.sums.entropy, self.priors(), self.fitting)  # noqa: E731
        return self.log.derive("scores", make, self.log.key, self.fitting)

    def debiased(self) -> tuple[float, float]:
        """Return the near-unbiased loss and its standard error."""
        self.estimate()
        scores, (num, prob, _, entropy, _) = self.scores(), self.sums
        value = debiased_log_is(self.folds.fold_prob, self.folds.fold_num, float(entropy / num), scores.mean)
        # With few samples the witness is nearly uniform, and its scores vary less than those of the marginal itself;
        # one more sample, of any class, in case all were of one.
        smooth = (prob + 1.0 / len(prob)) / (num + 1)
        least = float(marginal_spread(smooth)) / math.sqrt(float(num))
        return -value, max(scores.stderr, least)


class InceptionWitnessBound(Bound):
    """Our own bound: the mean of witness scores plus its width; below, the plain estimate minus its own."""

    guarantee: Guarantee = "anytime"
    standard_errors = True
    min_samples = MIN_ROWS
    certifies_from = MIN_CERTIFIED

    def ends(self, view: SumView) -> tuple[float, float]:
        """Return both ends; below 200 samples they are one and the number of classes."""
        view.estimate()
        num, prob, *_ = view.sums
        return self._both(view) if num >= self.certifies_from else (-math.log(prob.shape[0]), 0.0)

    def optimistic(self, view: SumView) -> float:
        """Return minus the upper end, at any number of samples."""
        return self._both(view)[0]

    def pessimistic(self, view: SumView) -> float:
        """Return minus the lower end, at any number of samples."""
        return self._both(view)[1]

    def _both(self, view: SumView) -> tuple[float, float]:
        """Return minus the upper and minus the lower end, each with half of the failure probability."""
        plug_in, (num, prob, *_) = -view.estimate(), view.sums
        spread = float(marginal_spread(prob / num))
        lower, upper = witness_interval(view.scores(), plug_in, prob.shape[0], view.level / 2, view.width, spread)
        return -upper, -lower

    def centre(self, view: SumView) -> tuple[float, float]:
        """Return minus the mean of the scores, and its standard error."""
        view.estimate()
        scores = view.scores()
        return -scores.mean, scores.stderr
