"""The rows that a metric keeps, and the one place where anything derived from them is remembered."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from tm_bandit.functional.moments import Moments

T = TypeVar("T")

_epochs = itertools.count(1)


class RowLog:
    """A history of samples that only grows, until it is rewritten.

    What was derived from a history holds as long as its :attr:`key` does: the ``epoch`` changes when rows are taken
    away or replaced, the ``length`` when some are added. Something that can be extended remembers how far it has read
    and goes on from there while the epoch is the same. Settings that it depends on belong into its key as well.

    A metric whose states are assigned anew (reset, load, sync, merge) opens another log: all that was derived is gone.

    Args:
        batches: rows that are kept, in order; the list itself is kept and grows with the log.
        folded: moments of earlier rows that are no longer kept.
    """

    def __init__(self, batches: list[Tensor] | None = None, folded: Moments | None = None) -> None:
        self.epoch = next(_epochs)
        #: Names of states whose tensors were made here and may be overwritten; others may belong to somebody else too.
        self.owned: set[str] = set()
        self._derived: dict[str, tuple[Any, Any]] = {}
        self._restart([] if batches is None else batches, folded)

    def _restart(self, batches: list[Tensor], folded: Moments | None) -> None:
        self.batches, self.folded = batches, folded
        self._starts = [0, *itertools.accumulate(len(batch) for batch in batches)]
        #: Number of rows that are kept, of those that were folded into moments, and of all.
        self.kept = self._starts.pop()
        self.gone = 0 if folded is None else folded.count
        self.length = self.gone + self.kept

    @property
    def key(self) -> tuple[int, int]:
        """What tells this history from every other one."""
        return self.epoch, self.length

    def append(self, rows: Tensor) -> None:
        """Add rows; they are not copied, so they must not change any more.

        Args:
            rows: shape ``(n, d)``.
        """
        if len(rows):
            self._starts.append(self.kept)
            self.batches.append(rows)
            self.kept += len(rows)
            self.length += len(rows)

    def fold(self, count: int, folded: Moments) -> None:
        """Let go of the oldest rows.

        Args:
            count: how many of them.
            folded: moments of all rows that are gone now.
        """
        left = list(self.blocks(count, self.kept, self.kept))
        self.epoch = next(_epochs)
        # A slice would keep all of its storage alive.
        self._restart([rows.clone() for rows in left], folded)

    def prefix(self, count: int) -> RowLog:
        """Return a log of the first kept rows only.

        Args:
            count: how many of them.
        """
        return RowLog(list(self.blocks(0, count, count)), self.folded)

    def blocks(self, start: int, stop: int, most: int) -> Iterator[Tensor]:
        """Yield kept rows in order, small batches put together and large ones cut.

        Args:
            start: number of the first row, among those that are kept.
            stop: one more than the number of the last row.
            most: how many rows a block may have.
        """
        waiting: list[Tensor] = []
        held = 0
        first = bisect_right(self._starts, start) - 1 if start < stop else 0
        last = bisect_right(self._starts, stop - 1) if start < stop else 0
        for number in range(first, last):
            begin = self._starts[number]
            for piece in torch.split(self.batches[number][max(start - begin, 0) : stop - begin], most):
                if held and held + len(piece) > most:
                    yield torch.cat(waiting)
                    waiting, held = [], 0
                waiting.append(piece)
                held += len(piece)
        if held:
            yield waiting[0] if len(waiting) == 1 else torch.cat(waiting)

    def derive(self, name: str, make: Callable[[], T], *key: Any) -> T:
        """Return what was derived under this key, or derive it; one value is remembered per name.

        Args:
            name: what it is.
            make: derives it.
            key: everything that it depends on: :attr:`key` or the epoch alone, and settings.
        """
        known = self._derived.get(name)
        if known is None or known[0] != key:
            known = self._derived[name] = (key, make())
        value: T = known[1]
        return value

    def known(self, name: str) -> Any:
        """Return what was derived under this name last, or ``None``."""
        return self._derived.get(name, (None, None))[1]

    def forget(self, name: str) -> None:
        """Derive it anew next time."""
        self._derived.pop(name, None)
