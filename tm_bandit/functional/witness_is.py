r"""Witnesses of the Inception Score: any distribution over the classes bounds it from above by an ordinary mean.

Why any witness is on the optimistic side
-----------------------------------------
With the marginal :math:`\bar p = E_g[p(y|x)]`, for every distribution :math:`q` over the classes

.. math:: E_g[\mathrm{KL}(p(y|x) \| q)] = \log \mathrm{IS}_g + \mathrm{KL}(\bar p \| q) \ge \log \mathrm{IS}_g,

because a Kullback-Leibler divergence is never negative. The best witness is the marginal itself; a poor one makes the
bound loose, never wrong, as long as it was fitted on samples other than those it scores.

No sample has to be kept: with the probabilities summed per fold, the mean score of a fold under any :math:`q` is
:math:`-\bar H_f - \langle \bar p_f, \log q \rangle`, whatever :math:`q` will be. Only the spread of the
scores needs single samples; it is taken when they arrive, against the witness of that moment.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tm_bandit.functional.confidence import ScoreMoments

#: How many samples the prior may be worth: from one to as many as Inception has classes; the data choose.
PRIOR_STRENGTHS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
#: Evidence, in nats over all samples, that a strength must show against the next stronger one. Otherwise a few samples
#: that fall into the same classes by chance would give a peaked marginal, and every score would be too low at once.
#: With fewer samples than this no evidence is enough.
EVIDENCE, FEWEST = 1.0, 20
#: Scores are summed in blocks of samples that double in length, so that old witnesses' scores can be left out; this
#: many blocks hold more samples than anybody will draw.
NUM_BLOCKS = 40
#: Samples in the first block, which are scored before there is a witness: as many as the first fit takes.
FIRST_BLOCK = 10
#: The spread comes from the latest half of the samples, but from no fewer than this: fewer give it to a tenth at best.
_MIN_SPREAD = 50


def _smoothed(prob: Tensor, num: Tensor, priors: Tensor) -> Tensor:
    """Mix sums of probabilities ``(..., C)`` with each prior ``(P, C)`` at each strength; ``(..., P * S, C)``."""
    strength = torch.tensor(PRIOR_STRENGTHS, dtype=prob.dtype, device=prob.device)
    pseudo = (priors[:, None, :] * strength[:, None]).flatten(0, 1)
    return (prob[..., None, :] + pseudo) / (num[..., None, None] + strength.repeat(priors.shape[0])[:, None])


def _pick(prob: Tensor, num: Tensor, priors: Tensor, loss: Tensor) -> Tensor:
    candidates = _smoothed(prob, num, priors)
    evidence = torch.where(num < FEWEST, 1e9, EVIDENCE)[..., None]
    steps = torch.arange(len(PRIOR_STRENGTHS) - 1, -1, -1, dtype=loss.dtype, device=loss.device)
    loss = loss + evidence * steps.repeat(priors.shape[0])
    best = loss.argmin(-1)[..., None, None].expand(*loss.shape[:-1], 1, prob.shape[-1])
    return candidates.gather(-2, best).squeeze(-2)


def crossfit_marginals(fold_prob: Tensor, fold_num: Tensor, priors: Tensor) -> Tensor:
    r"""Fit one witness per fold from the other folds, smoothed toward a prior.

    .. math:: q_f = \frac{\sum_{g \ne f} S_g + \kappa \, \pi}{\sum_{g \ne f} n_g + \kappa}

    with the sums of probabilities :math:`S_g` of fold :math:`g`. Prior :math:`\pi` and strength :math:`\kappa` are
    chosen for each fold by leaving out a second fold in turn, and so without the fold that :math:`q_f` will score: the
    choice cannot push the bound over the truth. A weaker prior must show some evidence against a stronger one, and
    with fewer than 20 samples the strongest is taken.

    Args:
        fold_prob: sum of the class probabilities per fold, ``(..., K, C)``.
        fold_num: number of samples per fold, ``(..., K)``.
        priors: distributions over the classes, without zeros, ``(P, C)``.

    Returns:
        The witnesses, ``(..., K, C)``.

    Example:
        >>> sums = torch.tensor([[40.0, 0.0], [30.0, 10.0], [40.0, 0.0]])
        >>> crossfit_marginals(sums, torch.full((3,), 40.0), torch.full((1, 2), 0.5))
        tensor([[0.8125, 0.1875],
                [0.9938, 0.0062],
                [0.8125, 0.1875]])
    """
    folds = fold_prob.shape[-2]
    total, number = fold_prob.sum(-2, keepdim=True), fold_num.sum(-1, keepdim=True)
    first, second = torch.triu_indices(folds, folds, 1, device=fold_prob.device)
    rest = total - fold_prob[..., first, :] - fold_prob[..., second, :]
    left = number - fold_num[..., first] - fold_num[..., second]
    logs = _smoothed(rest.clamp_min(0), left.clamp_min(0), priors).log()
    # What leaving out the pair (f, g) says about fold g when f is the fold to be scored, and the other way round.
    about_first = -(logs @ fold_prob[..., first, :, None]).squeeze(-1)
    about_second = -(logs @ fold_prob[..., second, :, None]).squeeze(-1)
    loss = torch.zeros(*fold_prob.shape[:-1], logs.shape[-2], dtype=logs.dtype, device=logs.device)
    loss.index_add_(-2, first, about_second)
    loss.index_add_(-2, second, about_first)
    return _pick((total - fold_prob).clamp_min(0), number - fold_num, priors, loss)


def predict_marginal(fold_prob: Tensor, fold_num: Tensor, priors: Tensor) -> Tensor:
    """Fit one witness for samples that are still to come, from all folds.

    Args:
        fold_prob: sum of the class probabilities per fold, ``(..., K, C)``.
        fold_num: number of samples per fold, ``(..., K)``.
        priors: distributions over the classes, without zeros, ``(P, C)``.

    Returns:
        The witness, ``(..., C)``.
    """
    total, number = fold_prob.sum(-2, keepdim=True), fold_num.sum(-1, keepdim=True)
    logs = _smoothed((total - fold_prob).clamp_min(0), number - fold_num, priors).log()
    loss = -(logs @ fold_prob[..., None]).squeeze(-1).sum(-2)
    return _pick(total.squeeze(-2), number.squeeze(-1), priors, loss)


def score_probs(probs: Tensor, marginal: Tensor) -> Tensor:
    r"""Return :math:`\mathrm{KL}(p_i \| q)` of each row.

    Args:
        probs: class probabilities, ``(..., n, C)``.
        marginal: the witness, without zeros, ``(..., C)``.

    Example:
        >>> score_probs(torch.eye(2), torch.tensor([0.5, 0.25]))
        tensor([0.6931, 1.3863])
    """
    entropy: Tensor = torch.special.entr(probs).sum(-1)
    return -entropy - (probs @ marginal.log()[..., None]).squeeze(-1)


def crossfit_mean(fold_prob: Tensor, fold_num: Tensor, entropy: Tensor, witnesses: Tensor) -> Tensor:
    """Mean score of all samples, each under its own fold's witness, from sums alone.

    Args:
        fold_prob: sum of the class probabilities per fold, ``(..., K, C)``.
        fold_num: number of samples per fold, ``(..., K)``.
        entropy: sum of the samples' entropies, ``(...)``.
        witnesses: what :func:`crossfit_marginals` returned.
    """
    return -(entropy + (fold_prob * witnesses.log()).sum((-1, -2))) / fold_num.sum(-1)


def block_index(position: Tensor) -> Tensor:
    """Return the block of the sample that was the ``position``-th to arrive (from zero).

    Args:
        position: not negative.

    Example:
        >>> block_index(torch.tensor([0, 9, 10, 19, 20, 39, 40])).tolist()
        [0, 0, 1, 1, 2, 2, 3]
    """
    doublings = (position.clamp_min(1).double() / FIRST_BLOCK).log2().floor()
    return (doublings + 1).clamp(0, NUM_BLOCKS - 1).long()


def block_sums(scores: Tensor, start: int) -> Tensor:
    """Sum powers zero to three of the scores of consecutive samples, block by block.

    Args:
        scores: scores of the samples number ``start``, ``start + 1``, ..., shape ``(n,)``.
        start: how many samples came before.

    Returns:
        Shape ``(NUM_BLOCKS, 4)``.
    """
    powers = scores.double()[:, None].pow(torch.arange(4, device=scores.device))
    sums = torch.zeros(NUM_BLOCKS, 4, dtype=torch.float64, device=scores.device)
    return sums.index_add_(0, block_index(torch.arange(start, start + len(scores), device=scores.device)), powers)


def moments_of_sums(power_sums: Tensor) -> ScoreMoments:
    """Turn sums of powers zero to three, shape ``(4,)``, into moments; scores are small, so nothing cancels badly."""
    count, first, second, third = power_sums.tolist()
    if count < 1:
        return ScoreMoments(0, 0.0, 0.0, 0.0)
    mean = first / count
    scatter = second - count * mean * mean
    central = third / count - 3 * mean * second / count + 2 * mean**3
    # Raw sums of equal scores leave rounding noise of this order.
    scatter = scatter if scatter > 1e-12 * max(second, 1e-300) else 0.0
    return ScoreMoments.from_central(int(count), mean, scatter, central)


def recent_spread(blocks: Tensor) -> ScoreMoments:
    """Moments of the latest scores: at least half of them and at least fifty, the older blocks left out.

    Args:
        blocks: what :func:`block_sums` returned, summed over batches and processes.
    """
    from_end = blocks.flip(0).cumsum(0)
    total = float(from_end[-1, 0])
    enough = (from_end[:, 0] >= min(total, max(total / 2, _MIN_SPREAD))).nonzero()
    return moments_of_sums(from_end[int(enough[0])])


def predictable_moments(blocks: Tensor) -> ScoreMoments:
    """Moments of all scores that had a witness, each from earlier samples only: the martingale variant.

    Args:
        blocks: what :func:`block_sums` returned, summed over batches and processes.
    """
    return moments_of_sums(blocks[1:].sum(0))


def uniform_prior(num_classes: int, device: torch.device | None = None) -> Tensor:
    """Return the uniform distribution as the only prior, shape ``(1, C)``.

    Args:
        num_classes: number of classes ``C``.
        device: where to put it.
    """
    return torch.full((1, num_classes), 1.0 / num_classes, dtype=torch.float64, device=device)
