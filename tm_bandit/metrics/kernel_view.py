"""What kernel values say about a squared MMD: each number is computed on demand, each kernel value once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tm_bandit.bounds.bound import Bound, Guarantee
from tm_bandit.functional.confidence import LEAST_SCORES, MIN_CERTIFIED, ScoreMoments, mean_interval
from tm_bandit.functional.kernels import BLOCK, Kernel, PairSums, add_pairs, mmd_projection, second_order_variance
from tm_bandit.metrics.row_log import RowLog

#: How many row counts have their sums remembered, for comparisons at equal counts: the last pulls of a race.
_REMEMBERED = 64
#: The 95 % quantile of a chi-squared variable: the most that chance makes of a variance, if one direction has it all.
_CHANCE = 3.84


class KernelStream:
    """Kernel sums among the rows of a log, at any row count; they continue from the nearest known count.

    Args:
        kernel: the kernel.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._known: dict[int, PairSums] = {}

    def sums(self, log: RowLog, count: int) -> PairSums:
        """Return the sums of the first rows.

        Args:
            log: the rows.
            count: how many of them.
        """
        if count not in self._known:
            start = max((known for known in self._known if known < count), default=0)
            sums = self._known[start] if start else PairSums.empty(log.batches[0].device)
            for rows in log.blocks(start, count, BLOCK):
                sums = add_pairs(sums, log.blocks(0, len(sums.totals), BLOCK), rows, self.kernel)
            self._known[count] = sums
            if len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]  # the oldest: the smallest may be the one that is asked for
        return self._known[count]


@dataclass(frozen=True)
class KernelView:
    """One look at rows, with the settings that the metric has at that moment.

    Args:
        log: the rows.
        kernel: the kernel.
        similarity: returns the rows' mean kernel values with the reference.
        reference: returns the mean kernel value within the reference.
        scale: the unit of the distance.
        level: failure probability of the look.
        width: confidence sequence of the bound.
    """

    log: RowLog
    kernel: Kernel
    similarity: Callable[[], Tensor]
    reference: Callable[[], float]
    scale: float
    level: float
    width: Any

    def sums(self, count: int) -> PairSums:
        """Return the kernel sums among the first rows."""
        stream = self.log.derive("stream", lambda: KernelStream(self.kernel), self.log.epoch)
        return stream.sums(self.log, count)

    def projection(self, count: int | None = None) -> Tensor:
        """Return the projection of the distance of the first rows on each of them."""
        count = self.log.length if count is None else min(count, self.log.length)
        return self.scale * mmd_projection(self.sums(count), self.similarity()[:count], self.reference())

    def scores(self) -> ScoreMoments:
        """Return the moments of the projection; one look needs them several times."""
        return self.log.derive("scores", lambda: ScoreMoments.of(self.projection()), self.log.key, self.scale)

    def estimate(self) -> float:
        """Return the unbiased squared MMD."""
        return self.scores().mean

    def debiased(self) -> tuple[float, float]:
        """Return the same, and its standard error."""
        return self.scores().mean, self.scores().stderr

    def noise(self) -> float:
        """Return the variance per row, over ``n - 1``, that the projection does not see."""
        return self.scale**2 * second_order_variance(self.sums(self.log.length)) / (self.log.length - 1)

    def is_degenerate(self) -> bool:
        """Whether the projection's spread is no more than chance may cause, on average 4 times :meth:`noise`."""
        return self.scores().std ** 2 < _CHANCE * 4 * self.noise()


class HajekBound(Bound):
    """Confidence sequence of the projection's mean, with second-order noise added to its spread."""

    guarantee: Guarantee = "anytime"
    standard_errors = True
    keeps_rows = True
    min_samples = LEAST_SCORES
    certifies_from = MIN_CERTIFIED

    def ends(self, view: KernelView) -> tuple[float, float]:
        """Return both ends, each with half of the failure probability."""
        scores = view.scores()
        # When the projection vanishes, the statistic still varies, and by chance its rows may all look alike.
        spread = math.sqrt(scores.std**2 + 2 * view.noise())
        return mean_interval(replace(scores, std=spread), view.level / 2, view.width)

    def centre(self, view: KernelView) -> tuple[float, float]:
        """Return the distance and its standard error."""
        return view.debiased()
