"""Rows of real samples, for distances that need more than two moments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tm_bandit._arguments import check_count
from tm_bandit._device import check_dense, exact_device, form_of
from tm_bandit.errors import InputError
from tm_bandit.functional.kernels import Kernel, mean_of_pairs, mean_similarity
from tm_bandit.functional.moments import LARGEST_FEATURE

#: Rows that are kept unless a number is given; of more, a random subset: the size of the usual test sets, 82 MB at
#: d = 2048.
MOST_ROWS = 10_000


class ReferenceRows:
    """Rows of real samples: immutable, and shared by every metric that holds this object.

    Args:
        rows: shape ``(m, d)`` with at least two rows; kept in their own dtype.

    Raises:
        InputError: if the shape is wrong, or values are not finite.

    Example:
        >>> from tm_bandit.functional import PolynomialKernel
        >>> rows = ReferenceRows(torch.eye(3))
        >>> len(rows), rows.mean_of_pairs(PolynomialKernel())
        (3, 1.0)
    """

    def __init__(self, rows: Tensor) -> None:
        check_dense(rows)
        if not isinstance(rows, Tensor) or rows.is_complex():
            raise InputError("Expected rows of real samples as a tensor of real numbers, but got something else.")
        values = rows.detach()
        values = values if values.is_floating_point() else values.to(torch.float64)
        if values.ndim != 2 or values.shape[1] == 0 or len(values) < 2:
            raise InputError(f"Expected at least two rows of real samples, of shape (m, d), but got {form_of(rows)}.")
        if not bool((values.isfinite() & (values.abs() <= LARGEST_FEATURE)).all()):
            raise InputError("Expected finite rows of real samples, but got NaN, infinite or absurdly large values.")
        self.values = values.contiguous()
        self._means: dict[Kernel, float] = {}
        self._elsewhere: dict[torch.device, ReferenceRows] = {}

    def __len__(self) -> int:
        return len(self.values)

    def mean_of_pairs(self, kernel: Kernel) -> float:
        """Return the mean kernel value of pairs of different rows; computed once per kernel.

        Args:
            kernel: the kernel.
        """
        if kernel not in self._means:
            self._means[kernel] = mean_of_pairs(self.values, kernel)
        return self._means[kernel]

    def similarity(self, rows: Tensor, kernel: Kernel) -> Tensor:
        """Return the mean kernel value of every given row with all rows of the reference.

        Args:
            rows: shape ``(n, d)``, on the same device.
            kernel: the kernel.
        """
        return mean_similarity(rows, self.values, kernel)

    def to(self, device: torch.device | str) -> ReferenceRows:
        """Return the rows on a device, one copy for all metrics there.

        Args:
            device: where they are needed; devices without float64 get them on the CPU.
        """
        target = self.values.device if device == self.values.device else exact_device(device)
        if target == self.values.device:
            return self
        if target not in self._elsewhere:
            copy = object.__new__(ReferenceRows)
            copy.values, copy._means, copy._elsewhere = self.values.to(target), self._means, {self.values.device: self}
            self._elsewhere[target] = copy
        return self._elsewhere[target]

    def __deepcopy__(self, memo: dict[int, Any]) -> ReferenceRows:
        """Return the object itself: it never changes, and twenty arms share it."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave copies on other devices out of a pickle."""
        return {**self.__dict__, "_elsewhere": {}}


class RowCollector:
    """Keeps the rows of a stream, or a random subset once there are too many.

    Every row draws a random number, and those with the smallest numbers are kept, so the subset depends only on the
    seed and the order of the rows, not on how they were batched.

    Args:
        most: how many rows are kept.
        seed: seed of the choice.

    Example:
        >>> collector = RowCollector(2)
        >>> for value in range(5):
        ...     collector.add(torch.full((1, 3), float(value)))
        >>> collector.rows().shape, collector.seen
        (torch.Size([2, 3]), 5)
    """

    def __init__(self, most: int, seed: int = 0) -> None:
        self.most = most
        self.seen = 0
        self._generator = torch.Generator().manual_seed(check_count("seed", seed, 0) % 2**63)
        self._rows: list[Tensor] = []
        self._numbers: list[Tensor] = []
        self._held = 0

    def add(self, rows: Tensor) -> None:
        """Add rows.

        Args:
            rows: shape ``(n, d)``.
        """
        self.seen += len(rows)
        self._held += len(rows)
        self._rows.append(rows.detach().clone())
        self._numbers.append(torch.rand(len(rows), generator=self._generator, dtype=torch.float64))
        if self._held >= 2 * self.most:
            self._thin()

    def rows(self) -> Tensor:
        """Return the rows that were kept, in their order."""
        if self._held > self.most:
            self._thin()
        return torch.cat(self._rows) if self._rows else torch.zeros(0, 0)

    def _thin(self) -> None:
        numbers, rows = torch.cat(self._numbers), torch.cat(self._rows)
        kept = numbers.argsort()[: self.most].sort().values
        self._rows, self._numbers, self._held = [rows[kept.to(rows.device)]], [numbers[kept]], self.most
