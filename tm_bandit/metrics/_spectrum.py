"""The spectra behind the plug-in Frechet distance and its bonuses, extended by new rows instead of recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch
from scipy.linalg import blas
from torch import Tensor

from tm_bandit._device import as_float64, one_thread
from tm_bandit.errors import NotReadyError
from tm_bandit.functional.fd_bounds import CovarianceNorms
from tm_bandit.functional.frechet import centred_gram, largest_eigenvalue, sqrt_trace
from tm_bandit.functional.moments import Moments, add_rows_, merge_moments, moments_from_rows
from tm_bandit.reference import ReferenceStatistics

#: How much larger a Gram buffer is made than it must be: little, because its memory grows with the square.
_GROWTH = 1.125

#: Rows that are converted to float64 at a time, so that no second copy of all rows ever exists.
_BLOCK = 1024

#: Up to this many new rows a pull is too little work for more than one thread.
_FEW_ROWS = 64


def shifted_blocks(rows: Sequence[Tensor], center: Tensor) -> Iterator[Tensor]:
    """Yield rows in float64, minus ``center``, in blocks of about a thousand.

    Args:
        rows: batches of shape ``(b, d)``.
        center: shape ``(d,)``.
    """
    waiting: list[Tensor] = []
    count = 0
    for batch in rows:
        for piece in torch.split(batch, _BLOCK):
            if waiting and count + piece.shape[0] > _BLOCK:
                yield as_float64(torch.cat(waiting)) - center
                waiting, count = [], 0
            waiting.append(piece)
            count += piece.shape[0]
    if waiting:
        yield as_float64(torch.cat(waiting)) - center


class GramPair:
    r"""Growing Gram matrices :math:`X \Sigma_r X^\top` and, if asked for, :math:`X X^\top` of shifted rows.

    Both are symmetric, so they share one square buffer: the weighted one below the diagonal, the plain one above.

    Args:
        center: what rows are shifted by, shape ``(d,)``.
        weight: the covariance in the weighted product, shape ``(d, d)``.
        plain: whether the unweighted matrix is needed as well.
    """

    def __init__(self, center: Tensor, weight: Tensor, plain: bool) -> None:
        self.center = center
        self.weight = weight
        self.size = 0
        self._with_plain = plain
        self._buffer = center.new_empty((0, 0))
        self._diagonals = center.new_empty((2, 0))

    def extend(self, old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
        """Add the rows ``new``; only their products with ``old`` and among themselves are computed.

        Args:
            old: all rows that are in already, in order.
            new: what follows.
        """
        fresh = torch.cat(list(shifted_blocks(new, self.center)))
        count, start = fresh.shape[0], self.size
        stop = start + count
        self._reserve(stop)
        weighted = _times_symmetric(fresh, self.weight)
        left = torch.cat([weighted, fresh]) if self._with_plain else weighted
        position = 0
        for block in shifted_blocks(old, self.center):
            end = position + block.shape[0]
            products = left @ block.T
            self._buffer[start:stop, position:end] = products[:count]
            if self._with_plain:
                self._buffer[position:end, start:stop] = products[count:].T
            position = end
        corner = left @ fresh.T
        square = corner[:count].tril()
        self._diagonals[0, start:stop] = square.diagonal()
        if self._with_plain:
            square += corner[count:].triu(1)
            self._diagonals[1, start:stop] = corner[count:].diagonal()
        self._buffer[start:stop, start:stop] = square
        self.size = stop

    @property
    def weighted(self) -> Tensor:
        """Centred weighted Gram matrix, shape ``(n, n)``."""
        return self._unpack(self._buffer[: self.size, : self.size].tril(-1), self._diagonals[0, : self.size])

    @property
    def plain(self) -> Tensor:
        """Centred Gram matrix, shape ``(n, n)``."""
        return self._unpack(self._buffer[: self.size, : self.size].triu(1), self._diagonals[1, : self.size])

    @staticmethod
    def _unpack(triangle: Tensor, diagonal: Tensor) -> Tensor:
        full = triangle + triangle.T
        full.diagonal().copy_(diagonal)
        return centred_gram(full)

    def _reserve(self, size: int) -> None:
        if size <= self._buffer.shape[0]:
            return
        # There are never more rows here than dimensions.
        capacity = max(size, min(int(size * _GROWTH), self.center.numel()))
        buffer = self._buffer.new_empty((capacity, capacity))
        buffer[: self.size, : self.size] = self._buffer[: self.size, : self.size]
        diagonals = self._diagonals.new_empty((2, capacity))
        diagonals[:, : self.size] = self._diagonals[:, : self.size]
        self._buffer, self._diagonals = buffer, diagonals


def _times_symmetric(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply few rows by a large symmetric matrix: all of a small pull's time is reading that matrix once."""
    if rows.device.type == "cpu":
        # scipy's BLAS streams it about twice as fast as torch's for five rows, and the eigenvalue call that follows
        # uses the same threads; numpy's BLAS has threads of its own, which would be in the way.
        return torch.from_numpy(blas.dgemm(1.0, matrix.contiguous().numpy().T, rows.contiguous().numpy().T).T)
    return rows @ matrix


