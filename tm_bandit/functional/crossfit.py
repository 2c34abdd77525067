"""Cross-fitting: every row is scored by a witness that was fitted without it, and refits are rare.

The schedule depends on the number of rows alone, not on how they were batched, so a bound is a pure function of the
ordered rows: a restored, resumed or re-batched run gives the same value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, repeat, takewhile
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tm_bandit.functional.witness_fd import (
    Axes,
    FrechetFit,
    FrechetSums,
    FrechetWitness,
    choose_damping,
    damp_witness,
    fit_frechet_map,
    sum_rows,
)

#: How witnesses are kept independent of what they score: fitted on the other folds, or on earlier rows only.
Fitting = Literal["crossfit", "predictable"]
FITTINGS: tuple[str, ...] = ("crossfit", "predictable")

#: The finest division into folds; coarser ones are unions of these. Bounds at 200 rows with 2, 5, 10, 20 folds: 29.7,
#: 29.9, 31.7, 31.9.
FOLDS = 10
#: The first fit, and so the fewest rows for which a witness is informative: one per fold.
MIN_ROWS = FOLDS
#: A witness is refitted when the number of rows has grown by this factor: all refits together cost eight last ones.
REFIT_GROWTH = 1.15
#: From this many rows on a witness changes little, and a refit costs more: the growth that it waits for.
LATE_ROWS, LATE_GROWTH = 200, 1.3
#: From here on half as many folds: a refit costs half. The count itself was not tuned, nor were the two above.
MERGE_FOLDS_AT = 250
#: Training rows that the damping looks at: it needs only their standard deviation, which this many give to a sixteenth.
_DAMPING_ROWS = 128


@cache
def _schedule(largest: int) -> tuple[int, ...]:
    def grown(count: int, _: None) -> int:
        return max(count + 1, int(count * (REFIT_GROWTH if count < LATE_ROWS else LATE_GROWTH)))

    return tuple(takewhile(lambda n: n <= largest, accumulate(repeat(None), grown, initial=MIN_ROWS)))


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
    """Return how many folds a fit on ``count`` rows uses."""
    return FOLDS if count < MERGE_FOLDS_AT else FOLDS // 2


def fold_numbers(start: int, stop: int) -> Tensor:
    """Folds of the rows ``start`` to ``stop``: every ten consecutive rows go to the ten folds in a scrambled order.

    The folds are as even as possible, and a pattern in the order of the samples, such as a cycle of labels, is not a
    pattern in the folds. In a coarser division into ``K`` the fold is this number modulo ``K``.

    Args:
        start: number of the first row.
        stop: one more than the number of the last row.

    Example:
        >>> fold_numbers(0, 20).view(2, 10).sort().values.tolist() == [list(range(10))] * 2
        True
    """
    first = start - start % FOLDS
    # SplitMix64: the same folds on every machine and with every version of numpy and torch.
    key = (np.arange(first, stop + -stop % FOLDS, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        key = (key ^ (key >> np.uint64(shift))) * np.uint64(factor)
    order = (key ^ (key >> np.uint64(31))).reshape(-1, FOLDS).argsort(1, kind="stable")
    return torch.from_numpy(order.argsort(1).ravel()[start - first : stop - first])


class FoldLayout(NamedTuple):
    """Where rows are put so that those of a fold lie together: row ``i`` at ``[fold[i], slot[i]]``.

    Args:
        fold: fold of each row, ``(n,)``.
        slot: its place in the fold, ``(n,)``; some places stay empty.
        shape: number of folds and of places.
    """

    fold: Tensor
    slot: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, start: int, stop: int, folds: int, device: torch.device | None = None) -> FoldLayout:
        """Lay out the rows ``start`` to ``stop`` in a division into ``folds``.

        Args:
            start: number of the first row.
            stop: one more than the number of the last row.
            folds: a divisor of :data:`FOLDS`.
            device: where the indices are needed.
        """
        fine = fold_numbers(start, stop)
        share = FOLDS // folds
        slot = (torch.arange(start, stop) // FOLDS - start // FOLDS) * share + fine // folds
        places = ((stop - 1) // FOLDS - start // FOLDS + 1) * share if stop > start else 0
        return cls((fine % folds).to(device), slot.to(device), (folds, places))

    def empty(self, *lead: int, width: int, like: Tensor) -> Tensor:
        """Return zeros for the rows, shape ``(*lead, folds, places, width)``: an empty place adds nothing to a sum."""
        return like.new_zeros(*lead, *self.shape, width)


def sum_folds(grouped: Tensor, layout: FoldLayout, axes: Axes, block: int) -> FrechetSums:
    """Sums of the rows per fold.

    Args:
        grouped: rotated rows in the layout, ``(..., folds, places, d)``.
        layout: where they are.
        axes: the reference.
        block: number of leading axes in the block.
    """
    count = torch.bincount(layout.fold, minlength=layout.shape[0]).double()
    sums = sum_rows(grouped, axes, block)
    return sums._replace(num=count.expand(sums.num.shape))


def leave_one_out(folds: FrechetSums) -> FrechetSums:
    """Return, for each fold, the sums over all other folds.

    Args:
        folds: sums per fold; the folds are the last of the leading dimensions.
    """
    lead, number = folds.num.shape, folds.num.shape[-1]
    others = 1 - torch.eye(number, dtype=torch.float64, device=folds.num.device)
    # Sums of the others, not total minus own: a wild row would leave its rounding errors in its own fold's witness.
    return FrechetSums(*((others @ part.reshape(*lead, -1)).reshape(part.shape) for part in folds))


def fit_folds(
    training: FrechetSums, axes: Axes, recent: Tensor, fold_of_recent: Tensor, width: float
) -> tuple[FrechetWitness, Tensor, FrechetFit]:
    """Fit one damped witness per fold from the rows of the other folds.

    Args:
        training: sums of the training rows per fold, leading dimensions ``(..., K)``.
        axes: the reference.
        recent: the latest rows, ``(..., n, d)``, on which the spread of the scores is measured for the damping.
        fold_of_recent: the fold of each of them, ``(n,)``.
        width: half-width, for scores of variance one, of the confidence sequence that the bound will use.

    Returns:
        The witnesses, their damping factors and the undamped fits, all with leading dimensions ``(..., K)``.
    """
    folds = training.num.shape[-1]
    fit = fit_frechet_map(training, axes)
    use = (fold_of_recent != torch.arange(folds, device=recent.device)[:, None]).double()
    damping = choose_damping(fit, recent, use, width)
    return damp_witness(fit, axes, damping), damping, fit


def recent_rows(count: int) -> range:
    """Row numbers that :func:`fit_folds` should get as ``recent`` when it fits on the first ``count`` rows."""
    folds = num_folds(count)
    return range(max(0, count - _DAMPING_ROWS * folds // (folds - 1)), count)
