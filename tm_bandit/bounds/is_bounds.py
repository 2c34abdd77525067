r"""Optimistic Inception Scores of Hu, Leung and Farnia (2025), all as logarithms so that nothing overflows.

They share one form. With the empirical marginal :math:`\tilde p` and a radius :math:`\epsilon_j` per class, each class
probability is moved by up to :math:`\epsilon_j` towards :math:`1/e`, where :math:`-z \log z` is largest (equation 15);
to the entropy of what results, the radius :math:`\epsilon_H` of the mean conditional entropy is added (equation 29).
The radii are those of Maurer and Pontil's empirical Bernstein inequality. The bounds differ in variances and constants
only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tm_bandit._arguments import check_level
from tm_bandit.bounds.bound import Bound, Guarantee, NoBound
from tm_bandit.errors import NotReadyError
from tm_bandit.functional.inception_score import ClassSums, entropy, sample_variance

#: Where -z log z is largest.
_MOST_ENTROPIC = math.exp(-1.0)


def optimistic_marginal(marginal: Tensor, radius: Tensor) -> Tensor:
    r"""Move class probabilities towards :math:`1/e` by at most their radius (equation 15).

    .. math::
        \hat p_j = \begin{cases}
            \tilde p_j + \mathrm{sign}(e^{-1} - \tilde p_j)\, \epsilon_j & |e^{-1} - \tilde p_j| \ge \epsilon_j \\
            e^{-1} & \text{otherwise}
        \end{cases}

    If each true probability is within its radius, the "entropy" of the result is at least that of the true marginal.
    The result does not sum to one. ``marginal`` itself is unchanged: writing the result into the accumulated marginal,
    as the authors' program does, spoils all later values.

    Args:
        marginal: empirical class probabilities, shape ``(d,)``.
        radius: how far each may be off, same shape or a scalar.

    Example:
        >>> optimistic_marginal(torch.tensor([0.1, 0.5]), torch.tensor([0.1, 0.2]))
        tensor([0.2000, 0.3679])
    """
    distance = _MOST_ENTROPIC - marginal
    moved = marginal + torch.sign(distance) * radius
    return torch.where(distance.abs() >= radius, moved, torch.full_like(marginal, _MOST_ENTROPIC))


def bernstein_radius(variance: Tensor, count: Tensor, log_term: float, *, width: float = 1.0) -> Tensor:
    r"""Return the radius of the empirical Bernstein inequality of Maurer and Pontil (2009, theorem 4).

    .. math::
        \epsilon = \sqrt{\frac{2 V L}{n}} + \frac{7 w L}{3 (n - 1)}

    Args:
        variance: sample variance ``V`` of the values.
        count: their number ``n``, at least two.
        log_term: ``L``, the logarithm in which the failure probability enters.
        width: ``w``, the length of the interval in which the values lie.
    """
    return torch.sqrt(2.0 * variance * log_term / count) + 7.0 * width * log_term / (3.0 * (count - 1.0))


def is_bound_paper(sums: ClassSums, delta: float) -> Tensor:
    r"""Theorem 2: an upper bound of :math:`\log \mathrm{IS}` with probability :math:`1 - \delta`.

    Radii with :math:`L = \log(4 d / \delta)` and unbiased sample variances (equations 22 and 29).

    Args:
        sums: class sums of at least two samples.
        delta: failure probability (already divided by the number of looks, if there are several).
    """
    _check(sums, delta)
    return _optimistic(sums, math.log(4.0 * sums.num_classes / delta), *_variances(sums, unbiased=True))


def is_bound_authors(sums: ClassSums, delta: float) -> Tensor:
    r"""The constants of the authors' program: an upper value of :math:`\log \mathrm{IS}` without guarantee.

    Variances are divided by ``n``, and :math:`L = \log(4 / \delta)` lacks the union over the ``d`` classes. Their
    program also overwrites its accumulated marginal with the optimistic one; that mistake is not reproduced.

    Args:
        sums: class sums of at least two samples.
        delta: the delta that enters the logarithm.
    """
    _check(sums, delta)
    return _optimistic(sums, math.log(4.0 / delta), *_variances(sums, unbiased=False))


def is_bound_naive(sums: ClassSums, delta: float) -> Tensor:
    r"""The paper's Naive-UCB: theorem 2 with the variances replaced by :math:`1` and :math:`(\log d)^2`.

    Args:
        sums: class sums of at least two samples.
        delta: failure probability.
    """
    _check(sums, delta)
    cap = torch.full_like(sums.num, math.log(sums.num_classes) ** 2)
    return _optimistic(sums, math.log(4.0 * sums.num_classes / delta), torch.ones_like(sums.prob), cap)


@dataclass(frozen=True)
class InceptionFormula(Bound):
    """A one-sided bound that needs no more than class sums.

    Args:
        formula: upper bound of the logarithm of the score, from class sums and a failure probability.
        guarantee: what the theorem promises, if there is one.
    """

    formula: Callable[[ClassSums, float], Tensor]
    guarantee: Guarantee = "none"

    def ends(self, view: Any) -> tuple[float, float]:
        """Return minus the upper bound, and infinity."""
        return -float(self.formula(view.sums, view.level)), math.inf


#: The reproduced bounds of the Inception Score.
IS_BOUNDS: dict[str, Bound] = {
    "paper": InceptionFormula(is_bound_paper, "finite"),
    "authors": InceptionFormula(is_bound_authors),
    "naive": InceptionFormula(is_bound_naive),
    "none": NoBound(min_samples=1),
}


def _optimistic(sums: ClassSums, log_term: float, prob_variance: Tensor, entropy_variance: Tensor) -> Tensor:
    radius = bernstein_radius(prob_variance, sums.num, log_term)
    entropy_radius = bernstein_radius(entropy_variance, sums.num, log_term, width=math.log(sums.num_classes))
    marginal = optimistic_marginal(sums.prob / sums.num, radius)
    return entropy(marginal) - sums.entropy / sums.num + entropy_radius


def _variances(sums: ClassSums, *, unbiased: bool) -> tuple[Tensor, Tensor]:
    return (
        sample_variance(sums.prob, sums.prob_square, sums.num, unbiased=unbiased),
        sample_variance(sums.entropy, sums.entropy_square, sums.num, unbiased=unbiased),
    )


def _check(sums: ClassSums, delta: float) -> None:
    check_level("delta", delta)
    if float(sums.num) < 2.0:
        raise NotReadyError(f"Expected at least two samples, but got {int(sums.num)}; call `update` with more samples.")
