r"""Bounds of the mean of bounded scores that hold at every sample count, including the first ones.

The width of a confidence sequence with an estimated variance is an approximation at ten samples. Scores with known
limits need none: betting against a wrong mean makes a gambler rich. The bound is where the gambler's capital stays
below :math:`1 / \alpha`, which a fair game passes with probability :math:`\alpha` at most, ever (Ville's inequality).
This is the capital process of Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting"
(2024), with the bets of their equation 26, one side at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tm_bandit.errors import InputError

#: The share of the capital that a bet may lose, the value that the authors recommend.
_MOST_AT_STAKE = 0.5
#: Halvings of the unit interval: the bound is exact to 1e-12.
_HALVINGS = 40


def betting_lower_bound(scores: Tensor, alpha: float) -> Tensor:
    r"""Return a lower bound of the mean of independent scores in [0, 1], at all sample counts together.

    The capital after :math:`n` scores, had the mean been :math:`m`, and the bound:

    .. math::
        K_n(m) = \prod_{i=1}^n \bigl(1 + \min(\lambda_i, c / m) (x_i - m)\bigr), \qquad
        L_n = \inf \{m : K_n(m) < 1 / \alpha\}

    .. math::
        \lambda_i = \sqrt{\frac{2 \log(1 / \alpha)}{\hat\sigma^2_{i-1} \, i \log(1 + i)}}, \quad
        \hat\mu_i = \frac{1/2 + \sum_{j \le i} x_j}{i + 1}, \quad
        \hat\sigma^2_i = \frac{1/4 + \sum_{j \le i} (x_j - \hat\mu_j)^2}{i + 1}

    Every factor decreases in :math:`m`, so the bound is the root of one decreasing function. A bet is made before its
    score is seen, so the order of the scores matters a little, and any order is valid.

    Args:
        scores: shape ``(..., n)``; the mean is that of the last dimension, and every leading index is a series.
        alpha: probability of ever being above the mean, in (0, 1).

    Returns:
        The bounds, shape ``(...)``; 0 if nothing is known.

    Raises:
        InputError: if a score lies outside of [0, 1].

    Example:
        >>> import torch
        >>> from tm_bandit.functional import betting_lower_bound
        >>> scores = torch.tensor([0.9, 1.0]).repeat(50)
        >>> [round(float(betting_lower_bound(scores[:count], 0.05)), 2) for count in (1, 2, 10, 100)]
        [0.0, 0.12, 0.56, 0.89]
    """
    values = scores.to(torch.float64)
    if values.numel() and not bool(((values >= 0) & (values <= 1)).all()):
        raise InputError("Expected scores in [0, 1] (no NaN), but got others; shift and scale them first.")
    count, goal = values.shape[-1], math.log(1.0 / alpha)
    low, high = (torch.full(values.shape[:-1], end, dtype=torch.float64, device=values.device) for end in (0.0, 1.0))
    if count == 0:
        return low
    numbers = torch.arange(1, count + 1, dtype=torch.float64, device=values.device)
    means = (0.5 + values.cumsum(-1)) / (numbers + 1)
    spreads = (0.25 + (values - means).square().cumsum(-1)) / (numbers + 1)
    # Before the first score: 1/4. The last score's own spread is not known when the bet on it is made.
    known = torch.cat([torch.full_like(spreads[..., :1], 0.25), spreads[..., :-1]], -1)
    bets = (2 * goal / (known * numbers * torch.log1p(numbers))).sqrt()

    def is_rich(mean: Tensor) -> Tensor:
        stakes = torch.minimum(bets, (_MOST_AT_STAKE / mean).unsqueeze(-1))
        return torch.log1p(stakes * (values - mean.unsqueeze(-1))).sum(-1) >= goal

    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        rich = is_rich(middle)
        low, high = torch.where(rich, middle, low), torch.where(rich, high, middle)
    return low
