"""The states of a metric over feature rows: what is kept, what is folded into moments, how ranks exchange it."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.functional.moments import LARGEST_FEATURE, Moments, add_rows_, merge_moments, moments_from_rows
from tm_bandit.metrics._network import FeatureNetworkMixin
from tm_bandit.metrics.base import OptimisticMetric, exact_arithmetic
from tm_bandit.reference import ReferenceStatistics

#: Float dtypes by number, so that ranks can agree on one.
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class RowMetric(FeatureNetworkMixin, OptimisticMetric):
    """Keeps rows as they came (in their own dtype) or folds them into centred float64 moments.

    All states are lists that are concatenated over ranks, so a rank without samples is no special case and moments of
    ranks are merged exactly. A reference that was given to the constructor is no state: every rank has it already.
    """

    generated_states: tuple[str, ...] = ("rows", "moment_count", "moment_mean", "moment_scatter")
    real_states = ("real_count", "real_mean", "real_scatter")

    rows: list[Tensor]
    moment_count: list[Tensor]
    moment_mean: list[Tensor]
    moment_scatter: list[Tensor]
    real_count: list[Tensor]
    real_mean: list[Tensor]
    real_scatter: list[Tensor]

    def __init__(self, reference: ReferenceStatistics | None, reset_real_features: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._given_reference = reference
        self.reset_real_features = reset_real_features
        for name in (*self.generated_states, *self.real_states):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    @property
    def num_samples(self) -> int:
        """Number of generated samples so far (on this rank)."""
        folded = sum(int(count.sum()) for count in as_list(self.moment_count))
        return folded + sum(batch.shape[0] for batch in as_list(self.rows))

    @property
    def num_features(self) -> int | None:
        """Dimension of a row, or ``None`` before anything is known about it."""
        if self._given_reference is not None:
            return self._given_reference.num_features
        for state in (self.rows, self.moment_mean, self.real_mean):
            for tensor in as_list(state):
                return int(tensor.shape[1])
        return self._extractor.num_features

    @property
    def reference(self) -> ReferenceStatistics:
        """Statistics of the real data: those given to the constructor, or those of the real samples so far.

        Raises:
            NotReadyError: if there is neither a reference nor two real samples.
        """
        if self._given_reference is not None:
            return self._given_reference.to(self._state_device)
        real = self._moments(self.real_count, self.real_mean, self.real_scatter)
        if real is None or real.count < 2:
            raise NotReadyError(
                f"Expected at least two real samples, but got {0 if real is None else real.count}; give `reference=` "
                "to the constructor or feed real samples with `update(images, real=True)`."
            )
        key = (real.scatter.data_ptr(), real.count)
        cached: tuple[tuple[int, int], Tensor, ReferenceStatistics] | None = self._caches.get("reference")
        if cached is None or cached[0] != key:
            # The tensor is kept too: as long as it lives, no other one can have its address.
            cached = (key, real.scatter, ReferenceStatistics.from_moments(real, self._extractor.name))
            self._caches["reference"] = cached
        return cached[2]

    @property
    def _state_device(self) -> torch.device:
        return torch.device("cpu") if self.compute_on_cpu else self.device

    def extract(self, inputs: Any) -> Tensor:
        """Turn a batch of samples into feature rows; touches no state."""
        return self._extract_rows(inputs)

    def check_rows(self, rows: Tensor, real: bool = False) -> Tensor:
        """Return ``rows`` if they can be used, else raise; touches no state.

        Args:
            rows: features, shape ``(n, d)``.
            real: whether they belong to real samples.

        Raises:
            InputError: if dtype or shape are wrong, or values are not finite.
        """
        if real and self._given_reference is not None:
            raise InputError(
                "Expected generated samples only, because the metric was given a `reference`, but got real ones; leave "
                "`reference` out to build it from real samples."
            )
        if not isinstance(rows, Tensor) or not rows.is_floating_point():
            got = f"dtype {rows.dtype}" if isinstance(rows, Tensor) else f"a {type(rows).__name__}"
            raise InputError(
                f"Expected features as a floating-point tensor, but got {got}; convert them with `.float()`."
            )
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

    def update(self, imgs: Any, real: bool = False) -> None:
        """Add a batch of samples.

        Args:
            imgs: what the feature extractor takes: images, or whatever a module or callable understands.
            real: whether they are real samples, which make up the reference.
        """
        self._add(self.check_rows(self.extract(imgs), real), real)

    def update_features(self, rows: Tensor, real: bool = False) -> None:
        """Add features that were computed elsewhere, of images or of anything else.

        Args:
            rows: features, shape ``(n, d)``.
            real: whether they belong to real samples, which make up the reference.
        """
        self._add(self.check_rows(rows, real), real)
        self._note_update()

    def update_rows(self, rows: Tensor) -> None:
        """Add rows of generated samples (what :meth:`extract` returned): the same as one ``update``."""
        self.update_features(rows)

    def forward(self, imgs: Any, real: bool = False) -> Any:
        """Add a batch of generated samples and return the optimistic score of this batch alone.

        Args:
            imgs: as in :meth:`update`.
            real: must be false: a batch of real samples has no score.

        Raises:
            InputError: if the samples are real ones.
            NotReadyError: if the batch has fewer than two samples, or there is no reference yet.
        """
        if real:
            raise InputError(
                "Expected generated samples in `forward`, but got real ones; use `update(..., real=True)`."
            )
        return super().forward(imgs)

    def reset(self) -> None:
        """Forget all samples; real ones only if ``reset_real_features`` is set."""
        kept = {} if self.reset_real_features else {name: list(getattr(self, name)) for name in self.real_states}
        reference = self._caches.get("reference")
        super().reset()
        for name, state in kept.items():
            setattr(self, name, state)
        if kept and reference is not None:
            self._caches["reference"] = reference

    def _add(self, rows: Tensor, real: bool) -> None:
        """Put checked rows into the states."""
        self._refuse_if_synced()
        if rows.shape[0] == 0:
            return
        with exact_arithmetic():
            # A copy: callers may reuse their buffers, and a slice would keep all of its storage alive.
            kept = rows.detach().to(self._state_device).clone()
            if real:
                self._merge_into(self.real_states, kept)
            else:
                self.rows.append(kept)
                self._limit_rows()

    def _kept_rows(self) -> list[Tensor]:
        """Return the batches of generated rows that are kept, without empty ones (which a sync brings along)."""
        return [batch for batch in as_list(self.rows) if batch.shape[0]]

    def _limit_rows(self) -> None:
        """Decide, after rows were added, whether older ones shall be folded into moments."""

    def _folded(self) -> Moments | None:
        """Return the moments of generated rows that are no longer kept."""
        return self._moments(self.moment_count, self.moment_mean, self.moment_scatter)

    def _fold_oldest(self, batches: int) -> Moments:
        """Replace the oldest batches of rows by their moments.

        Args:
            batches: how many batches.
        """
        oldest = self.rows[:batches]
        del self.rows[:batches]
        return self._merge_into(("moment_count", "moment_mean", "moment_scatter"), torch.cat(oldest))

    def _merge_into(self, names: tuple[str, str, str], rows: Tensor) -> Moments:
        before = self._moments(*(getattr(self, name) for name in names))
        if before is None:
            after = moments_from_rows(rows)
        else:
            # Adding in place is far cheaper, but states that were loaded or copied may belong to somebody else too.
            mine = getattr(self, names[2])[0] is self._caches.get(names[2])
            after = add_rows_(before if mine else before._replace(scatter=before.scatter.clone()), rows)
        count = torch.tensor([after.count], dtype=torch.int64, device=after.mean.device)
        for name, value in zip(names, (count, after.mean.unsqueeze(0), after.scatter.unsqueeze(0)), strict=True):
            setattr(self, name, [value])
        self._caches[names[2]] = getattr(self, names[2])[0]
        return after

    @staticmethod
    def _moments(count: Any, mean: Any, scatter: Any) -> Moments | None:
        """Read moments from their three states: lists here, one tensor after a sync, one entry per rank then."""
        parts = [
            Moments(int(n), m, s)
            for counts, means, scatters in zip(as_list(count), as_list(mean), as_list(scatter), strict=True)
            for n, m, s in zip(counts, means, scatters, strict=True)
        ]
        return merge_moments(*parts) if parts else None

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        """Let ranks without samples take part: they have to send tensors of the others' dtype and width."""
        group = process_group or self.process_group
        mine = {_DTYPES.index(batch.dtype) for batch in self.rows}
        layout = [self.num_features or 0, *(int(number in mine) for number in range(len(_DTYPES)))]
        device = self._state_device
        layouts = torch.stack(dist_sync_fn(torch.tensor(layout, device=device), group=group))
        widths = set(layouts[:, 0].tolist()) - {0}
        if len(widths) > 1:
            raise InputError(f"Expected features of one dimension on all ranks, but got {sorted(widths)}.")
        width = max(widths, default=0)
        # One that holds the values of all: two different halves make a float32.
        used = [_DTYPES[number] for number in layouts[:, 1:].sum(dim=0).nonzero().flatten().tolist()]
        row_dtype = reduce(torch.promote_types, used or [torch.float32])
        shapes = {"rows": (width,), "settled": (), "count": (), "mean": (width,), "scatter": (width, width)}
        for name in (*self.generated_states, *self.real_states):
            kind = name.rpartition("_")[2]
            state = getattr(self, name)
            if not state:
                dtype_of = {"rows": row_dtype, "count": torch.int64}.get(kind, torch.float64)
                setattr(self, name, [torch.empty((0, *shapes[kind]), dtype=dtype_of, device=device)])
            elif kind == "rows":
                setattr(self, name, [batch.to(row_dtype) for batch in state])
        super()._sync_dist(dist_sync_fn, process_group)


def as_list(state: Any) -> list[Tensor]:
    """Return a list state as a list, also while it is synced and therefore one tensor."""
    return [state] if isinstance(state, Tensor) else list(state)