def rotated_moments(reference: ReferenceStatistics, folded: Moments | None, rows: Sequence[Tensor]) -> Moments:
    r"""Moments in eigen-coordinates of the reference, scaled by the root of its eigenvalues.

    The scatter has the nonzero eigenvalues of :math:`A \Sigma_r`.

    Args:
        reference: statistics of the real data.
        folded: moments of rows that are no longer kept.
        rows: batches that are kept, in order.

    Raises:
        NotReadyError: if there are neither moments nor rows.
    """
    found: Moments | None = None
    if folded is not None:
        half = _rotate(reference, folded.scatter)
        found = Moments(folded.count, _rotate(reference, folded.mean - reference.mean), _rotate(reference, half.T))
    for block in shifted_blocks(rows, reference.mean):
        rotated = _rotate(reference, block)
        found = moments_from_rows(rotated) if found is None else add_rows_(found, rotated)
    if found is None:
        raise NotReadyError("Expected samples before their spectrum is asked for, but got none.")
    return found


def _rotate(reference: ReferenceStatistics, rows: Tensor) -> Tensor:
    rank = reference.rank
    return (rows @ reference.eigenvectors[:, :rank]) * reference.eigenvalues[:rank].sqrt()


class SampleSpectrum:
    r"""Everything that the plug-in distance and the bonuses need to know about one arm's rows.

    With scatter :math:`A = \sum_i (x_i - \bar x)(x_i - \bar x)^\top` (the covariance times ``n`` or ``n - 1``):
    the distance of the means, :math:`\mathrm{Tr} A`, :math:`\mathrm{Tr} (A \Sigma_r)^{1/2}`, :math:`\|A\|_F` and
    :math:`\|A\|_2`. While there are no more rows than dimensions all of it comes from Gram matrices of size ``n``;
    afterwards from the scatter, rotated into the reference's eigenbasis.

    It is a cache: :meth:`read` compares what it has seen with what there is, goes on from there, or starts anew.

    Args:
        reference: statistics of the real data.
        norms: whether :meth:`norms` will be asked for.
    """

    def __init__(self, reference: ReferenceStatistics, norms: bool) -> None:
        self.reference = reference
        self._with_norms = norms
        self._forget()

    def _forget(self) -> None:
        self.count = 0
        self.trace = self.reference.mean.new_zeros(())
        self.mean = torch.zeros_like(self.reference.mean)
        self._rows: list[Tensor] = []
        self._folded: Moments | None = None
        self._gram: GramPair | None = None
        self._rotated: Moments | None = None
        self._waiting: list[Tensor] = []
        self._drop_results()

    def _drop_results(self) -> None:
        self._root_trace: Tensor | None = None
        self._norms: tuple[float, float] | None = None

    def read(self, folded: Moments | None, rows: Sequence[Tensor]) -> None:
        """Catch up with the metric's states.

        Args:
            folded: moments of rows that are no longer kept.
            rows: batches that are kept, in order.
        """
        if not self._continues(folded, rows):
            self._forget()
            if folded is not None:
                self._folded = folded
                self._count_in(Moments(folded.count, folded.mean, folded.scatter.trace()))
        new = list(rows[len(self._rows) :])
        if not new:
            return
        self._drop_results()
        with one_thread() if sum(batch.shape[0] for batch in new) <= _FEW_ROWS else nullcontext():
            self._add(new)

    def _add(self, new: list[Tensor]) -> None:
        old = list(self._rows)
        for block in shifted_blocks(new, self.reference.mean):
            mean = block.mean(dim=0)
            self._count_in(Moments(block.shape[0], mean + self.reference.mean, (block - mean).square().sum()))
        self._rows.extend(new)
        if self._uses_gram:
            if self._gram is None:
                self._gram = GramPair(self.reference.mean, self.reference.covariance, self._with_norms)
            self._gram.extend(old, new)
        elif self._rotated is not None:
            self._waiting.extend(new)
        else:
            self._gram = None

    def fold(self, before: Moments | None, rows: Sequence[Tensor], after: Moments) -> None:
        """Hear that all rows now live on in moments alone.

        Args:
            before: moments until now; their scatter matrix may have been overwritten.
            rows: batches that were kept until now, those that were never read included.
            after: moments of everything.
        """
        late = sum(batch.shape[0] for batch in self._waiting) > self.reference.num_features
        if self._rotated is None or late or not self._continues(before, rows):
            self._forget()
            return
        self.read(before, rows)
        self._rows, self._folded = [], after

    @property
    def mean_gap_squared(self) -> Tensor:
        """Squared distance between the rows' mean and the reference's."""
        return (self.mean - self.reference.mean).square().sum()

    @property
    def root_trace(self) -> Tensor:
        """Trace of the square root of scatter times reference covariance."""
        if self._root_trace is None:
            if self._gram is not None:
                with one_thread():
                    self._root_trace = sqrt_trace(self._gram.weighted, zero_directions=1)
            else:
                self._root_trace = sqrt_trace(self._rotated_scatter())
        return self._root_trace

    def norms(self, divisor: int) -> CovarianceNorms:
        """Return the norms of the covariance with a given divisor.

        Args:
            divisor: ``n`` or ``n - 1``.
        """
        if self._norms is None:
            # The nonzero eigenvalues of a scatter matrix and of the Gram matrix of the centred rows are the same.
            gram = self._gram if self._with_norms else None
            with one_thread() if gram is not None else nullcontext():
                matrix = gram.plain if gram is not None else self.scatter()
                self._norms = float(torch.linalg.matrix_norm(matrix)), max(largest_eigenvalue(matrix), 0.0)
        frobenius, spectral = self._norms
        return CovarianceNorms(float(self.trace) / divisor, frobenius / divisor, spectral / divisor)

    def scatter(self) -> Tensor:
        """Return the full scatter matrix, shape ``(d, d)``."""
        parts = [moments_from_rows(torch.cat(self._rows))] if self._rows else []
        if self._folded is not None:
            return merge_moments(self._folded, *parts).scatter
        return parts[0].scatter

    @property
    def _uses_gram(self) -> bool:
        return self._folded is None and self.count <= self.reference.num_features

    def _continues(self, folded: Moments | None, rows: Sequence[Tensor]) -> bool:
        """Whether the states begin with exactly what was read; in-place folds change the count."""
        if (folded is None) != (self._folded is None):
            return False
        if folded is not None and self._folded is not None:
            same = folded.scatter.data_ptr() == self._folded.scatter.data_ptr() and folded.count == self._folded.count
            if not same:
                return False
        known = rows[: len(self._rows)]
        return len(known) == len(self._rows) and all(a is b for a, b in zip(self._rows, known, strict=True))

    def _count_in(self, part: Moments) -> None:
        """Merge count, mean and trace (the scatter field of ``part`` holds just its trace)."""
        count = self.count + part.count
        delta = part.mean - self.mean
        self.trace = self.trace + part.scatter + delta.square().sum() * (self.count * part.count / count)
        self.mean = self.mean + delta * (part.count / count)
        self.count = count

    def _rotated_scatter(self) -> Tensor:
        if self._rotated is None:
            self._rotated = rotated_moments(self.reference, self._folded, self._rows)
        else:
            for block in shifted_blocks(self._waiting, self.reference.mean):
                self._rotated = add_rows_(self._rotated, _rotate(self.reference, block))
        self._waiting = []
        return self._rotated.scatter
