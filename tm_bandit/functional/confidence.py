r"""How far a running mean may be from its expectation, at all sample counts at once.

A bandit looks at its bounds after every pull, so a confidence interval for one fixed sample count is the wrong tool:
looked at often enough, it is crossed almost surely. A *confidence sequence* is wide enough to be looked at forever.
Both sequences here are written for scores of variance one; multiply by the standard deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from tm_bandit.errors import InputError

WidthKind = Literal["mixture", "lil"]
WIDTHS: tuple[str, ...] = ("mixture", "lil")

#: The sample count at which the mixture is tightest: bandit arms live between 20 and a few thousand samples.
_TIGHTEST_AT = 100
#: Fewer scores than this say too little about their spread; with as many, the sequences held in all our scenarios.
LEAST_SCORES = 10
#: Fewest samples with which an interval is promised: a mode with 2 % of the mass is then seen with probability 98 %. A
#: far mode that no sample has shown is not in any variance either, and no width allows for it.
MIN_CERTIFIED = 200


@dataclass(frozen=True, slots=True)
class ScoreMoments:
    """What a bound needs to know about a series of scalar scores.

    Args:
        count: how many scores there are.
        mean: their mean.
        std: their standard deviation (``n - 1`` in the denominator).
        skewness: their standardised third central moment, zero when all are equal.
    """

    count: int
    mean: float
    std: float
    skewness: float

    @property
    def stderr(self) -> float:
        """Standard error of the mean; infinite with fewer than two scores."""
        return self.std / math.sqrt(self.count) if self.count >= 2 else math.inf

    @classmethod
    def of(cls, scores: Tensor) -> ScoreMoments:
        """Moments of a one-dimensional tensor of scores.

        Args:
            scores: the scores, ``(n,)``.

        Example:
            >>> import torch
            >>> ScoreMoments.of(torch.tensor([1.0, 2.0, 3.0]))
            ScoreMoments(count=3, mean=2.0, std=1.0, skewness=0.0)
        """
        count = scores.numel()
        if count == 0:
            return cls(0, 0.0, 0.0, 0.0)
        mean = scores.mean()
        centred = scores - mean
        # In units of the largest deviation: cubes of huge scores would overflow.
        unit = float(centred.abs().max())
        if unit == 0.0:
            return cls(count, float(mean), 0.0, 0.0)
        relative = centred / unit
        square = relative.square()
        moments = cls.from_central(count, float(mean) / unit, float(square.sum()), float((square * relative).mean()))
        return cls(count, float(mean), moments.std * unit, moments.skewness)

    @classmethod
    def from_central(cls, count: int, mean: float, scatter: float, third: float) -> ScoreMoments:
        """Moments from sums about the mean.

        Args:
            count: how many scores there are.
            mean: their mean.
            scatter: the sum of their squared deviations from it.
            third: the mean of their cubed deviations from it.
        """
        variance = max(scatter, 0.0) / max(count, 1)
        # Equal scores leave rounding noise behind; its skewness means nothing.
        skewed = variance > (1e-12 * mean) ** 2 and variance > 1e-200
        skewness = third / variance**1.5 if skewed else 0.0
        return cls(count, mean, math.sqrt(max(scatter, 0.0) / max(count - 1, 1)), skewness)


def mixture_width(count: float, alpha: float) -> float:
    r"""Half-width of a one-sided normal-mixture confidence sequence for scores of variance one.

    .. math:: W(n) = \sqrt{\frac{2 (n\rho^2 + 1)}{n^2 \rho^2} \log\Bigl(1 + \frac{\sqrt{n\rho^2 + 1}}{2\alpha}\Bigr)}

    where :math:`\rho^2 = (-2\log\alpha + \log(1 - 2\log\alpha)) / 100` makes it tightest near :math:`n = 100`. For
    independent scores with two moments it holds at all times together with probability :math:`1 - \alpha` as the first
    look moves to infinity (asymptotic and anytime, not finite-sample).

    Args:
        count: number of scores :math:`n`, at least one.
        alpha: probability of ever being crossed, in (0, 1).

    Example:
        >>> round(mixture_width(200, 0.05) * 200**0.5, 2)
        2.82
    """
    log_alpha = math.log(alpha)
    rho2 = (-2 * log_alpha + math.log(1 - 2 * log_alpha)) / _TIGHTEST_AT
    scaled = count * rho2 + 1
    return math.sqrt(2 * scaled / (count * count * rho2) * math.log1p(math.sqrt(scaled) / (2 * alpha)))


def lil_width(count: float, alpha: float) -> float:
    r"""Half-width of a stitched confidence sequence (Howard et al., 2021, equation 2): wider, safer with heavy tails.

    .. math:: W(n) = 1.7 \sqrt{\bigl(\log\log 2n + 0.72 \log(5.2/\alpha)\bigr) / n}

    It holds at all times for sub-Gaussian scores of variance one; with an estimated variance it is asymptotic too, but
    its extra third in width is slack for skewed scores and for the estimation of the variance.

    Args:
        count: number of scores :math:`n`, at least one.
        alpha: probability of ever being crossed, in (0, 1).

    Example:
        >>> lil_width(200, 0.05) > mixture_width(200, 0.05)
        True
    """
    loglog = math.log(max(math.log(2 * count), 1.0))
    return 1.7 * math.sqrt((loglog + 0.72 * math.log(5.2 / alpha)) / count)


def sequence_width(count: float, alpha: float, kind: WidthKind = "mixture") -> float:
    """Half-width of the confidence sequence called ``kind`` for scores of variance one.

    Args:
        count: number of scores, at least one.
        alpha: probability of ever being crossed, in (0, 1).
        kind: ``"mixture"`` (:func:`mixture_width`) or ``"lil"`` (:func:`lil_width`).

    Raises:
        InputError: if ``kind`` is unknown.
    """
    if kind not in WIDTHS:
        raise InputError(f"Expected `width` to be one of {WIDTHS}, but got {kind!r}; choose one of them.")
    return mixture_width(count, alpha) if kind == "mixture" else lil_width(count, alpha)


def deviation(scores: ScoreMoments, alpha: float, *, upper: bool, kind: WidthKind = "mixture") -> float:
    r"""Return how far the mean of ``scores`` must be moved to become a bound of its expectation.

    .. math:: s \, W(n) \Bigl(1 + \frac{3}{n}\Bigr) + \max(0, \pm g) \, s \, \frac{1 + 2 n W(n)^2}{6n}

    with standard deviation :math:`s` and skewness :math:`g`. The factor :math:`1 + 3/n` pays for the estimation of
    :math:`s`; the second term is the first Cornish-Fisher correction, taken only when it widens: a long tail on the
    bound's own side is missing from most samples, whose mean then looks too far from it. Both vanish faster than the
    width itself.

    Args:
        scores: the moments of the scores.
        alpha: probability of ever being crossed, in (0, 1).
        upper: ``True`` for an upper bound of the expectation, ``False`` for a lower bound.
        kind: the confidence sequence.

    Returns:
        A number that is never negative; infinite with fewer than two scores.

    Example:
        >>> round(deviation(ScoreMoments(100, 5.0, 2.0, 0.0), 0.05, upper=False), 3)
        0.573
        >>> deviation(ScoreMoments(1, 5.0, 0.0, 0.0), 0.05, upper=False)
        inf
    """
    count = scores.count
    if count < 2 or not (math.isfinite(scores.mean) and math.isfinite(scores.std)):
        return math.inf
    width = sequence_width(count, alpha, kind)
    tail = max(0.0, scores.skewness if upper else -scores.skewness)
    return scores.std * (width * (1 + 3 / count) + tail * (1 + 2 * count * width * width) / (6 * count))


def mean_interval(scores: ScoreMoments, alpha: float, kind: WidthKind = "mixture") -> tuple[float, float]:
    """Return both ends of a confidence sequence for the mean of scores without known limits.

    Args:
        scores: the moments of the scores.
        alpha: probability that an end is ever crossed, in (0, 1).
        kind: the confidence sequence.

    Returns:
        Lower and upper end; infinite with fewer than ten scores, or if all are equal: nothing is known about their
        spread.

    Example:
        >>> lower, upper = mean_interval(ScoreMoments(100, 5.0, 2.0, 0.0), 0.05)
        >>> round(lower, 3), round(upper, 3)
        (4.427, 5.573)
    """
    if scores.count < LEAST_SCORES or scores.std == 0.0:
        return -math.inf, math.inf
    below, above = (deviation(scores, alpha, upper=side, kind=kind) for side in (False, True))
    return scores.mean - below, scores.mean + above
