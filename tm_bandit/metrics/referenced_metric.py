"""What metrics that compare generated and real features share: the reference, checks of rows, uneven ranks."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from tm_bandit._arguments import check_flag
from tm_bandit._device import check_dense
from tm_bandit.errors import InputError
from tm_bandit.extractors import NO_EXTRACTOR, resolve
from tm_bandit.functional.moments import LARGEST_FEATURE, Moments
from tm_bandit.metrics._attributes import state
from tm_bandit.metrics.feature_metric import FeatureMetric
from tm_bandit.metrics.row_log import RowLog, as_list, exact_arithmetic
from tm_bandit.reference import ReferenceStatistics

#: Float dtypes by number, so that ranks can agree on one.
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

R = TypeVar("R", bound="ReferencedMetric")


class ReferencedMetric(FeatureMetric):
    """A metric over generated features and a reference, which is given or made from real samples.

    All states are lists that are concatenated over ranks, so a rank without samples is not a special case.

    Args:
        args: see :class:`~tm_bandit.metrics.feature_metric.FeatureMetric`.
        kwargs: see there.
    """

    #: Rows of generated samples as they came, in their own dtype.
    rows: list[Tensor] = state()

    #: States whose entries are as wide as a row.
    _wide_states: ClassVar[tuple[str, ...]] = ("rows",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._given_reference: ReferenceStatistics | None = None
        for name in (*self.generated_states, *self.real_states):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def _take(self, feature: Any, reference: Any, **options: Any) -> None:
        """Take network and reference; last in the constructor, because they may be slow to load."""
        if reference is not None and not isinstance(reference, ReferenceStatistics):
            if not isinstance(reference, (str, os.PathLike)):
                raise InputError(
                    "Expected `reference` to be ReferenceStatistics or a path to an .npz file, but got a "
                    f"{type(reference).__name__}; use `ReferenceStatistics.from_features` for feature rows."
                )
            reference = ReferenceStatistics.load(reference)
        self._hold(resolve(feature, **options))
        self.use_reference(reference)

    @abstractmethod
    def _make_reference(self) -> ReferenceStatistics:
        """Return the statistics of the real samples so far, or raise ``NotReadyError``."""

    @abstractmethod
    def _layout(self, width: int) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
        """Return shape and dtype of one entry of every state; no dtype for rows, which keep their own."""

    @property
    def reference(self) -> ReferenceStatistics:
        """Statistics of the real data: those given to the constructor, or those of the real samples so far.

        Raises:
            NotReadyError: if there is neither a reference nor two real samples.
        """
        if self._given_reference is not None:
            return self._given_reference.to(self._state_device)
        return self.row_log.derive("reference", self._make_reference)

    def use_reference(self, reference: ReferenceStatistics | None) -> None:
        """Take a reference as if it had been given to the constructor; ``None`` removes it.

        Args:
            reference: statistics of the real data.

        Raises:
            InputError: if the reference belongs to another extractor, or rows were settled with another reference.
        """
        extractor = self.extractor
        if reference is not None and not isinstance(reference, ReferenceStatistics):
            raise InputError(
                f"Expected `reference` to be a ReferenceStatistics, but got a {type(reference).__name__}; load a file "
                "with `ReferenceStatistics.load`."
            )
        if reference is not None and extractor.num_features not in (None, reference.num_features):
            raise InputError(
                f"Expected a reference of dimension {extractor.num_features} for the extractor {extractor.name!r}, but "
                f"got one of dimension {reference.num_features}; make it with the same `feature`."
            )
        recorded = None if reference is None else reference.extractor
        if recorded is not None and extractor.name not in (NO_EXTRACTOR, recorded):
            raise InputError(f"Expected a reference of the extractor {extractor.name!r}, but got one of {recorded!r}.")
        if reference is not self._given_reference:
            self._before_change("reference", reference)
        self._given_reference = reference
        self._computed = None

    @property
    def num_features(self) -> int | None:
        """Dimension of a row, or ``None`` before anything is known about it."""
        if self._given_reference is not None:
            return self._given_reference.num_features
        held = (tensor for name in self._wide_states for tensor in as_list(getattr(self, name)))
        return next((int(tensor.shape[1]) for tensor in held), self.extractor.num_features)

    row_width = num_features

    def _folded(self) -> Moments | None:
        """Return the moments of earlier rows that are no longer kept."""
        return None

    def _open_log(self) -> RowLog:
        return self._log_of_state("rows", self._folded())

    @property
    def num_samples(self) -> int:
        """Number of generated samples so far (on this rank)."""
        return self.row_log.length

    @property
    def _state_device(self) -> torch.device:
        return torch.device("cpu") if self.compute_on_cpu else self.device

    def _move_list_states_to_cpu(self) -> None:
        """Do nothing: with ``compute_on_cpu`` rows are put there as they arrive."""

    def check_rows(self, rows: Tensor, real: bool = False) -> Tensor:
        """Return ``rows`` if they can be used, else raise; touches no state.

        Args:
            rows: features, shape ``(n, d)``.
            real: whether they belong to real samples.

        Raises:
            InputError: if dtype or shape are wrong, or values are not finite.
        """
        if real is not False and check_flag("real", real) and self._given_reference is not None:
            raise InputError("Expected only generated samples with a `reference`, but got real ones; leave it out.")
        if not isinstance(rows, Tensor) or rows.dtype not in _DTYPES:
            check_dense(rows)
            got = f"dtype {rows.dtype}" if isinstance(rows, Tensor) else f"a {type(rows).__name__}"
            raise InputError(f"Expected features as a floating-point tensor, but got {got}; use `.float()` first.")
        if rows.is_nested or rows.is_meta or rows.layout != torch.strided:
            check_dense(rows)
        width = self.num_features
        if rows.ndim != 2 or rows.shape[1] == 0 or (width is not None and rows.shape[1] != width):
            wanted = "d" if width is None else width
            raise InputError(
                f"Expected features of shape (n, {wanted}), but got {tuple(rows.shape)}; reference and samples must "
                "come from the same extractor."
            )
        # In narrow dtypes the limit itself becomes infinite, and infinite values would pass a mere comparison.
        usable = rows.detach().isfinite() & (rows.detach().abs() <= LARGEST_FEATURE)
        bad = rows.shape[0] - int(usable.all(dim=1).sum())
        if bad:
            raise InputError(
                f"Expected finite features, but got {bad} of {rows.shape[0]} rows with NaN, infinite or absurdly large "
                "values; look at the sampler's output (half precision overflows at 65504)."
            )
        return rows

    def add_rows(self, rows: Tensor, real: bool = False) -> None:
        """Add rows, as :meth:`check_rows` returned them, to the states, without further checks.

        Args:
            rows: features, shape ``(n, d)``.
            real: whether they belong to real samples.
        """
        self._refuse_if_synced()
        if rows.shape[0]:
            with exact_arithmetic(self._is_narrow):
                (self._add_real if real else self._add_generated)(rows.detach())

    @abstractmethod
    def _add_generated(self, rows: Tensor) -> None:
        """Add rows of generated samples to the states: a copy, as callers may reuse their buffers."""

    @abstractmethod
    def _add_real(self, rows: Tensor) -> None:
        """Add rows of real samples to the states."""

    def update_features(self, rows: Tensor, real: bool = False) -> None:
        """Add features that were computed elsewhere, of images or of anything else.

        Args:
            rows: features, shape ``(n, d)``.
            real: whether they belong to real samples, which make up the reference.
        """
        self.update_rows(rows, real)

    def reset(self) -> None:
        """Forget all samples; real ones only if ``reset_real_features`` is set."""
        reference = self.row_log.known("reference")
        super().reset()
        if reference is not None and not self.reset_real_features:
            self.row_log.derive("reference", lambda: reference)

    def _share(self: R, template: R) -> None:
        super()._share(template)
        if self._given_reference is None:
            # One reference for all arms, with everything derived from it, instead of one each; none is an error now.
            self.use_reference(template.reference)
            for name in self.real_states:
                setattr(self, name, [])

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        """Let ranks without samples take part: they must send tensors of the others' dtype and width."""
        group = process_group or self.process_group
        free = [name for name, (_, dtype) in self._layout(0).items() if dtype is None]
        mine = {_DTYPES.index(batch.dtype) for name in free for batch in getattr(self, name)}
        layout = [self.num_features or 0, *(int(number in mine) for number in range(len(_DTYPES)))]
        device = self._state_device
        layouts = torch.stack(dist_sync_fn(torch.tensor(layout, device=device), group=group))
        widths = set(layouts[:, 0].tolist()) - {0}
        if len(widths) > 1:
            raise InputError(f"Expected features of one dimension on all ranks, but got {sorted(widths)}.")
        width = max(widths, default=0)
        # A dtype that holds the values of all: two different half precisions make a float32.
        used = [_DTYPES[number] for number in layouts[:, 1:].sum(dim=0).nonzero().flatten().tolist()]
        row_dtype = reduce(torch.promote_types, used or [torch.float32])
        for name, (shape, dtype) in self._layout(width).items():
            held = getattr(self, name)
            if not held:
                setattr(self, name, [torch.empty((0, *shape), dtype=dtype or row_dtype, device=device)])
            elif dtype is None:
                setattr(self, name, [batch.to(row_dtype) for batch in held])
        super()._sync_dist(dist_sync_fn, process_group)
