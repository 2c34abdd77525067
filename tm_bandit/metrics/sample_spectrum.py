"""The spectra behind the plug-in Frechet distance and its bonuses, extended by new rows instead of recomputed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext

import torch
from scipy.linalg import blas
from torch import Tensor

from tm_bandit._device import as_float64, one_thread
from tm_bandit.bounds.fd_bounds import CovarianceNorms
from tm_bandit.errors import NotReadyError
from tm_bandit.functional.frechet import centred_gram, largest_eigenvalue, sqrt_trace
from tm_bandit.functional.moments import Moments, add_rows_, merge_moments, moments_from_rows
from tm_bandit.metrics.row_log import RowLog
from tm_bandit.reference import ReferenceStatistics

#: How much larger than necessary a Gram buffer is made: little, because its memory grows with the square.
_GROWTH = 1.125

#: Rows that are converted to float64 at a time, so that no second copy of all rows ever exists.
BLOCK = 1024

#: Up to this many new rows a pull is too little work for more than one thread.
_FEW_ROWS = 64


def shifted(blocks: Iterable[Tensor], center: Tensor) -> Iterator[Tensor]:
    """Yield blocks of rows in float64, minus ``center``.

    Args:
        blocks: of shape ``(b, d)``.
        center: shape ``(d,)``.
    """
    return (as_float64(block) - center for block in blocks)


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
        self.with_plain = plain
        self._buffer = center.new_empty((0, 0))
        self._diagonals = center.new_empty((2, 0))

    def read(self, log: RowLog) -> None:
        """Add the rows that are still missing; only their products with the others and among themselves are computed.

        Args:
            log: the rows, all of them.
        """
        start, stop = self.size, log.kept
        if start == stop:
            return
        fresh = torch.cat(list(shifted(log.blocks(start, stop, BLOCK), self.center)))
        count = stop - start
        self._reserve(stop)
        weighted = _times_symmetric(fresh, self.weight)
        left = torch.cat([weighted, fresh]) if self.with_plain else weighted
        position = 0
        for block in shifted(log.blocks(0, start, BLOCK), self.center):
            end = position + block.shape[0]
            products = left @ block.T
            self._buffer[start:stop, position:end] = products[:count]
            if self.with_plain:
                self._buffer[position:end, start:stop] = products[count:].T
            position = end
        corner = left @ fresh.T
        square = corner[:count].tril()
        self._diagonals[0, start:stop] = square.diagonal()
        if self.with_plain:
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
    """Multiply few rows by a large symmetric matrix: all of a small pull's time goes into reading that matrix once."""
    if rows.device.type == "cpu":
        # scipy's BLAS streams it about twice as fast as torch's for five rows, and the eigenvalue call that follows
        # uses the same threads; numpy's BLAS has threads of its own, which would get in the way.
        return torch.from_numpy(blas.dgemm(1.0, matrix.contiguous().numpy().T, rows.contiguous().numpy().T).T)
    return rows @ matrix


def rotated_moments(reference: ReferenceStatistics, folded: Moments | None, shifted: Iterable[Tensor]) -> Moments:
    r"""Moments in eigen-coordinates of the reference, scaled by the root of its eigenvalues.

    The scatter has the nonzero eigenvalues of :math:`A \Sigma_r`.

    Args:
        reference: statistics of the real data.
        folded: moments of rows that are no longer kept.
        shifted: blocks of the others in float64, minus the reference's mean; there may be none if there are moments.
    """
    found = None
    if folded is not None:
        half = _rotate(reference, folded.scatter)
        found = Moments(folded.count, _rotate(reference, folded.mean - reference.mean), _rotate(reference, half.T))
    return _add_rotated(reference, found, shifted)


