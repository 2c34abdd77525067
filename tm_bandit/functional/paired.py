r"""Several arms on the same draws: their shared noise cancels in their differences.

Row :math:`i` of every arm comes from the same noise, so pairs of rows are independent over :math:`i`, and nothing else
is. For any scores :math:`\psi_a` whose mean over the rows of arm :math:`a` estimates its loss,

.. math:: \hat\Delta_{ab} = \frac1n \sum_i \bigl(\psi_a(x_{a,i}) - \psi_b(x_{b,i})\bigr), \qquad
          \mathrm{se}(\hat\Delta_{ab}) = \frac{\mathrm{sd}_i(\psi_a(x_{a,i}) - \psi_b(x_{b,i}))}{\sqrt n},

which for arms with correlated scores is far less than the root of the two variances' sum.

**One witness for both.** With a witness :math:`\psi` for both arms,

.. math:: \mathrm{FD}_a - \mathrm{FD}_b = E_a\psi - E_b\psi + (\mathrm{gap}_a - \mathrm{gap}_b),

where a gap is how loose the witness is for an arm: quadratic in how far the arm is from where it is optimal. So
:math:`\psi` is fitted on the average moments of the two arms, halfway between them, where the gaps are alike and only
third-order terms are left: the midpoint rule. A witness halfway between all arms would not do: arms on either side of
the reference (guidance scales, say) would look the same to it. (The average of the arms' sums is used, not their sum:
paired rows are not independent evidence.)

**Its noise.** As both arms are scored by the same function, there is no noise of separate fits, but there is that of
the one fit: :math:`\int \psi \, d(P_a - P_b)` moves with the witness, and next to the reference it does little else.
Each fold has a witness that has not seen it, so the fit is known with each fold left out. With the mean difference
:math:`T_k` of *all* rows by the witness of fold :math:`k`, the jackknife's variance
:math:`\frac{K - 1}{K} \sum_k (T_k - \bar T)^2` is added to that of the rows.

**A certificate.** A witness :math:`\psi_b` fitted without the rows it scores has mean at most :math:`\mathrm{FD}_b`,
and the plug-in :math:`P_a` has mean at least :math:`\mathrm{FD}_a`, whatever the dependence between the arms. So
:math:`W_b - P_a` is at most :math:`\mathrm{FD}_b - \mathrm{FD}_a` on average, and to first order it deviates from its
mean like the mean of :math:`\psi_b(x_{b,i}) - \psi_a(x_{a,i})`: the optimal witness is the plug-in's influence
function. Neither witness is damped, because two that are damped differently do not cancel.

**Less bias.** :func:`safe_bias` is subtracted from the plug-in: a share of the bias shown by leaving out one row at a
time. Like the width it is asymptotic, and nothing is subtracted before 1,000 rows, which may still miss a far mode of
less than 1% of the mass. Two halves of the rows show the bias too, but with extra noise: with them, certificates were
wrong in up to 40% of runs next to the reference.

Folds depend only on the number of a row, so a pair of rows is always in the same fold, and no row is scored by a
witness that has seen its partner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit.functional.crossfit import FOLDS, FoldLayout, leave_one_out, num_folds, sum_folds
from tm_bandit.functional.frechet_basis import FrechetBasis
from tm_bandit.functional.jackknife import root_traces_without
from tm_bandit.functional.witness_fd import (
    FrechetSums,
    block_size,
    damp_witness,
    fit_frechet_map,
    mean_score,
    score_rows,
)
from tm_bandit.functional.witness_is import crossfit_marginals

#: Rows from which on bias is subtracted: a far mode of 1 % of the mass has then been drawn ten times. Of 60 races with
#: such a mode 15 were wrong when it was subtracted from 200 rows on, 3 from 500 on and none from here on.
_SEEN_FROM = 1_000
#: The share of it. The slope of the bias overstates it most where there are as many Gaussian rows as dimensions, and
#: there by a factor of 1.43 if their spectrum is flat, less if it is steep.
_SHARE = 0.7


class PairedScores(NamedTuple):
    """Scores of arms on the same draws.

    Args:
        scores: score of each row by the witness that was fitted without its fold, ``(arms, n)``.
        means: mean score of all rows of an arm by the witness of each fold, ``(arms, K)``.
    """

    scores: Tensor
    means: Tensor


def paired_frechet_scores(arms: Sequence[Tensor], basis: FrechetBasis, *, common: bool) -> PairedScores:
    """Score equally many rows of each arm by undamped witnesses that were fitted on the other folds.

    Args:
        arms: rows of each arm in the axes of the reference (:meth:`FrechetBasis.rotate`), ``(n, d)``, draw by draw in
            the same order.
        basis: the reference.
        common: one witness for all arms, or each arm its own.

    Returns:
        Scores in units of the Frechet distance.

    Example:
        >>> noise = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> basis = FrechetBasis.from_eigen(torch.zeros(3), torch.ones(3), torch.eye(3))
        >>> arms = [basis.rotate(noise + 1.0), basis.rotate(noise + 1.1)]
        >>> one, two = paired_frechet_scores(arms, basis, common=True).scores
        >>> 0.5 < float(two.mean() - one.mean()) < 0.75  # the truth is 3 (1.1 ** 2 - 1)
        True
    """
    count, dim = arms[0].shape
    # A certificate is rare, and depends on witnesses that have seen as many rows as possible.
    layout = FoldLayout.of(0, count, num_folds(count) if common else FOLDS, basis.center.device)
    grouped = []
    for rows in arms:
        places = layout.empty(width=dim, like=rows)
        places[layout.fold, layout.slot] = rows
        grouped.append(places)
    block = block_size(count, dim)
    sums = [sum_folds(rows, layout, basis.axes, block) for rows in grouped]
    training = [leave_one_out(part) for part in sums]
    if common:
        parts = zip(*training, strict=True)
        training = [FrechetSums(*(torch.stack(part).mean(0) for part in parts))]
    witnesses = []
    for part in training:
        fit = fit_frechet_map(part, basis.axes)
        witnesses.append(damp_witness(fit, basis.axes, torch.ones_like(fit.predicted)))
    if common:
        witnesses *= len(arms)
    scores = [
        score_rows(witness, rows)[layout.fold, layout.slot] for witness, rows in zip(witnesses, grouped, strict=True)
    ]
    means = [
        mean_score(witness, FrechetSums(*(folds.sum(0) for folds in part)))
        for witness, part in zip(witnesses, sums, strict=True)
    ]
    return PairedScores(torch.stack(scores) * basis.scale**2, torch.stack(means) * basis.scale**2)


def safe_bias(rows: Tensor, basis: FrechetBasis) -> float:
    r"""Return how much too large the plug-in distance of these rows is on average, at least, judged from the rows.

    With the traces :math:`R_n` of the root of the :math:`1/n` covariance and :math:`R_{-i}` of that without row
    :math:`i`, the jackknife's bias is :math:`B = 2 (n - 1) (R_n - \bar R_{-i})`: means and variances together
    have none. It follows the slope :math:`-n b'(n)` of the bias, which is above :math:`b(n)` with about as many rows
    as dimensions, so 0.7 of it is returned, and zero below 1,000 rows.

    Args:
        rows: rows of one arm in the axes of the reference, ``(n, d)``.
        basis: the reference.

    Example:
        >>> basis = FrechetBasis.from_eigen(torch.zeros(8), torch.ones(8), torch.eye(8))
        >>> rows = torch.randn(2_000, 8, generator=torch.Generator().manual_seed(0))
        >>> round(safe_bias(basis.rotate(rows), basis), 3)  # 0.7 of 0.013
        0.009
        >>> safe_bias(basis.rotate(rows[:500]), basis)
        0.0
    """
    count = len(rows)
    if count < _SEEN_FROM:
        return 0.0
    centred = rows.double() - rows.double().mean(0)
    whole, without = root_traces_without(centred * basis.axes.eigenvalues.sqrt())
    excess = float(whole) / math.sqrt(count) - float(without.mean()) / math.sqrt(count - 1)
    return max(0.0, _SHARE * 2.0 * (count - 1) * excess) * basis.scale**2


def paired_kl_scores(arms: Tensor, priors: Tensor, *, common: bool) -> PairedScores:
    r"""Score rows of class probabilities by :math:`\mathrm{KL}(p \| q)`, with :math:`q` from the other folds.

    Args:
        arms: class probabilities, ``(arms, n, C)``, draw by draw in the same order.
        priors: first guesses at the marginal, without zeros, ``(P, C)``.
        common: one marginal for all arms, or each arm its own.

    Returns:
        Scores whose mean estimates log IS from above.

    Example:
        >>> sure = torch.eye(2, dtype=torch.float64).repeat(50, 1)
        >>> scores = paired_kl_scores(torch.stack([sure, 0.5 * sure + 0.25]), torch.full((1, 2), 0.5), common=True)
        >>> [round(float(score), 2) for score in scores.scores.mean(1)]
        [0.69, 0.13]
    """
    layout = FoldLayout.of(0, arms.shape[1], num_folds(arms.shape[1]), arms.device)
    num = torch.bincount(layout.fold, minlength=layout.shape[0]).double()
    prob = arms.new_zeros(arms.shape[0], layout.shape[0], arms.shape[2]).index_add_(1, layout.fold, arms)
    witnesses = crossfit_marginals(prob.mean(0, keepdim=True) if common else prob, num, priors)
    certainty = -torch.special.entr(arms).sum(-1)
    scores = certainty - (arms * witnesses[:, layout.fold].log()).sum(-1)
    means = certainty.mean(1, keepdim=True) - (arms.mean(1)[:, None] * witnesses.log()).sum(-1)
    return PairedScores(scores, means)
