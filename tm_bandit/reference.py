"""Statistics of the real data: made once, stored in the file format everybody uses, shared by all arms."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tm_bandit._arguments import check_count, check_number, check_path
from tm_bandit._device import as_float64, check_dense, exact_device
from tm_bandit._statistics import StoredStatistics, read_statistics, write_statistics
from tm_bandit.errors import InputError, warn
from tm_bandit.extractors import NO_EXTRACTOR, Extractor, resolve
from tm_bandit.functional.debias import bias_curve, second_order_noise
from tm_bandit.functional.frechet import clean_eigenvalues, symmetrised
from tm_bandit.functional.frechet_basis import FrechetBasis
from tm_bandit.functional.moments import LARGEST_FEATURE, Moments, add_rows_, covariance, moments_from_rows
from tm_bandit.reference_rows import MOST_ROWS, ReferenceRows, RowCollector

#: How far, relative to the largest entry or eigenvalue, a covariance may be from symmetric and semi-definite.
#: Files in float32 are off by about 1e-7 times the dimension's square root.
_TOLERANCE = 1e-5
#: Images per feature from which on there is no warning: the bias is then about a fortieth of the variance.
_ENOUGH = 10


class ReferenceStatistics:
    r"""Mean :math:`\mu_r` and covariance :math:`\Sigma_r` of the real data's features.

    Immutable, in float64. Everything derived (mainly the eigen-decomposition :math:`\Sigma_r = V \mathrm{diag}(w)
    V^\top`) is computed once, when first needed, and shared by every metric that holds this object: clones of a
    metric share it, and copying it returns the object itself.

    Args:
        mean: shape ``(d,)``.
        covariance: shape ``(d, d)``; symmetric, positive semi-definite up to rounding. A singular one is fine (dead
            features, fewer real images than dimensions).
        num_samples: how many real samples it comes from, if known; without it the moments are taken as exact.
        extractor: name of the feature extractor, if known; metrics refuse a reference of another extractor.
        rows: the samples' own rows or some of them, shape ``(m, d)``, for :class:`~tm_bandit.OptimisticKID`.

    Raises:
        InputError: if shapes do not fit, values are not finite, or the matrix is not a covariance.

    Example:
        >>> import torch
        >>> from tm_bandit import ReferenceStatistics
        >>> reference = ReferenceStatistics(torch.zeros(2), torch.diag(torch.tensor([4.0, 1.0])), num_samples=100)
        >>> reference.num_features, float(reference.trace_root)
        (2, 3.0)
    """

    #: Rows of real samples, if they are kept; fewer than ``num_samples`` if there were too many.
    rows: ReferenceRows | None = None

    def __init__(
        self,
        mean: Tensor | np.ndarray[Any, Any],
        covariance: Tensor | np.ndarray[Any, Any],
        num_samples: int | None = None,
        extractor: str | None = None,
        rows: Tensor | np.ndarray[Any, Any] | ReferenceRows | None = None,
    ) -> None:
        mean, sigma = _float64(mean, "mean"), _float64(covariance, "covariance", LARGEST_FEATURE**2)
        if mean.ndim != 1 or mean.numel() == 0 or sigma.shape != (mean.numel(), mean.numel()):
            shapes = f"{tuple(mean.shape)} and {tuple(sigma.shape)}"
            raise InputError(f"Expected a mean of shape (d,) and a covariance of shape (d, d), but got {shapes}.")
        self.mean = mean.clone()
        self.covariance = _checked_covariance(sigma)
        self.num_samples = None if num_samples is None else check_count("num_samples", num_samples, 2)
        if extractor is not None and not isinstance(extractor, str):
            raise InputError(f"Expected `extractor` to be the name of a network, but got a {type(extractor).__name__}.")
        self.extractor = None if extractor == NO_EXTRACTOR else extractor
        kept = rows if rows is None or isinstance(rows, ReferenceRows) else ReferenceRows(_as_rows(rows))
        if kept is not None and kept.values.shape[1] != mean.numel():
            raise InputError(f"Expected rows of length {mean.numel()}, like the mean, but got {kept.values.shape[1]}.")
        self.rows = kept
        self._elsewhere: dict[torch.device, ReferenceStatistics] = {}

    @classmethod
    def from_features(
        cls,
        features: Tensor | np.ndarray[Any, Any] | Iterable[Tensor],
        extractor: str | None = None,
        keep_rows: bool | int = False,
        seed: int = 0,
    ) -> ReferenceStatistics:
        """Compute the statistics of feature rows, with the ``n - 1`` covariance that all FID tools use.

        Args:
            features: rows of shape ``(n, d)``, or an iterable of such batches.
            extractor: name of the network that made them, if it is to be recorded and checked.
            keep_rows: whether to keep the rows themselves, for :class:`~tm_bandit.OptimisticKID`: ``True`` for at most
                10,000, with a warning if there are more, or another number. If there are more, a random subset is kept;
                ``num_samples`` still counts all.
            seed: seed of that subset.

        Raises:
            InputError: if there are fewer than two rows, or rows are not finite.

        Example:
            >>> import torch
            >>> from tm_bandit import ReferenceStatistics
            >>> ReferenceStatistics.from_features(torch.tensor([[0.0, 1.0], [2.0, 1.0]])).covariance
            tensor([[2., 0.],
                    [0., 0.]], dtype=torch.float64)
        """
        batches = [features] if isinstance(features, (Tensor, np.ndarray)) else _batches("features", features)
        moments: Moments | None = None
        most = MOST_ROWS if keep_rows is True else check_count("keep_rows", 0 if keep_rows is False else keep_rows, 0)
        collector = RowCollector(most, seed) if most else None
        for batch in batches:
            rows = _float64(batch, "features")
            if rows.ndim != 2 or rows.shape[1] == 0 or (moments is not None and rows.shape[1:] != moments.mean.shape):
                width = "d" if moments is None else moments.mean.numel()
                raise InputError(f"Expected features of shape (n, {width}), but got {tuple(rows.shape)}.")
            if rows.shape[0] > 0:
                moments = moments_from_rows(rows) if moments is None else add_rows_(moments, rows)
                if collector is not None:
                    collector.add(torch.as_tensor(batch))
        if moments is None or moments.count < 2:
            count = 0 if moments is None else moments.count
            raise InputError(f"Expected at least two real samples for a reference, but got {count}.")
        if keep_rows is True and moments.count > MOST_ROWS:
            warn(
                f"Kept a random {MOST_ROWS:,} of {moments.count:,} rows (seed {seed}); give keep_rows= as a number to "
                "keep others."
            )
        return cls.from_moments(moments, extractor, None if collector is None else collector.rows())

    @classmethod
    def from_moments(
        cls, moments: Moments, extractor: str | None = None, rows: Tensor | None = None
    ) -> ReferenceStatistics:
        """Turn accumulated moments into statistics.

        Args:
            moments: count, mean and scatter of the real rows.
            extractor: name of the network that made the rows.
            rows: the rows themselves or some of them, if they are to be kept.
        """
        if not isinstance(moments, Moments):
            raise InputError(f"Expected `moments` to be Moments, but got a {type(moments).__name__}.")
        return cls(moments.mean, covariance(moments), moments.count, extractor, rows)

    @classmethod
    def from_images(
        cls,
        loader: Iterable[Any],
        feature: int | str | nn.Module | Callable[[Any], Any] | Extractor = 2048,
        *,
        normalize: bool = False,
        feature_extractor_weights_path: str | os.PathLike[str] | None = None,
        antialias: bool = True,
        keep_rows: bool | int = False,
        seed: int = 0,
    ) -> ReferenceStatistics:
        """Extract features from real images, batch by batch, and compute their statistics.

        Args:
            loader: yields batches of images, or tuples or lists whose first entry is one (images and labels).
            feature: the feature extractor, as in :class:`~tm_bandit.OptimisticFID`.
            normalize: whether images are floats in [0, 1] rather than uint8.
            feature_extractor_weights_path: file with the weights of a named network.
            antialias: whether Inception's resize smooths before it samples.
            keep_rows: as in :meth:`from_features`.
            seed: as in :meth:`from_features`.

        Example:
            >>> import torch
            >>> from tm_bandit import ReferenceStatistics
            >>> loader = [torch.rand(8, 1, 2, 2) for _ in range(3)]
            >>> ReferenceStatistics.from_images(loader, feature=torch.nn.Flatten()).num_samples
            24
        """
        path = feature_extractor_weights_path
        extractor = resolve(feature, weights_path=path, normalize=normalize, antialias=antialias)
        batches = _batches("loader", loader)
        images = (batch[0] if isinstance(batch, (tuple, list)) and batch else batch for batch in batches)
        return cls.from_features(map(extractor, images), extractor.name, keep_rows, seed)

    @classmethod
    def load(cls, path: str | os.PathLike[str], extractor: str | None = None) -> ReferenceStatistics:
        """Read statistics from a ``.npz`` or ``.pt`` file with ``mu`` and ``sigma``, or with rows, ``feats``.

        Files of pytorch-fid, clean-fid (also those for KID) and guided-diffusion (``.npz``) and of torch-fidelity's
        cache (``.pt``) load too; they know neither the number of samples nor the extractor.

        Args:
            path: the file.
            extractor: name of the extractor, for files that do not record it.

        Raises:
            InputError: if there is no such file, or it holds no statistics.
        """
        stored = read_statistics(Path(check_path("path", path)))
        try:
            known = stored.extractor or extractor
            return cls(stored.mean, stored.covariance, stored.num_samples, known, stored.rows)
        except InputError as error:
            raise InputError(f"{error} (in {path})") from error

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the statistics to a file that other FID tools read as well.

        Args:
            path: the file; one that ends in ``.pt`` is for torch-fidelity, else ``.npz`` is appended if it is missing.

        Returns:
            The path that was written.
        """
        target = Path(check_path("path", path))
        if not target.name:
            raise InputError(f"Expected the name of a file, but got {target}.")
        if target.suffix.lower() not in (".npz", ".pt"):
            target = target.with_name(target.name + ".npz")
        mean, sigma = self.mean.cpu().numpy(), self.covariance.cpu().numpy()
        rows = None if self.rows is None else self.rows.values.cpu().numpy()
        write_statistics(target, StoredStatistics(mean, sigma, self.num_samples, self.extractor, rows))
        return target

    @cached_property
    def num_features(self) -> int:
        """Dimension of the features."""
        return self.mean.numel()

    @property
    def eigenvalues(self) -> Tensor:
        """Eigenvalues of the covariance, descending; rounding noise is set to zero."""
        return self._eigen[0]

    @property
    def eigenvectors(self) -> Tensor:
        """Orthonormal eigenvectors as columns, in the order of :attr:`eigenvalues`."""
        return self._eigen[1]

    @cached_property
    def trace(self) -> Tensor:
        """Trace of the covariance."""
        return self.covariance.trace()

    @cached_property
    def trace_root(self) -> Tensor:
        """Trace of the square root of the covariance."""
        return self.eigenvalues.sqrt().sum()

    @cached_property
    def rank(self) -> int:
        """Number of eigenvalues that are not zero."""
        return int((self.eigenvalues > 0).sum())

    @cached_property
    def witness_basis(self) -> FrechetBasis:
        """The reference as witnesses see it: rotation, eigenvalues and scale; warns if it was made from few images."""
        if self.num_samples is not None and self.num_samples < _ENOUGH * self.num_features:
            # Here, because this runs once per reference, whoever made it, and only where distances are judged.
            warn(
                f"The reference has {self.num_samples} images for {self.num_features} features: all distances are too "
                f"large by about {self.bias(self.num_samples):.3g}, which widens the intervals; use "
                f"{_ENOUGH * self.num_features} images or more."
            )
        return FrechetBasis.from_eigen(self.mean, self.eigenvalues, self.eigenvectors)

    def bias(self, num_samples: int) -> float:
        """Return the mean plug-in distance of this many samples from this same Gaussian; the true distance is zero.

        Args:
            num_samples: number of samples; each number is computed once for all arms.
        """
        num_samples = int(check_number("num_samples", check_count("num_samples", num_samples, 1)))
        if num_samples not in self._biases:
            self._biases[num_samples] = bias_curve(self.eigenvalues, num_samples)
        return self._biases[num_samples]

    @cached_property
    def noise(self) -> float:
        """Standard deviation of the plug-in distance of samples from this same Gaussian, times their number."""
        return second_order_noise(self.eigenvalues)

    @cached_property
    def _biases(self) -> dict[int, float]:
        return {}

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.covariance)
        return clean_eigenvalues(values).flip(0).contiguous(), vectors.flip(1).contiguous()

    def to(self, device: torch.device | str) -> ReferenceStatistics:
        """Return the statistics on a device, one copy for all metrics there.

        Args:
            device: where they are needed; devices without float64 get them on the CPU.
        """
        target = self.mean.device if device == self.mean.device else exact_device(device)
        if target == self.mean.device:
            return self
        if target not in self._elsewhere:
            copy = object.__new__(ReferenceStatistics)
            copy.mean, copy.covariance = self.mean.to(target), self.covariance.to(target)
            copy.num_samples, copy.extractor = self.num_samples, self.extractor
            copy.rows = None if self.rows is None else self.rows.to(target)
            copy._elsewhere = {self.mean.device: self}
            self._elsewhere[target] = copy
        return self._elsewhere[target]

    def __copy__(self) -> ReferenceStatistics:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ReferenceStatistics:
        """Return the object itself: it never changes, and twenty arms share one eigen-decomposition."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave derived values out of a pickle."""
        kept = {name: self.__dict__[name] for name in ("mean", "covariance", "num_samples", "extractor", "rows")}
        return {**kept, "_elsewhere": {}}

    def __repr__(self) -> str:
        rows = "" if self.rows is None else f", num_rows={len(self.rows)}"
        return (
            f"{type(self).__name__}(num_features={self.num_features}, num_samples={self.num_samples}, "
            f"extractor={self.extractor!r}{rows})"
        )