def _add_rotated(reference: ReferenceStatistics, found: Moments | None, shifted: Iterable[Tensor]) -> Moments:
    for block in shifted:
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

    It reads one log, which it does not hold, and outlives a fold of rows that it has read.

    Args:
        reference: statistics of the real data.
    """

    def __init__(self, reference: ReferenceStatistics) -> None:
        self.reference = reference
        self._forget()

    def _forget(self) -> None:
        self.count = 0
        self.trace = self.reference.mean.new_zeros(())
        self.mean = torch.zeros_like(self.reference.mean)
        self._gram: GramPair | None = None
        self._rotated: Moments | None = None
        # Shifted rows that the rotated moments lack.
        self._waiting: list[Tensor] = []
        self._drop_results()

    def _drop_results(self) -> None:
        self._root_trace: Tensor | None = None
        self._norms: tuple[float, float] | None = None

    def read(self, log: RowLog) -> None:
        """Catch up with the log; call this before asking for anything.

        Args:
            log: the rows.
        """
        if self.count == log.length:
            return
        if log.folded is not None and self.count < log.gone:
            self._forget()
            self._count_in(Moments(log.gone, log.folded.mean, log.folded.scatter.trace()))
        self._drop_results()
        with one_thread() if log.length - self.count <= _FEW_ROWS else nullcontext():
            self._add(log)

    def _add(self, log: RowLog) -> None:
        for block in shifted(log.blocks(self.count - log.gone, log.kept, BLOCK), self.reference.mean):
            mean = block.mean(dim=0)
            self._count_in(Moments(block.shape[0], mean + self.reference.mean, (block - mean).square().sum()))
            if self._rotated is not None:
                self._waiting.append(block)
        if log.gone or log.length > self.reference.num_features:
            self._gram = None
        else:
            self._gram = self._gram or GramPair(self.reference.mean, self.reference.covariance, plain=False)
            self._gram.read(log)

    def prepare_fold(self, log: RowLog) -> None:
        """Prepare for all rows to live on as moments only: read them now, unless it is cheaper to start over later.

        Args:
            log: the rows, before the fold.
        """
        late = sum(block.shape[0] for block in self._waiting) > self.reference.num_features
        if self._rotated is None or late or self.count < log.gone:
            self._forget()
        else:
            self.read(log)

    @property
    def mean_gap_squared(self) -> Tensor:
        """Squared distance between the rows' mean and the reference's."""
        return (self.mean - self.reference.mean).square().sum()

    def root_trace(self, log: RowLog) -> Tensor:
        """Return the trace of the square root of scatter times reference covariance.

        Args:
            log: the rows.
        """
        if self._root_trace is None:
            if self._gram is not None:
                with one_thread():
                    self._root_trace = sqrt_trace(self._gram.weighted, zero_directions=1)
            else:
                self._root_trace = sqrt_trace(self._rotated_scatter(log))
        return self._root_trace

    def norms(self, log: RowLog, divisor: int) -> CovarianceNorms:
        """Return the norms of the covariance with a given divisor.

        Args:
            log: the rows.
            divisor: ``n`` or ``n - 1``.
        """
        if self._norms is None:
            # The nonzero eigenvalues of a scatter matrix and of the Gram matrix of the centred rows are the same.
            with one_thread() if self._gram is not None else nullcontext():
                matrix = self._plain_gram(log) if self._gram is not None else self.scatter(log)
                self._norms = float(torch.linalg.matrix_norm(matrix)), max(largest_eigenvalue(matrix), 0.0)
        frobenius, spectral = self._norms
        return CovarianceNorms(float(self.trace) / divisor, frobenius / divisor, spectral / divisor)

    def scatter(self, log: RowLog) -> Tensor:
        """Return the full scatter matrix, shape ``(d, d)``.

        Args:
            log: the rows.
        """
        parts = [] if log.folded is None else [log.folded]
        parts += [moments_from_rows(rows) for rows in log.blocks(0, log.kept, max(log.kept, 1))]
        return merge_moments(*parts).scatter

    def _plain_gram(self, log: RowLog) -> Tensor:
        if self._gram is None or not self._gram.with_plain:
            # Once norms have been asked for, the plain products are made along with the weighted ones.
            self._gram = GramPair(self.reference.mean, self.reference.covariance, plain=True)
            self._gram.read(log)
        return self._gram.plain

    def _count_in(self, part: Moments) -> None:
        """Merge count, mean and trace (the scatter field of ``part`` holds just its trace)."""
        count = self.count + part.count
        delta = part.mean - self.mean
        self.trace = self.trace + part.scatter + delta.square().sum() * (self.count * part.count / count)
        self.mean = self.mean + delta * (part.count / count)
        self.count = count

    def _rotated_scatter(self, log: RowLog) -> Tensor:
        if self._rotated is None:
            rows = shifted(log.blocks(0, log.kept, BLOCK), self.reference.mean)
            self._rotated = rotated_moments(self.reference, log.folded, rows)
        else:
            self._rotated = _add_rotated(self.reference, self._rotated, self._waiting)
        self._waiting = []
        return self._rotated.scatter
