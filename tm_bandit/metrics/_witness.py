"""Witness bounds of a metric over feature rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.functional.confidence import WIDTHS, WidthKind, deviation
from tm_bandit.functional.crossfit import FITTINGS, Fitting
from tm_bandit.functional.frechet_stream import FrechetStream, WitnessSummary, upper_bound
from tm_bandit.functional.moments import Moments
from tm_bandit.metrics._rows import RowMetric, as_list
from tm_bandit.reference import ReferenceStatistics

#: Rows are settled in multiples of this, which keeps the folds of the others as they were.
_FOLD_UNIT = 10


class WitnessCache:
    """Follows the states of one metric; it goes on from what it has read, or starts anew.

    Args:
        reference: statistics of the real data.
        alpha: level of the one-sided bound.
        width: its confidence sequence.
        fitting: how witnesses are kept independent of the rows they score.
    """

    def __init__(self, reference: ReferenceStatistics, alpha: float, width: WidthKind, fitting: Fitting) -> None:
        self.reference = reference
        self.alpha = alpha
        self.width = width
        self.fitting = fitting
        self._folded = 0
        self._rows: list[Tensor] = []
        self._stream: FrechetStream | None = None
        self._summary: WitnessSummary | None = None

    def summary(self, folded: Moments | None, settled: Sequence[Tensor], rows: Sequence[Tensor]) -> WitnessSummary:
        """Return what the witness says about the metric's states; one look asks for it several times.

        Args:
            folded: see :meth:`read`.
            settled: see :meth:`read`.
            rows: see :meth:`read`.
        """
        stream = self.read(folded, settled, rows)
        if self._summary is None:
            self._summary = stream.summary()
        return self._summary

    def read(self, folded: Moments | None, settled: Sequence[Tensor], rows: Sequence[Tensor]) -> FrechetStream:
        """Catch up with the metric's states.

        Args:
            folded: moments of rows that are no longer kept.
            settled: batches of their scores.
            rows: batches that are kept, in order.
        """
        gone = 0 if folded is None else folded.count
        stream = self._stream
        known = len(self._rows)
        follows = len(rows) >= known and all(mine is theirs for mine, theirs in zip(self._rows, rows, strict=False))
        if stream is None or gone != self._folded or not follows:
            stream = self._stream = FrechetStream(
                self.reference.witness_basis,
                alpha=self.alpha,
                width=self.width,
                fitting=self.fitting,
                settled=folded,
                settled_scores=torch.cat(list(settled)) if settled else None,
            )
            self._folded, self._rows, known = gone, [], 0
            self._summary = None
        for batch in rows[known:]:
            stream.extend(batch)
            self._rows.append(batch)
            self._summary = None
        return stream


class WitnessRowMetric(RowMetric):
    """A row metric with witness bounds: an interval of which the optimistic end is cheap and the other one is not.

    Args:
        width: confidence sequence of the interval.
        fitting: how witnesses are kept independent of the rows they score.
        max_rows: how many rows may be kept; beyond that the older half is settled.
        args: see the base class.
        kwargs: see the base class.
    """

    generated_states: tuple[str, ...] = (*RowMetric.generated_states, "settled")

    bound: str
    settled: list[Tensor]

    def __init__(self, *args: Any, width: WidthKind, fitting: Fitting, max_rows: int | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if width not in WIDTHS:
            raise InputError(f"Expected `width` to be one of {WIDTHS}, but got {width!r}.")
        if fitting not in FITTINGS:
            raise InputError(f"Expected `fitting` to be one of {FITTINGS}, but got {fitting!r}.")
        self.width = width
        self.fitting = fitting
        self.max_rows = max_rows

    @abstractmethod
    def _plug_in(self, unbiased: bool) -> float:
        """Return the plug-in estimate, with ``n - 1`` or ``n`` in the covariance."""

    def _ready_reference(self) -> ReferenceStatistics:
        """Return the reference if there is one, samples are enough and both fit together; else raise."""
        reference = self.reference
        if self.num_samples < 2:
            raise NotReadyError(f"Expected at least two generated samples, but got {self.num_samples}; add more.")
        if reference.num_features != self.num_features:
            raise InputError(
                f"Expected samples of the reference's dimension {reference.num_features}, but got {self.num_features}."
            )
        return reference

    def _witness_cache(self) -> WitnessCache:
        reference = self._ready_reference()
        cache: WitnessCache | None = self._caches.get("witness")
        if cache is None or cache.reference is not reference:
            cache = self._caches["witness"] = WitnessCache(reference, self._side_level, self.width, self.fitting)
        return cache

    def _witness_summary(self) -> WitnessSummary:
        return self._witness_cache().summary(self._folded(), as_list(self.settled), self._kept_rows())

    @property
    def _side_level(self) -> float:
        """Failure probability of one end of the interval: both together have ``delta``."""
        return self._level / 2

    def _witness_lower(self) -> float:
        """Return the optimistic end; a squared distance is never negative, so zero is the vacuous bound."""
        scores = self._witness_summary().scores
        return max(0.0, scores.mean - deviation(scores, self._side_level, upper=False, kind=self.width))

    def _witness_upper(self) -> float:
        """Return the pessimistic end: the plug-in, which is too large on average, plus its own width."""
        return upper_bound(self._plug_in(unbiased=False), self._witness_summary(), self._side_level, self.width)

    def _witness_mean(self) -> tuple[float, float]:
        """Return the mean of the witness scores and its standard error, infinite while there is no witness."""
        scores = self._witness_summary().scores
        return scores.mean, scores.stderr

    def _settle_rows(self) -> None:
        """Settle the older half of the rows whenever ``max_rows`` of them are kept.

        It happens at fixed row counts, so values do not depend on how rows were batched. Without a reference from the
        constructor nothing is settled: a score under a reference that is still growing would soon be worthless.
        """
        if self._given_reference is None:
            return
        dim = self._given_reference.num_features
        half = max((self.max_rows or max(4 * dim, 4096)) // (2 * _FOLD_UNIT), 1) * _FOLD_UNIT
        while sum(batch.shape[0] for batch in self.rows) >= 2 * half:
            full = self._split_rows(2 * half)
            stream = self._witness_cache().read(self._folded(), self.settled, self.rows[:full])
            scores = stream.scores()
            self.settled.append(scores[: max(len(scores) - half, 0)].clone())
            self._fold_oldest(self._split_rows(half))

    def _split_rows(self, count: int) -> int:
        """Cut a batch, if need be, so that a number of whole batches makes up ``count`` rows; return that number."""
        total = 0
        for number, batch in enumerate(self.rows):
            if total == count:
                return number
            inside = count - total
            total += batch.shape[0]
            if total > count:
                self.rows[number : number + 1] = [batch[:inside].clone(), batch[inside:].clone()]
                total = count
        return len(self.rows)
