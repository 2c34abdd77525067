r"""The paper's optimistic bonuses for the Frechet distance, one function per formula.

Each returns the half-width :math:`B` for which :math:`|\widetilde{\mathrm{FD}} - \mathrm{FD}| \le B` is claimed, where
:math:`\widetilde{\mathrm{FD}}` is the plug-in estimate. They use the generator's covariance :math:`\Sigma` through its
trace, its Frobenius norm and its spectral norm, all estimated from the samples, and the effective rank
:math:`r(\Sigma) = \mathrm{Tr}[\Sigma] / \|\Sigma\|_2`. :math:`\Sigma_r, \mu_r` belong to the real data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tm_bandit._arguments import check_count, check_level
from tm_bandit.bounds.bound import Bound, Guarantee, NoBound
from tm_bandit.errors import InputError
from tm_bandit.functional.frechet import largest_eigenvalue


class CovarianceNorms(NamedTuple):
    """What the bonuses use of a covariance.

    Args:
        trace: its trace.
        frobenius: its Frobenius norm, the square root of the trace of its square.
        spectral: its largest eigenvalue.
    """

    trace: float
    frobenius: float
    spectral: float

    @property
    def effective_rank(self) -> float:
        """Trace over spectral norm; 1, its least value, for a covariance that vanishes."""
        return max(self.trace / self.spectral, 1.0) if self.spectral > 0 else 1.0


def dimension_norms(dim: int) -> CovarianceNorms:
    """Return what the Naive-UCB baseline uses in place of the samples' norms.

    Args:
        dim: dimension of the embedding.
    """
    return CovarianceNorms(trace=float(dim), frobenius=math.sqrt(dim), spectral=1.0)


def covariance_norms(sigma: Tensor) -> CovarianceNorms:
    """Compute the norms of a covariance matrix.

    Args:
        sigma: shape ``(d, d)``, symmetric.

    Example:
        >>> import torch
        >>> from tm_bandit.bounds.fd_bounds import covariance_norms
        >>> covariance_norms(torch.diag(torch.tensor([3.0, 4.0])))
        CovarianceNorms(trace=7.0, frobenius=5.0, spectral=4.0)
    """
    sigma = sigma.to(torch.float64)
    return CovarianceNorms(
        float(sigma.trace()), float(torch.linalg.matrix_norm(sigma)), max(largest_eigenvalue(sigma), 0.0)
    )


def threshold_covariance(sigma: Tensor, num_samples: int, threshold: float) -> Tensor:
    r"""Set small entries of a sample covariance to zero (Cai and Liu, 2011, as the authors' code does it).

    .. math::
        |\sigma_{ij}| < M \sqrt{2 \sigma_{ii} \sigma_{jj} \log(d) / n} \;\Rightarrow\; \sigma_{ij} := 0

    Args:
        sigma: shape ``(d, d)``.
        num_samples: the number of samples ``n`` that it comes from.
        threshold: the paper's hyper-parameter ``M``; with 0 nothing changes.

    Example:
        >>> import torch
        >>> from tm_bandit.bounds.fd_bounds import threshold_covariance
        >>> threshold_covariance(torch.tensor([[1.0, 0.01], [0.01, 1.0]]), num_samples=100, threshold=1.0)
        tensor([[1., 0.],
                [0., 1.]])
    """
    variances = sigma.diagonal()
    scale = threshold * math.sqrt(2.0 * math.log(sigma.shape[0]) / num_samples)
    deviations = variances.clamp_min(0.0).sqrt()
    return torch.where(sigma.abs() < scale * torch.outer(deviations, deviations), torch.zeros_like(sigma), sigma)


def fd_burn_in(norms: CovarianceNorms, delta: float) -> float:
    r"""Return the number of samples from which Theorem 1 holds: :math:`4 r(\Sigma) + \log(3 / \delta)`.

    Args:
        norms: norms of the generator's covariance.
        delta: failure probability.

    Example:
        >>> from tm_bandit.bounds.fd_bounds import CovarianceNorms, fd_burn_in
        >>> round(fd_burn_in(CovarianceNorms(trace=15.0, frobenius=3.0, spectral=1.0), delta=0.05), 3)
        64.094
    """
    check_level("delta", delta)
    return 4.0 * norms.effective_rank + math.log(3.0 / delta)


def fd_bonus_paper(
    num_samples: int,
    norms: CovarianceNorms,
    mean_gap: float,
    reference_root_trace: float,
    delta: float,
    kappa: float = 1.0,
    as_printed: bool = False,
) -> float:
    r"""Compute the bonus of Theorem 1 for Gaussian embeddings.

    .. math::
        B &= 2 \Delta_\mu (\Delta_\mu + \|\hat\mu - \mu_r\|) + \mathrm{Tr}[\Sigma_r^{1/2}] \sqrt{8 \Delta_\Sigma}
            + \mathrm{Tr}[\Sigma] \sqrt{\tfrac{8}{n} L} + \tfrac{8 \|\Sigma\|_2}{n} L, \qquad L = \log(6 / \delta) \\
        \Delta_\mu^2 &= \tfrac{1}{n} \bigl(\mathrm{Tr}[\Sigma] + \sqrt{8 \mathrm{Tr}[\Sigma^2] L}
            + 8 \|\Sigma\|_2 L\bigr) \\
        \Delta_\Sigma &= 20 \kappa^2 \|\Sigma\|_2 \sqrt{(4 r(\Sigma) + \log(3 / \delta)) / n} + \Delta_\mu^2

    The paper's proof splits :math:`\|\hat\mu - \mu\|^2` into its expectation :math:`\mathrm{Tr}[\Sigma] / n` and a
    deviation, and then loses the expectation. As printed the bound fails almost surely when the effective rank is
    large; here the term is back, unless ``as_printed`` asks for the paper's own formula.

    Args:
        num_samples: number of generated samples ``n``.
        norms: norms of the generator's covariance.
        mean_gap: distance between the means, not squared.
        reference_root_trace: trace of the square root of the real covariance.
        delta: failure probability (already divided by the horizon, if there is one).
        kappa: the sub-Gaussian constant.
        as_printed: leave out the trace term in the mean's deviation, as the paper does.

    Example:
        >>> from tm_bandit.bounds.fd_bounds import CovarianceNorms, fd_bonus_paper
        >>> norms = CovarianceNorms(trace=10.0, frobenius=4.0, spectral=2.0)
        >>> round(fd_bonus_paper(1000, norms, mean_gap=1.0, reference_root_trace=5.0, delta=0.05), 3)
        38.477
    """
    check_count("num_samples", num_samples, 1)
    check_level("delta", delta)
    log_term = math.log(6.0 / delta)
    expected = 0.0 if as_printed else norms.trace
    deviation = norms.frobenius * math.sqrt(8.0 * log_term) + 8.0 * norms.spectral * log_term
    mean_squared = (expected + deviation) / num_samples
    spread = _covariance_deviation(num_samples, norms, delta, kappa) + mean_squared
    trace_term = norms.trace * math.sqrt(8.0 * log_term / num_samples) + 8.0 * norms.spectral * log_term / num_samples
    return _proved(mean_squared, mean_gap, spread, reference_root_trace) + trace_term


def fd_bonus_bounded(
    num_samples: int,
    norms: CovarianceNorms,
    mean_gap: float,
    reference_root_trace: float,
    delta: float,
    dim: int,
    norm_bound: float,
    kappa: float = 1.0,
    as_printed: bool = False,
) -> float:
    r"""Compute the bonus of Theorem 4 for embeddings whose norm is at most :math:`C`, Gaussian or not.

    .. math::
        B &= 2 \Delta_1 (\Delta_1 + \|\hat\mu - \mu_r\|) + \mathrm{Tr}[\Sigma_r^{1/2}] \sqrt{8 \Delta_2}
            + 4 C^2 \sqrt{\tfrac{1}{2n} \log(6 / \delta)} \\
        \Delta_1^2 &= \tfrac{1}{n} \bigl(2 d C^2 \log(6 d / \delta) + \mathrm{Tr}[\Sigma]\bigr) \\
        \Delta_2 &= 20 \kappa^2 \|\Sigma\|_2 \sqrt{(4 r(\Sigma) + \log(3 / \delta)) / n} + \Delta_1^2

    The proof's last step has :math:`\log(6 / \delta)` where the statement prints :math:`\log(3 / \delta)`; the larger,
    valid one is used unless ``as_printed`` asks for the statement's.

    Args:
        num_samples: number of generated samples ``n``.
        norms: norms of the generator's covariance.
        mean_gap: distance between the means, not squared.
        reference_root_trace: trace of the square root of the real covariance.
        delta: failure probability (already divided by the horizon, if there is one).
        dim: dimension of the embedding.
        norm_bound: the bound ``C`` on the norm of an embedding.
        kappa: the sub-Gaussian constant.
        as_printed: use the statement's logarithm in the last term.

    Example:
        >>> from tm_bandit.bounds.fd_bounds import CovarianceNorms, fd_bonus_bounded
        >>> norms = CovarianceNorms(trace=0.5, frobenius=0.3, spectral=0.2)
        >>> round(fd_bonus_bounded(1000, norms, 0.1, 2.0, delta=0.05, dim=8, norm_bound=1.0), 3)
        4.81
    """
    check_count("num_samples", num_samples, 1)
    check_level("delta", delta)
    squared = (2.0 * dim * norm_bound**2 * math.log(6.0 * dim / delta) + norms.trace) / num_samples
    spread = _covariance_deviation(num_samples, norms, delta, kappa) + squared
    last = math.log((3.0 if as_printed else 6.0) / delta)
    trace_term = 4.0 * norm_bound**2 * math.sqrt(last / (2.0 * num_samples))
    return _proved(squared, mean_gap, spread, reference_root_trace) + trace_term


def fd_bonus_authors(
    num_samples: int,
    norms: CovarianceNorms,
    mean_gap: float,
    reference_root_trace: float,
    delta: float,
    kappa: float = 1.0,
) -> float:
    r"""Compute the bonus of the authors' published code: Theorem 1 with every constant set to one.

    .. math::
        B &= \Delta_\mu (\Delta_\mu + \|\hat\mu - \mu_r\|) + \mathrm{Tr}[\Sigma_r^{1/2}] \sqrt{\Delta_\Sigma}
            + \mathrm{Tr}[\Sigma] \sqrt{L / n} + \|\Sigma\|_2 L / n, \qquad L = \log(1 / \delta) \\
        \Delta_\mu^2 &= \tfrac{1}{n} \bigl(\sqrt{\mathrm{Tr}[\Sigma^2] L} + \|\Sigma\|_2 L\bigr), \qquad
        \Delta_\Sigma = \kappa^2 \|\Sigma\|_2 \sqrt{(r(\Sigma) + L) / n} + \Delta_\mu^2

    A heuristic: no theorem stands behind these constants.

    Args:
        num_samples: number of generated samples ``n``.
        norms: norms of the generator's covariance, thresholded or not.
        mean_gap: distance between the means, not squared.
        reference_root_trace: trace of the square root of the real covariance.
        delta: failure probability.
        kappa: the sub-Gaussian constant.

    Example:
        >>> from tm_bandit.bounds.fd_bounds import CovarianceNorms, fd_bonus_authors
        >>> norms = CovarianceNorms(trace=10.0, frobenius=4.0, spectral=2.0)
        >>> round(fd_bonus_authors(1000, norms, mean_gap=1.0, reference_root_trace=5.0, delta=0.05), 3)
        2.869
    """
    check_count("num_samples", num_samples, 1)
    check_level("delta", delta)
    log_term = math.log(1.0 / delta)
    mean_squared = (norms.frobenius * math.sqrt(log_term) + norms.spectral * log_term) / num_samples
    mean_term = math.sqrt(mean_squared)
    spread = kappa**2 * norms.spectral * math.sqrt((norms.effective_rank + log_term) / num_samples) + mean_squared
    return (
        mean_term * (mean_term + mean_gap)
        + reference_root_trace * math.sqrt(spread)
        + norms.trace * math.sqrt(log_term / num_samples)
        + norms.spectral * log_term / num_samples
    )


def fd_bonus_naive(
    num_samples: int, dim: int, mean_gap: float, reference_root_trace: float, delta: float, kappa: float = 1.0
) -> float:
    r"""Compute the bonus of the Naive-UCB baseline: the authors' bonus with dimension-based terms.

    It sets :math:`\mathrm{Tr}[\Sigma] = \mathrm{Tr}[\Sigma^2] = r(\Sigma) = d` and :math:`\|\Sigma\|_2 = 1`, so only
    the generator's mean enters.

    Args:
        num_samples: number of generated samples ``n``.
        dim: dimension of the embedding.
        mean_gap: distance between the means, not squared.
        reference_root_trace: trace of the square root of the real covariance.
        delta: failure probability.
        kappa: the sub-Gaussian constant.

    Example:
        >>> from tm_bandit.bounds.fd_bounds import fd_bonus_naive
        >>> round(fd_bonus_naive(1000, dim=16, mean_gap=1.0, reference_root_trace=5.0, delta=0.05), 3)
        2.91
    """
    norms = dimension_norms(dim)
    return fd_bonus_authors(num_samples, norms, mean_gap, reference_root_trace, delta, kappa)


class FrechetTuning(NamedTuple):
    """The hyper-parameters of the reproduced bounds.

    Args:
        kappa: the sub-Gaussian constant.
        threshold: the threshold ``M`` for small entries of the covariance; 0 for none.
        norm_bound: the bound ``C`` on the norm of an embedding, for Theorem 4.
        as_printed: whether the paper's formulas are taken as printed, errors included.
    """

    kappa: float = 1.0
    threshold: float = 0.0
    norm_bound: float | None = None
    as_printed: bool = False

    def checked(self, bound: str) -> FrechetTuning:
        """Return itself if a bound can work with it.

        Args:
            bound: name of the bound.

        Raises:
            InputError: if something is missing, or would have no effect.
        """
        if bound == "bounded" and self.norm_bound is None:
            raise InputError("Expected `norm_bound` with `bound='bounded'`, but got None; give the largest norm.")
        if self.as_printed and bound not in ("paper", "bounded"):
            raise InputError(f"Expected `paper_as_printed` with `bound='paper'` or 'bounded', but got {bound!r}.")
        return self


#: Count, norms, distance of the means, trace of the reference's root and failure probability: the arguments of every
#: bonus.
_Given = tuple[int, CovarianceNorms, float, float, float]


@dataclass(frozen=True)
class FrechetBonus(Bound):
    """A bound that is the plug-in minus a bonus.

    Args:
        formula: the bonus, from the arguments of every bonus, the hyper-parameters and the dimension.
        guarantee: what the theorem promises, if there is one.
        unbiased: whether its plug-in has the ``n - 1`` covariance of the authors' program instead of the paper's ``n``.
        sample_norms: whether the norms are those of the samples; else the dimension takes their place.
    """

    formula: Callable[[_Given, FrechetTuning, int], float]
    guarantee: Guarantee = "none"
    unbiased: bool = False
    sample_norms: bool = True

    def ends(self, view: Any) -> tuple[float, float]:
        """Return the plug-in minus and plus the bonus."""
        plug_in, given = view.plug_in(self.unbiased), (view.count, self._norms(view), *view.gaps(), view.level)
        bonus = self.formula(given, view.tuning(), view.dim)
        return plug_in - bonus, plug_in + bonus

    def centre(self, view: Any) -> tuple[float, float]:
        """Return the plug-in, whose standard error is not known."""
        return view.plug_in(self.unbiased), 0.0

    def burn_in_met(self, view: Any) -> bool:
        """Whether there are enough samples for Theorem 1."""
        return bool(view.count >= fd_burn_in(self._norms(view), view.level))

    def _norms(self, view: Any) -> CovarianceNorms:
        norms: CovarianceNorms = view.norms(self.unbiased) if self.sample_norms else dimension_norms(view.dim)
        return norms


def _bounded(given: _Given, tuning: FrechetTuning, dim: int) -> float:
    return fd_bonus_bounded(*given, dim, tuning.norm_bound or 0.0, tuning.kappa, tuning.as_printed)


#: The reproduced bounds of the Frechet distance. The authors' program, and so "naive", divides by n - 1.
FD_BOUNDS: dict[str, Bound] = {
    "paper": FrechetBonus(lambda given, t, _: fd_bonus_paper(*given, t.kappa, t.as_printed), "finite"),
    "authors": FrechetBonus(lambda given, t, _: fd_bonus_authors(*given, t.kappa), unbiased=True),
    "bounded": FrechetBonus(_bounded, "finite"),
    "naive": FrechetBonus(lambda given, t, _: fd_bonus_authors(*given, t.kappa), unbiased=True, sample_norms=False),
    "none": NoBound(min_samples=2),
}


def _proved(mean_squared: float, mean_gap: float, spread: float, reference_root_trace: float) -> float:
    """Return what both theorems have in common: the terms of the mean and of the mixed root."""
    mean = math.sqrt(mean_squared)
    return 2.0 * mean * (mean + mean_gap) + reference_root_trace * math.sqrt(8.0 * spread)


def _covariance_deviation(num_samples: int, norms: CovarianceNorms, delta: float, kappa: float) -> float:
    """Bound the deviation of the covariance about the true mean (first term of equation 57)."""
    return 20.0 * kappa**2 * norms.spectral * math.sqrt(fd_burn_in(norms, delta) / num_samples)