def _batches(name: str, value: Any) -> Iterator[Any]:
    try:
        return iter(value)
    except TypeError:
        raise InputError(
            f"Expected `{name}` to yield batches, but got a {type(value).__name__}; give a list or a loader."
        ) from None


def _as_rows(values: Any) -> Tensor:
    """Return rows in their own dtype, or raise."""
    exact = _float64(values, "rows")
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError):  # another byte order, or long doubles
        return exact


def _float64(values: Any, name: str, largest: float = LARGEST_FEATURE) -> Tensor:
    """Return finite numbers as a float64 tensor, or raise."""
    check_dense(values)
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiu":
        values = values.astype(np.float64)  # torch takes neither other byte orders nor long doubles
    try:
        tensor = torch.as_tensor(values)
        if tensor.is_complex():
            raise InputError(f"Expected `{name}` to be real numbers, but got {tensor.dtype}; take the real part first.")
        tensor = as_float64(tensor)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"Expected `{name}` to be a tensor or array, but got a {type(values).__name__}.") from error
    unusable = ~(tensor.abs() <= largest)  # NaN is not below anything
    bad = int(unusable.sum())
    if bad:
        rows = int(unusable.reshape(tensor.shape[0] if tensor.ndim else 1, -1).any(dim=1).sum())
        raise InputError(
            f"Expected `{name}` to be finite, but got {bad} NaN, infinite or absurdly large values in {rows} rows."
        )
    return tensor


