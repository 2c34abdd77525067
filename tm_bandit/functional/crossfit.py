"""Cross-fitting: every row is scored by a witness that was fitted without it, and refits are rare.

The schedule depends on the number of rows alone, not on how they were batched, so a bound is a pure function of the
ordered rows: a restored, resumed or re-batched run gives the same value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, repeat, takewhile
from typing import Literal

import torch
from torch import Tensor

from tm_bandit.functional.witness_fd import (
    Axes,
    FrechetSums,
    FrechetWitness,
    choose_damping,
    damp_witness,
    fit_frechet_map,
)

#: How witnesses are kept independent of what they score: fitted on the other folds, or on earlier rows only.
Fitting = Literal["crossfit", "predictable"]
FITTINGS: tuple[str, ...] = ("crossfit", "predictable")

#: The first fit, and so the fewest rows with which a witness says anything.
MIN_ROWS = 10
#: A witness is fitted anew when the number of rows has grown by this factor.
REFIT_GROWTH = 1.15
#: From here on half as many folds do: the training sets are large enough, and a refit costs half.
MERGE_FOLDS_AT = 500
#: How many training rows the damping looks at.
_DAMPING_ROWS = 128
_FOLDS = 10


@cache
def _schedule(largest: int) -> tuple[int, ...]:
    steps = accumulate(repeat(REFIT_GROWTH), lambda n, g: max(int(n) + 1, int(n * g)), initial=MIN_ROWS)
    return tuple(takewhile(lambda n: n <= largest, steps))


def refit_counts(count: int) -> Sequence[int]:
    """Row counts up to ``count`` at which witnesses are fitted.

    Args:
        count: number of rows.

    Example:
        >>> refit_counts(20)
        (10, 11, 12, 13, 14, 16, 18, 20)
    """
    # A power of two as the cache's key: a run that grows row by row asks for a handful of schedules only.
    schedule = _schedule(1 << max(count, 1).bit_length())
    return schedule[: bisect_right(schedule, count)]


def num_folds(count: int) -> int:
    """Return how many folds a fit on ``count`` rows uses; row ``i`` is in fold ``i`` modulo this number."""
    return _FOLDS if count < MERGE_FOLDS_AT else _FOLDS // 2


def leave_one_out(folds: FrechetSums) -> FrechetSums:
    """For each fold the sums over all the other folds.

    Args:
        folds: sums per fold; the folds are the last of the leading dimensions.
    """
    lead, number = folds.num.shape, folds.num.shape[-1]
    others = 1 - torch.eye(number, dtype=torch.float64, device=folds.num.device)
    # Sums of the others, not total minus own: a wild row would leave its rounding errors in its own fold's witness.
    return FrechetSums(*((others @ part.reshape(*lead, -1)).reshape(part.shape) for part in folds))


def fit_folds(
    training: FrechetSums, axes: Axes, recent: Tensor, fold_of_recent: Tensor, width: float
) -> tuple[FrechetWitness, Tensor]:
    """Fit one damped witness per fold from the rows of the other folds.

    Args:
        training: sums of the training rows per fold, leading dimensions ``(..., K)``.
        axes: the reference.
        recent: the latest rows, ``(..., n, d)``, on which the spread of the scores is measured for the damping.
        fold_of_recent: the fold of each of them, ``(n,)``.
        width: half-width, for scores of variance one, of the confidence sequence that the bound will use.

    Returns:
        The witnesses and their damping factors, both with leading dimensions ``(..., K)``.
    """
    folds = training.num.shape[-1]
    fit = fit_frechet_map(training, axes)
    use = (fold_of_recent != torch.arange(folds, device=recent.device)[:, None]).double()
    damping = choose_damping(fit, recent, use, width)
    return damp_witness(fit, axes, damping), damping


def recent_rows(count: int) -> range:
    """Row numbers that :func:`fit_folds` should get as ``recent`` when it fits on the first ``count`` rows."""
    folds = num_folds(count)
    return range(max(0, count - _DAMPING_ROWS * folds // (folds - 1)), count)
