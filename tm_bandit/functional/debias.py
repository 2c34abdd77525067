r"""Near-unbiased estimates: the plug-in minus the bias expected at this sample count.

The plug-in Frechet distance (with the :math:`1/n` covariance) is too large for one reason only: the mean and the trace
parts are unbiased together, but :math:`\mathrm{Tr}(S_r^{1/2} \hat S S_r^{1/2})^{1/2}` is concave in the sample
covariance. For Gaussian rows its expectation has a closed form in the limit of many dimensions and samples (random
matrix theory), which is accurate to a fraction of a percent from ten samples on. (The bias is a small part of it, and
by about :math:`\mathrm{Tr} S_r / 4n` too small: 1% with 64 equal eigenvalues, 11% with four.) So the whole bias curve
of a reference costs milliseconds, needs no random numbers and reaches far below :math:`n = d`, where extrapolation in
:math:`1/n` fails: there the bias is not of the order :math:`1/n`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit.functional.inception_score import entropy
from tm_bandit.functional.witness_is import crossfit_mean

#: Eigenvalues below this share of the largest are rounding: their roots add less than 1e-7 each to a trace.
_NEGLIGIBLE = 1e-14
#: Nodes of the integral, and how far they reach below and above the logarithm of the largest eigenvalue. Chosen by
#: hand; the tests hold the result against simulated rows.
_NODES, _BELOW, _ABOVE = 300, 35.0, 16.0
#: Rows in multiples of the dimension from which the arm's own fitted spectrum counts even if it gives more bias than
#: the reference's curve, and from which it counts fully: below, a rotated arm would be debiased by half its distance.
_OWN_FROM, _OWN_FULLY = 0.5, 1.0
#: The slope ratio begins to count at this multiple of the dimension, where each half has as many rows as dimensions,
#: and counts fully at twice that. Below, extrapolation from halves even has the wrong sign.
_SLOPE_FROM = 2


class RootTrace(NamedTuple):
    r"""A measured :math:`\mathrm{Tr} (S_r^{1/2} \hat S S_r^{1/2})^{1/2}`, with the :math:`1/n` covariance.

    Args:
        value: the trace.
        num: number of rows it was computed from.
    """

    value: float
    num: int


def expected_root_trace(spectrum: Tensor, count: int) -> float:
    r"""Expectation of :math:`\mathrm{Tr} \hat M^{1/2}` for the covariance :math:`\hat M` of ``count`` Gaussian rows.

    With :math:`m = n - 1` degrees of freedom and eigenvalues :math:`s_j` of the true covariance, the deterministic
    equivalent of :math:`\mathrm{Tr} \hat M (\hat M + t)^{-1}` is :math:`f(\kappa) = \sum_j s_j / (s_j + \kappa)` at the
    :math:`\kappa` with :math:`\kappa (1 - f(\kappa) / m) = t`. Inserted into
    :math:`\sqrt x = \frac1\pi \int_0^\infty t^{-1/2} \frac{x}{x+t} dt` and integrated by parts,

    .. math::
        E\,\mathrm{Tr} \hat M^{1/2} \approx \sqrt{\frac mn} \; \frac2\pi \int_{\kappa_0}^\infty \sqrt{t(\kappa)}
        \sum_j \frac{s_j}{(s_j + \kappa)^2} \, d\kappa,

    where :math:`t(\kappa_0) = 0`.

    Args:
        spectrum: eigenvalues of the true covariance, ``(d,)``.
        count: number of rows :math:`n`; the covariance has :math:`1/n`.

    Example:
        >>> round(expected_root_trace(torch.ones(8), 10_000), 2), round(expected_root_trace(torch.ones(8), 3), 2)
        (8.0, 3.16)
    """
    values = spectrum.double()
    top = float(values.max()) if values.numel() else 0.0
    freedom = count - 1
    if top <= 0 or freedom < 1:
        return 0.0
    values = values[values > _NEGLIGIBLE * top] / top
    edge = _zero_of_t(values, freedom)
    nodes = torch.linspace(-_BELOW, _ABOVE, _NODES, dtype=torch.float64, device=values.device)
    step = float(nodes[1] - nodes[0])
    offset = nodes.exp()
    kappa = (edge + offset)[:, None]
    # Most of a look's time below the dimension goes here: one matrix of nodes times axes, overwritten.
    weight = (values + kappa).reciprocal_()
    trace = weight @ values
    slope = weight.square_() @ values
    resolvent = (kappa.squeeze(1) * (1 - trace / freedom)).clamp_min(0)
    terms = resolvent.sqrt() * slope * offset
    tail = 2 * float(values.sum()) * math.exp(-_ABOVE / 2)
    integral = step * float(terms.sum() - terms[-1] / 2) + tail
    return 2 / math.pi * math.sqrt(freedom / count * top) * integral


def _zero_of_t(values: Tensor, freedom: int) -> float:
    """Return where the equivalent of ``t`` begins: at zero if rows outnumber the axes, else found by bisection."""
    if freedom >= values.numel():
        return 0.0
    low, high = -80.0, math.log(values.numel())
    for _ in range(100):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if float((values / (values + math.exp(middle))).sum()) > freedom:
            low = middle
        else:
            high = middle
    return math.exp(high)


def bias_curve(eigenvalues: Tensor, count: int) -> float:
    r"""Bias of the plug-in distance of ``count`` rows of the reference's own Gaussian, whose true distance is zero.

    .. math:: b(n) = 2 \Bigl(\mathrm{Tr} S_r - E\,\mathrm{Tr} (S_r^{1/2} \hat S_n S_r^{1/2})^{1/2}\Bigr)

    Args:
        eigenvalues: of the reference covariance, ``(d,)``.
        count: number of rows.

    Example:
        >>> [round(bias_curve(torch.ones(64), n), 1) for n in (16, 64, 256)]
        [69.8, 20.6, 4.4]
    """
    return spectral_bias(eigenvalues.double().clamp_min(0).square(), count)


def spectral_bias(spectrum: Tensor, count: int) -> float:
    r"""Bias of the plug-in distance of ``count`` Gaussian rows, given the true spectrum of :math:`S_r S_g`.

    .. math:: b(n) = 2 \Bigl(\mathrm{Tr} (S_r S_g)^{1/2} - E\,\mathrm{Tr} (S_r^{1/2} \hat S_n S_r^{1/2})^{1/2}\Bigr)

    Args:
        spectrum: eigenvalues of the product of the two covariances, ``(d,)``.
        count: number of rows; the covariance has :math:`1/n`.

    Example:
        >>> [round(spectral_bias(torch.ones(64), n), 1) for n in (16, 64, 256)]
        [69.8, 20.6, 4.4]
    """
    values = spectrum.double().clamp_min(0)
    return max(0.0, 2 * (float(values.sqrt().sum()) - expected_root_trace(values, count)))


def merge_biases(curve: float, own: float, count: int, dim: int) -> float:
    """Return the smaller of two guesses of the bias while rows are few, and the arm's own from the dimension on.

    The reference's curve is too high for an arm whose spectrum has collapsed. The fit knows no rotation beyond its
    block, so for a rotated arm it is too high until there are about as many rows as dimensions. For a spectrum that is
    flatter than the reference's the curve is too low, but below the dimension such an arm cannot be told from a rotated
    one. The minimum of two noisy guesses is itself too low, which shows when the distance is near zero.

    Args:
        curve: bias by the reference's curve, scaled to the total variance of the rows.
        own: bias by the spectrum that was fitted to the rows.
        count: number of rows.
        dim: number of features.

    Example:
        >>> [merge_biases(2.0, own, n, 100) for own in (1.0, 4.0) for n in (10, 50, 75, 100, 300)]
        [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 4.0]
    """
    if own <= curve:
        return own
    return curve + min(max((count / dim - _OWN_FROM) / (_OWN_FULLY - _OWN_FROM), 0.0), 1.0) * (own - curve)


def second_order_noise(eigenvalues: Tensor) -> float:
    r"""Standard deviation, times :math:`n`, of the plug-in distance of :math:`n` rows of the reference's own Gaussian.

    There the distance has no first-order noise. Of the second order,
    :math:`\|m\|^2 + \frac12 \sum_{jk} \Delta_{jk}^2 / (w_j + w_k)` with the noise :math:`m` of the mean and
    :math:`\Delta` of the covariance, the variance is

    .. math:: \frac1{n^2} \Bigl( \frac94 \sum_j w_j^2 + \sum_{jk} \Bigl(\frac{w_j w_k}{w_j + w_k}\Bigr)^2 \Bigr).

    Args:
        eigenvalues: of the reference covariance, ``(d,)``.

    Example:
        >>> round(second_order_noise(torch.ones(4)), 3)  # sqrt(9 + 4)
        3.606
    """
    values = eigenvalues.double()
    values = values[values > 0]
    harmonic = 1 / (1 / values[:, None] + 1 / values)
    return math.sqrt(2.25 * float(values.square().sum()) + float(harmonic.square().sum()))


def slope_weight(count: int, dim: int) -> float:
    """Return how much the measured slope of the bias counts against the bias that the spectrum implies.

    Up to twice the dimension the spectrum is the better guide, and costs nothing. Later its error (for rows far from
    Gaussian) is larger than the noise of a slope measured by splitting the rows.

    Args:
        count: number of rows.
        dim: number of features.

    Example:
        >>> [slope_weight(n, 100) for n in (25, 200, 300, 400, 900)]
        [0.0, 0.0, 0.5, 1.0, 1.0]
    """
    return min(max(count / (_SLOPE_FROM * dim) - 1, 0.0), 1.0)


def slope_ratio(whole: RootTrace, parts: Sequence[RootTrace], bias: Callable[[int], float]) -> float:
    r"""Ratio of the measured to the reference's own decay of the bias, from disjoint parts of the rows.

    .. math:: \rho = \frac{2 (R_n - \bar R)}{\bar b - b(n)}

    where :math:`R` are traces of roots, :math:`b` the bias curve, and bars are means over the parts.

    Args:
        whole: trace of the root and number of all rows.
        parts: the same for disjoint parts of them.
        bias: the reference's bias curve, as a function of the number of rows.
    """
    mean = sum(part.value for part in parts) / len(parts)
    decay = sum(bias(part.num) for part in parts) / len(parts) - bias(whole.num)
    return max(0.0, 2 * (whole.value - mean)) / decay if decay > 0 else 1.0


def debiased_log_is(fold_prob: Tensor, fold_num: Tensor, mean_entropy: float, witness_mean: float) -> float:
    r"""Near-unbiased :math:`\log \mathrm{IS}` from sums per fold.

    The mean of two corrections of the plug-in, clipped to lie between the plug-in and the witness mean: the jackknife
    that leaves out one fold in turn, and the midpoint between the plug-in and the cross-fitted :math:`\mathrm{KL}` to
    the other folds' marginal, whose biases have opposite signs. It is also at most :math:`\log C`.

    Args:
        fold_prob: sum of the class probabilities per fold, ``(K, C)``.
        fold_num: number of samples per fold, ``(K,)``.
        mean_entropy: mean entropy of the samples.
        witness_mean: mean of the witness scores, too large on average.

    Example:
        >>> prob = torch.tensor([[3.0, 1.0], [2.0, 2.0], [1.0, 3.0], [2.0, 2.0]])
        >>> round(debiased_log_is(prob, torch.full((4,), 4.0), 0.1, 0.65), 3)
        0.616
    """
    used = fold_num > 0
    prob, num = fold_prob[used].double(), fold_num[used].double()
    folds, total, count = len(num), prob.sum(0), float(num.sum())
    marginal_entropy = float(entropy(total / count))
    plug_in = max(marginal_entropy - mean_entropy, 0.0)
    highest = max(min(witness_mean, math.log(prob.shape[1])), plug_in)
    if folds < 2:
        return plug_in
    others = (total - prob).clamp_min(0) / (count - num)[:, None]
    jackknife = folds * marginal_entropy - (folds - 1) * float(entropy(others).mean()) - mean_entropy
    # A class that is missing from the other folds makes the cross-fitted term infinite; the witness mean caps it.
    crossed = float(crossfit_mean(prob, num, torch.tensor(count * mean_entropy), others.clamp_min(1e-300)))
    midpoint = min((plug_in + crossed) / 2, highest)
    return min(max((jackknife + midpoint) / 2, plug_in), highest)