def _checked_covariance(sigma: Tensor) -> Tensor:
    """Return the symmetric part of a covariance, or raise if it is not one."""
    largest = float(sigma.abs().max())
    asymmetry = float((sigma - sigma.T).abs().max())
    if asymmetry > _TOLERANCE * largest:
        raise InputError(
            f"Expected a symmetric covariance, but got entries that differ from their mirror image by {asymmetry:.3g} "
            f"(the largest entry is {largest:.3g}); compute it with `ReferenceStatistics.from_features`."
        )
    sigma = symmetrised(sigma)
    # A Cholesky factorisation of the slightly lifted matrix is thirty times cheaper than its eigenvalues.
    lift = _TOLERANCE * float(sigma.diagonal().max().clamp_min(0.0))
    lifted = sigma + lift * torch.eye(sigma.shape[0], dtype=sigma.dtype, device=sigma.device)
    if largest > 0 and int(torch.linalg.cholesky_ex(lifted).info) != 0:
        values = torch.linalg.eigvalsh(sigma)
        least, most = float(values[0]), float(values[-1])
        if least < -_TOLERANCE * max(most, 0.0):
            raise InputError(
                "Expected a positive semi-definite covariance, but got one with an eigenvalue of "
                f"{least:.3g} (the largest is {most:.3g}); compute it with `ReferenceStatistics.from_features`."
            )
    return sigma
