r"""How far the distance to a sample of real images may be from the distance to all of them.

A reference of :math:`n_r` images has sample moments :math:`\hat r` in place of the true ones :math:`r`. Seen from the
reference the Frechet distance is again a supremum of means, now over real rows :math:`z`,

.. math:: \mathrm{FD}(g, r) = \sup_u \; E_g[\|x\|^2 - 2u(x)] + E_r[\|z\|^2 - 2u^*(z)],

so the sample moments do two things.

* *Bias.* The supremum is taken after the noise is known, so :math:`E\,\mathrm{FD}(g, \hat r) \ge \mathrm{FD}(g, r)`.
  The distance is symmetric: the excess is the plug-in bias of :math:`n_r` rows, whose closed form for Gaussian rows is
  :func:`~tm_bandit.functional.debias.spectral_bias`. For a perfect generator this is all there is, with
  second-order noise around it (:func:`~tm_bandit.functional.debias.second_order_noise`). The formula needs the true
  spectrum.
  The eigenvalues of a sample are more spread, by a variance of :math:`y = d / n_r` relative to a flat spectrum; the
  leading term of the bias, :math:`\sum_{jk} w_j w_k / (w_j + w_k)`, falls by the factor :math:`1 - y/2` with that. So
  the bias is multiplied by :math:`e^{y/2}`: right to 4% for flat spectra from :math:`n_r = d / 2` on, too much for
  steep ones (by 15% at :math:`n_r = 2d` for :math:`w_j \propto j^{-1.5}`). And it is multiplied by how much more
  scattered sample covariances are than those of Gaussian rows, :func:`tail_ratio`, which is 1.4 to 1.9 behind a ReLU.
  The real rows are gone, so this is measured on the generated ones.
* *First-order noise.* For the best witness it is the mean over :math:`n_r` real rows of
  :math:`v(z) = \|z\|^2 - 2u^*(z)`, whose gradient is twice the distance that :math:`z` is moved. For Gaussian rows
  Poincare's inequality gives :math:`\mathrm{Var}\,v \le 4 \lambda_{\max}(S_r)\,\mathrm{FD}`, so no row is needed.

With the normal quantile :math:`z_\alpha` and :math:`c = 2 z_\alpha \sqrt{\lambda_{\max} / n_r}`, a lower end
:math:`L` of the distance to :math:`\hat r` becomes the :math:`F` with
:math:`F + c \sqrt F + b(n_r) + z_\alpha s_2 / n_r = L`, and an upper end :math:`U` the one with
:math:`F - c \sqrt F = U` (there the bias is on the safe side). The two kinds of noise are added, not their squares, so
no share of the failure probability has to be set aside. Not covered: real rows with heavier tails than the generated
ones.

Two arms that are compared by the same reference share its noise; this belongs to the interval of a single one.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

from torch import Tensor


def tail_ratio(rows: Tensor, eigenvalues: Tensor) -> float:
    r"""How much larger the plug-in's second-order bias is for rows like these than for Gaussian ones; at least one.

    The bias is half of :math:`\sum_{jk} \mathrm{Var}(\hat S_{jk}) / (w_j + w_k)`, and
    :math:`n \mathrm{Var}(\hat S_{jk}) = E[y_j^2 y_k^2] - S_{jk}^2`. With the rows' own variances :math:`v` on the axes,
    which are taken to be uncorrelated,

    .. math:: \frac{\sum_{jk} E[y_j^2 y_k^2] / (w_j + w_k) - \frac12 \sum_j v_j^2 / w_j}
                   {\sum_{jk} v_j v_k / (w_j + w_k) + \frac12 \sum_j v_j^2 / w_j}.

    Args:
        rows: rotated rows, ``(n, d)``; they need not be centred.
        eigenvalues: of the reference, all above zero, ``(d,)``.

    Example:
        >>> import torch
        >>> rows = torch.randn(4000, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> ones = torch.ones(8, dtype=torch.float64)
        >>> round(tail_ratio(rows, ones), 1), round(tail_ratio(rows.pow(3), ones), 1)
        (1.0, 6.0)
    """
    squared = (rows - rows.mean(0)).double().square()
    weight = 1 / (eigenvalues[:, None] + eigenvalues)
    variance = squared.mean(0)
    alone = (variance.square() / eigenvalues).sum() / 2
    gaussian = float((weight @ variance) @ variance + alone)
    found = float(((squared @ weight) * squared).sum(1).mean() - alone)
    return max(1.0, found / gaussian) if gaussian > 0 else 1.0


class ReferenceNoise(NamedTuple):
    """What a finite reference does to an interval of the distance.

    Args:
        excess: by how much the distance to the sample is above that to the truth, including second-order noise.
        slope: first-order noise, as a multiple of the root of the distance.
    """

    excess: float
    slope: float

    @classmethod
    def of(
        cls, bias: float, noise: float, largest: float, dim: int, count: int, alpha: float, tails: float = 1.0
    ) -> ReferenceNoise:
        """Put the parts together.

        Args:
            bias: plug-in bias of ``count`` Gaussian rows with the reference's own eigenvalues.
            noise: second-order standard deviation, times the number of rows.
            largest: largest eigenvalue of the reference.
            dim: number of features.
            count: number of real images.
            alpha: failure probability of one end.
            tails: what :func:`tail_ratio` says.
        """
        quantile = NormalDist().inv_cdf(1 - alpha)
        excess = bias * math.exp(dim / (2 * count)) + quantile * noise / count
        return cls(tails * excess, 2 * quantile * math.sqrt(max(largest, 0.0) / count))

    def lower(self, end: float) -> float:
        """Move a lower end down.

        Args:
            end: lower end of the distance to the sample.

        Example:
            >>> ReferenceNoise(excess=1.0, slope=2.0).lower(9.0)  # 4 + 2 * 2 + 1
            4.0
            >>> ReferenceNoise(excess=1.0, slope=2.0).lower(0.5)
            0.0
        """
        return ((math.sqrt(self.slope**2 + 4 * max(end - self.excess, 0.0)) - self.slope) / 2) ** 2

    def upper(self, end: float) -> float:
        """Move an upper end up.

        Args:
            end: upper end of the distance to the sample.

        Example:
            >>> ReferenceNoise(excess=1.0, slope=2.0).upper(8.0)  # 16 - 2 * 4
            16.0
        """
        return ((math.sqrt(self.slope**2 + 4 * max(end, 0.0)) + self.slope) / 2) ** 2
