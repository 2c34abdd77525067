"""The witness bound of the Inception Score from sums that do not grow with the number of samples."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit.functional import witness_is
from tm_bandit.functional.confidence import ScoreMoments, WidthKind, deviation
from tm_bandit.functional.crossfit import FOLDS, Fitting, fold_numbers, num_folds, refit_counts

#: Numbers in the candidates for the witnesses that are fitted together: 16 MB in float64.
_MOST_CANDIDATES = 2_000_000


class MarginalSums(NamedTuple):
    """Everything that the witness remembers about the samples; the sums of two sets of samples can be added.

    Args:
        fold_num: number of samples per fold, ``(FOLDS,)``.
        fold_prob: sum of their class probabilities, ``(FOLDS, C)``.
        score_sums: sums of powers of their scores at arrival, in blocks, ``(NUM_BLOCKS, 4)``.
        predictor: witness for the samples to come, up to a factor, ``(C,)``; zero before the first fit.
    """

    fold_num: Tensor
    fold_prob: Tensor
    score_sums: Tensor
    predictor: Tensor

    @classmethod
    def empty(cls, num_classes: int) -> MarginalSums:
        """Sums of no samples.

        Args:
            num_classes: number of classes ``C``.
        """
        zeros = torch.zeros(FOLDS, dtype=torch.float64)
        per_class = zeros.new_zeros(FOLDS, num_classes)
        return cls(zeros, per_class, zeros.new_zeros(witness_is.NUM_BLOCKS, 4), per_class[0].clone())


def add_probs(sums: MarginalSums, probs: Tensor, priors: Tensor) -> MarginalSums:
    """Add samples in the order in which they came; the result does not depend on how they were batched.

    Args:
        sums: sums of the samples before.
        probs: class probabilities, ``(n, C)``.
        priors: distributions over the classes, without zeros, ``(P, C)``.
    """
    start = round(float(sums.fold_num.sum()))
    stop = start + len(probs)
    due = [count for count in refit_counts(stop) if count > start]
    # Each stretch of samples is scored by the witness fitted on all samples before it. A small batch may have
    # twenty stretches, so these witnesses are fitted together, as many at a time as memory allows.
    together = max(1, _MOST_CANDIDATES // (FOLDS * priors.numel() * len(witness_is.PRIOR_STRENGTHS)))
    for first in range(0, len(due) + 1, together):
        stops = due[first : first + together]
        last = stops[-1] if len(stops) == together else stop
        done = round(float(sums.fold_num.sum()))
        sums = _add_stretches(sums, probs[done - start : last - start], priors, [done, *stops, last])
    return sums


def _add_stretches(sums: MarginalSums, probs: Tensor, priors: Tensor, edges: list[int]) -> MarginalSums:
    """Add stretches of samples between ``edges``; at all edges but the first and the last a witness is fitted."""
    lengths = [last - first for first, last in pairwise(edges)]
    stretch = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    place = (stretch * FOLDS + fold_numbers(edges[0], edges[-1])).to(probs.device)
    num = probs.new_zeros(len(lengths) * FOLDS).index_add_(0, place, probs.new_ones(len(probs)))
    prob = probs.new_zeros(len(lengths) * FOLDS, probs.shape[1]).index_add_(0, place, probs)
    fold_num = sums.fold_num + num.view(-1, FOLDS).cumsum(0)
    fold_prob = sums.fold_prob + prob.view(-1, FOLDS, probs.shape[1]).cumsum(0)
    fitted = witness_is.predict_marginal(fold_prob[:-1], fold_num[:-1], priors)
    predictors = torch.cat([sums.predictor[None], fitted])
    total = predictors.sum(1, keepdim=True)
    witnesses = torch.where(total > 0, predictors / total, priors[0])
    scores = map(witness_is.score_probs, torch.split(probs, lengths), witnesses)
    score_sums = sums.score_sums + witness_is.block_sums(torch.cat([*scores]), edges[0])
    # Clones: a view would keep the sums of all stretches alive, and in every file that the state is saved to.
    return MarginalSums(fold_num[-1].clone(), fold_prob[-1].clone(), score_sums, predictors[-1].clone())


def witness_moments(sums: MarginalSums, entropy: Tensor, priors: Tensor, fitting: Fitting = "crossfit") -> ScoreMoments:
    r"""Moments of the scores :math:`\mathrm{KL}(p_i \| q)`, whose expectation is at least :math:`\log \mathrm{IS}`.

    ``fitting="crossfit"``: the mean is that of all samples under their folds' present witnesses, exactly; the spread is
    that of the latest half of the samples at arrival, which were scored by nearly as good witnesses.
    ``fitting="predictable"``: mean and spread of the scores at arrival, a martingale.

    Args:
        sums: sums of the samples.
        entropy: sum of their entropies, a scalar.
        priors: distributions over the classes, without zeros, ``(P, C)``.
        fitting: see above.
    """
    if fitting == "predictable":
        return witness_is.predictable_moments(sums.score_sums)
    count = round(float(sums.fold_num.sum()))
    if count == 0:
        return ScoreMoments(0, 0.0, 0.0, 0.0)
    folds = num_folds(count)
    prob, num = sums.fold_prob.view(-1, folds, sums.fold_prob.shape[1]).sum(0), sums.fold_num.view(-1, folds).sum(0)
    mean = witness_is.crossfit_mean(prob, num, entropy, witness_is.crossfit_marginals(prob, num, priors))
    return replace(witness_is.recent_spread(sums.score_sums), count=count, mean=float(mean))


def marginal_spread(marginal: Tensor) -> Tensor:
    r"""Standard deviation of :math:`\log \bar p` under :math:`\bar p`: that of a sure classifier's scores.

    Args:
        marginal: distributions over the classes, ``(..., C)``.

    Example:
        >>> marginal_spread(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
        tensor([0.0000, 0.6592])
    """
    logs = marginal.clamp_min(1e-300 if marginal.dtype == torch.float64 else 1e-30).log()
    mean = (marginal * logs).sum(-1, keepdim=True)
    return (marginal * (logs - mean).square()).sum(-1).sqrt()


def witness_interval(
    scores: ScoreMoments, plug_in: float, classes: int, alpha: float, kind: WidthKind = "mixture", spread: float = 0.0
) -> tuple[float, float]:
    r"""Return lower and upper bound of :math:`\log \mathrm{IS}`.

    The witness scores bound from above; the plug-in, which is too small on average and to first order deviates like the
    mean of the scores, bounds from below. Zero and :math:`\log C` hold without any samples.

    Args:
        scores: what :func:`witness_moments` returned.
        plug_in: the plain estimate of log IS.
        classes: their number ``C``.
        alpha: failure probability of each end.
        kind: the confidence sequence.
        spread: :func:`marginal_spread` of the plug-in's marginal. While the witness is heavily smoothed, its
            scores vary less than those of the marginal itself, and the plug-in deviates like the latter.

    Example:
        >>> lower, upper = witness_interval(ScoreMoments(100, 1.5, 0.4, 0.1), 1.3, 10, 0.025)
        >>> round(lower, 2), round(upper, 2)
        (1.17, 1.63)
    """
    upper = scores.mean + deviation(scores, alpha, upper=True, kind=kind)
    wide = replace(scores, std=max(scores.std, spread))
    lower = plug_in - deviation(wide, alpha, upper=False, kind=kind)
    return max(lower, 0.0), min(upper, math.log(classes))
