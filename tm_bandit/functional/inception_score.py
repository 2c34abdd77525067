"""The Inception Score of class probabilities, from sums of class length."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit._device import as_float64, check_dense
from tm_bandit.errors import InputError, NotReadyError

#: How far the sum of a row may be from one before it is taken for a mistake rather than rounding.
_SUM_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
_DEFAULT_SUM_TOLERANCE = 1e-4


class ClassSums(NamedTuple):
    """Sums over samples from which the score and its bounds are computed; the sums of two sets can be added.

    Everything that is summed lies in [0, 1] or [0, log d], so plain sums in float64 lose nothing.

    Args:
        num: number of samples, a scalar.
        prob: sum of the class probabilities, shape ``(d,)``.
        prob_square: sum of their squares, shape ``(d,)``.
        entropy: sum of the entropies of the samples' class distributions, a scalar.
        entropy_square: sum of their squares, a scalar.
    """

    num: Tensor
    prob: Tensor
    prob_square: Tensor
    entropy: Tensor
    entropy_square: Tensor

    @property
    def num_classes(self) -> int:
        """Number of classes ``d``."""
        return self.prob.shape[-1]


def entropy(probs: Tensor) -> Tensor:
    r"""Return the entropy of distributions along the last dimension, in nats.

    .. math::
        H(p) = -\sum_j p_j \log p_j, \qquad 0 \log 0 = 0

    Args:
        probs: non-negative numbers, shape ``(..., d)``. They need not sum to one, as the optimistic marginal does not.

    Example:
        >>> entropy(torch.tensor([0.5, 0.5, 0.0]))
        tensor(0.6931)
    """
    terms: Tensor = torch.special.entr(probs)
    return terms.sum(dim=-1)


def check_probabilities(probs: Tensor) -> Tensor:
    """Return ``probs`` in float64 with rows that sum to exactly one, or raise.

    Args:
        probs: class probabilities of shape ``(N, d)``, of any floating dtype.

    Raises:
        InputError: if the shape or dtype is wrong, or rows hold NaN, infinity or negative numbers, or miss a sum of one
            by more than rounding in their dtype explains.

    Example:
        >>> check_probabilities(torch.tensor([[0.25, 0.75]]))
        tensor([[0.2500, 0.7500]], dtype=torch.float64)
    """
    check_dense(probs)
    if not isinstance(probs, Tensor) or probs.ndim != 2 or probs.shape[1] == 0:
        got = f"shape {tuple(probs.shape)}" if isinstance(probs, Tensor) else f"a {type(probs).__name__}"
        raise InputError(f"Expected class probabilities of shape (N, d), but got {got}; pass one row per sample.")
    if not probs.is_floating_point():
        raise InputError(f"Expected floating class probabilities, but got {probs.dtype}; apply softmax to logits.")
    rows = as_float64(probs)
    bad = int((~torch.isfinite(rows)).any(dim=1).sum())
    if bad:
        raise InputError(
            f"Expected finite class probabilities, but got NaN or infinity in {bad} of {len(rows)} rows; fix it."
        )
    if rows.numel() and float(rows.min()) < 0.0:
        raise InputError(f"Expected class probabilities >= 0, but got {rows.min():.6g}; apply softmax to logits.")
    totals = rows.sum(dim=1, keepdim=True)
    tolerance = _SUM_TOLERANCE.get(probs.dtype, _DEFAULT_SUM_TOLERANCE)
    worst = float((totals - 1.0).abs().max()) if rows.numel() else 0.0
    if worst > tolerance:
        raise InputError(f"Expected rows that sum to one, but got one that is off by {worst:.3g}; apply softmax.")
    return rows / totals


def class_sums(probs: Tensor) -> ClassSums:
    """Sum up the class probabilities of samples.

    Args:
        probs: class probabilities, shape ``(N, d)``, rows summing to one.

    Example:
        >>> class_sums(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).prob
        tensor([1.5000, 0.5000], dtype=torch.float64)
    """
    rows = as_float64(probs)
    entropies = entropy(rows)
    return ClassSums(
        num=torch.tensor(float(len(rows)), dtype=torch.float64, device=rows.device),
        prob=rows.sum(dim=0),
        prob_square=rows.square().sum(dim=0),
        entropy=entropies.sum(),
        entropy_square=entropies.square().sum(),
    )


def sample_variance(total: Tensor, total_square: Tensor, count: Tensor, *, unbiased: bool = True) -> Tensor:
    r"""Return the variance that belongs to a sum and a sum of squares.

    .. math::
        V = \frac{1}{n - 1} \Big( \sum_i z_i^2 - \frac{1}{n} \big( \sum_i z_i \big)^2 \Big)

    Args:
        total: sum of the values.
        total_square: sum of their squares.
        count: their number ``n``.
        unbiased: divide by ``n - 1`` rather than ``n``.

    Example:
        >>> sample_variance(torch.tensor(6.0), torch.tensor(14.0), torch.tensor(3.0))
        tensor(1.)
    """
    centred = (total_square - total.square() / count).clamp(min=0.0)
    return centred / (count - 1.0 if unbiased else count)


def log_inception_score(sums: ClassSums) -> Tensor:
    r"""Return the logarithm of the Inception Score of all samples together.

    .. math::
        \log \mathrm{IS} = H\Big(\frac{1}{n} \sum_i p_i\Big) - \frac{1}{n} \sum_i H(p_i)

    where :math:`p_i` are the class probabilities of sample :math:`i` (the paper's empirical score). There are no splits
    and nothing is shuffled, so the value depends neither on the order of the samples nor on a random number generator.

    Args:
        sums: what :func:`class_sums` returned, or the sum of several such.

    Raises:
        NotReadyError: if there are no samples.
    """
    if float(sums.num) < 1.0:
        raise NotReadyError("Expected at least one sample, but got none; call `update` first.")
    # Jensen's inequality makes this non-negative; rounding may make it negative.
    return (entropy(sums.prob / sums.num) - sums.entropy / sums.num).clamp(min=0.0)


def inception_score(probs: Tensor, *, log: bool = False) -> Tensor:
    r"""Return the Inception Score of a set of samples.

    .. math::
        \mathrm{IS} = \exp\big(\mathbb{E}_x \mathrm{KL}(p(y | x) \,\|\, p(y))\big)

    Args:
        probs: class probabilities, shape ``(N, d)``.
        log: return the logarithm.

    Raises:
        InputError: if ``probs`` are not class probabilities.
        NotReadyError: if there are no samples.

    Example:
        >>> inception_score(torch.eye(10))
        tensor(10.0000, dtype=torch.float64)
    """
    value = log_inception_score(class_sums(check_probabilities(probs)))
    return value if log else value.exp()
