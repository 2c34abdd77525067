"""How two arms compare: the single answer to which of them is better, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

#: Samples that the prior of the mixture is worth: the burn-in of small batches, when most arms of a race drop out. With
#: 100 it would take 8.8 standard errors instead of 5.2 at 20 samples of 28 arms, and as many as now at 1,000.
_PRIOR_SAMPLES = 20.0

#: With none, the best of six scales of a Gaussian was ruled out in 30 of 120 races, with two in 2; with a whole margin
#: in none, but near ties took several times the samples.
_FIT_ERRORS = 2.0

#: Samples up to which the fit's bias matters. With 0 the worse of two arms that share 99 % of their rows was named in
#: 14 of 99 races, with 20 in 12 of 200, with 50 in 4 of 200; near ties then take 7 to 19 % longer.
_FIT_SAMPLES = 50.0


class Comparison(NamedTuple):
    """How much larger the loss of one arm is than that of another; below zero the first arm is better.

    Args:
        n: number of samples behind it: that of the arm with fewer.
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


def in_units(found: Comparison, loss: float, score_from_loss: Callable[[float], float]) -> Comparison:
    """Convert a comparison of losses into one of scores: how much larger the first arm's score is than the second's.

    Args:
        found: the comparison.
        loss: loss of the second arm, from which a nonlinear score is measured.
        score_from_loss: translates a loss into a score.

    Example:
        >>> in_units(Comparison(9, 2.0, 0.5, 0.9, 1.0, 3.0), 5.0, lambda loss: -loss)
        Comparison(n=9, difference=-2.0, stderr=0.5, correlation=0.9, lower=-3.0, upper=-1.0)
    """
    base = score_from_loss(loss)
    difference, *ends = (score_from_loss(loss + part) - base for part in (found.difference, found.lower, found.upper))
    step = found.difference or found.stderr
    steep = abs((score_from_loss(loss + step) - base) / step) if step else 1.0
    return Comparison(found.n, difference, found.stderr * steep, found.correlation, min(ends), max(ends))


def anytime_margin(n: int, delta: float) -> float:
    r"""Return by how many standard errors an estimate may be off, over all sample counts together.

    .. math:: z_n = \sqrt{\tfrac{n + r}{n} \left(2 \ln \tfrac{1}{\delta} + \ln \tfrac{n + r}{r}\right)}, \quad r = 20

    The two-sided normal mixture of Robbins: exact for a mean of Gaussian samples of known variance, asymptotic for
    others.

    Args:
        n: number of samples, at least one.
        delta: probability of ever being off by more, on either side.

    Example:
        >>> round(anytime_margin(1000, 0.05), 2)
        3.18
    """
    ratio = (n + _PRIOR_SAMPLES) / _PRIOR_SAMPLES
    return math.sqrt((n + _PRIOR_SAMPLES) / n * (2.0 * math.log(1.0 / delta) + math.log(ratio)))


def fit_margin(n: int) -> float:
    r"""Return by how many of its standard errors the fit of a witness may be off: :math:`2 (1 + 50 / n)`.

    The standard error falls like :math:`1 / \sqrt n`, and the bias, which it does not show, like :math:`1 / n`. Unlike
    :func:`anytime_margin` it makes no promise over all sample counts.

    Args:
        n: number of samples, at least one.

    Example:
        >>> fit_margin(20), fit_margin(1000)
        (7.0, 2.1)
    """
    return _FIT_ERRORS * (1.0 + _FIT_SAMPLES / n)


def has_few_values(rows: Tensor) -> bool:
    """Whether rows have at most half as many values as there are rows: passed or failed, say, or the class of a sample.

    Two different models may well give the same ones.

    Args:
        rows: one row, or one score, per sample.

    Example:
        >>> has_few_values(torch.tensor([1.0, 0.0, 1.0, 1.0])), has_few_values(torch.tensor([0.1, 0.2, 0.3, 0.3]))
        (True, False)
    """
    columns = rows.reshape(len(rows), -1)
    # A single score may be one of few.
    most = (len(rows) + int(columns.shape[1] == 1)) // 2
    # The first numbers of most rows settle it.
    return len(torch.unique(columns[:, 0])) <= most and len(torch.unique(columns)) <= most


class Pair(NamedTuple):
    """Two arms on their first draws, made from the same noise.

    Args:
        difference: loss of the first arm minus loss of the second.
        stderr: its standard error with the scores as they were fitted.
        correlation: correlation of the two arms' scores; 0 if those of one are all the same.
        fit_stderr: what fitting the scores adds to its standard error.
        debiased_stderr: standard error of the difference of the arms' debiased losses; ``None`` if it is not known.

    Example:
        >>> import torch
        >>> noise = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
        >>> difference, stderr, correlation, *_ = Pair.of(torch.stack([noise + 1.0, noise]))
        >>> difference, stderr, round(correlation, 6)
        (1.0, 0.0, 1.0)
    """

    difference: float
    stderr: float
    correlation: float
    fit_stderr: float = 0.0
    debiased_stderr: float | None = None

    @classmethod
    def of_twins(cls) -> Pair:
        """Return the comparison of two arms that are the same model, even if their scores are all the same."""
        return cls(0.0, 0.0, 1.0, 0.0, 0.0)

    @classmethod
    def of(cls, scores: Tensor, means: Tensor | None = None, debiased_stderr: float | None = None) -> Pair:
        """Compare two arms draw by draw.

        Args:
            scores: one score per arm and draw, ``(2, n)`` in float64; smaller is better.
            means: mean scores by each of several functions, ``(2, K)``, if scores were fitted with one part of the
                draws left out in turn.
            debiased_stderr: see above.
        """
        difference = scores[0] - scores[1]
        stderr, fit = math.sqrt(float(difference.var()) / scores.shape[1]), 0.0
        if means is not None:
            refits = means[0] - means[1]
            fit = math.sqrt((len(refits) - 1) * float(refits.var(correction=0)))
        centred = scores - scores.mean(1, keepdim=True)
        scale = float(centred[0].norm() * centred[1].norm())
        alike = float(centred[0] @ centred[1]) / scale if scale > 0.0 else 0.0
        return cls(float(difference.mean()), stderr, min(max(alike, -1.0), 1.0), fit, debiased_stderr)
