"""How two arms compare: the one answer to the question which of them is better, and how sure that is."""

from __future__ import annotations

import math
from typing import NamedTuple

#: Sample count at which the margin is tightest: bandit arms live between 20 and a few thousand samples.
_TIGHTEST_AT = 100.0


class Comparison(NamedTuple):
    """How much larger the loss of one arm is than that of another; below zero the first arm is better.

    Args:
        n: number of samples behind it, that of the arm that has fewer.
        difference: loss of the first arm minus loss of the second.
        stderr: its standard error.
        correlation: how much of the noise the two arms share; 0 for independent arms.
        lower: lower end of the interval of the difference.
        upper: its upper end.
    """

    n: int
    difference: float
    stderr: float
    correlation: float
    lower: float
    upper: float


def anytime_margin(n: int, delta: float) -> float:
    r"""Return how many standard errors an estimate may be off at all sample counts together.

    .. math:: z_n = \sqrt{\tfrac{n + r}{n} \left(2 \ln \tfrac{1}{\delta} + \ln \tfrac{n + r}{r}\right)}, \quad r = 100

    The two-sided normal mixture of Robbins: exact for a mean of Gaussian samples of known variance, asymptotic for
    others.

    Args:
        n: number of samples, at least one.
        delta: probability of ever being off by more, on either side.

    Example:
        >>> round(anytime_margin(1000, 0.05), 2)
        3.04
    """
    ratio = (n + _TIGHTEST_AT) / _TIGHTEST_AT
    return math.sqrt((n + _TIGHTEST_AT) / n * (2.0 * math.log(1.0 / delta) + math.log(ratio)))


def compare_independent(first: tuple[float, float], second: tuple[float, float], n: int, delta: float) -> Comparison:
    """Compare two arms that share no noise.

    Args:
        first: loss of the first arm and its standard error.
        second: those of the second arm.
        n: number of samples of the arm that has fewer.
        delta: failure probability of the interval, at all sample counts together.

    Example:
        >>> compare_independent((2.0, 0.3), (1.0, 0.4), n=200, delta=0.05).stderr
        0.5
    """
    difference, stderr = first[0] - second[0], math.hypot(first[1], second[1])
    if n < 1 or not (math.isfinite(difference) and math.isfinite(stderr)):
        return Comparison(n, difference, stderr, 0.0, -math.inf, math.inf)
    width = anytime_margin(n, delta) * stderr
    return Comparison(n, difference, stderr, 0.0, difference - width, difference + width)
