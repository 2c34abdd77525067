"""The surface that both metrics share, and the only one that the selector and the callback rely on."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from tm_bandit.errors import InputError


class Interval(NamedTuple):
    """A two-sided confidence interval; a side about which nothing can be said is ``-inf`` / ``+inf``."""

    lower: Tensor
    upper: Tensor


class Debiased(NamedTuple):
    """A near-unbiased estimate and its standard error."""

    value: Tensor
    stderr: Tensor


#: The names that :meth:`OptimisticMetric.losses` of every metric understands: float fields of ``ArmStats``.
LOSS_FIELDS = ("witness", "stderr", "estimate", "optimistic", "pessimistic", "debiased", "debiased_stderr")

_identities = itertools.count(1)


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Make plain tensors, without gradients, whatever mode the caller is in.

    Validation loops run in inference mode, and a tensor made there can never be changed in place outside of it.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


class OptimisticMetric(Metric, ABC):
    """A streaming score of a generator with an optimistic bound.

    Subclasses are thin: they store rows or sums, sync them, and delegate to :mod:`tm_bandit.functional`. What they
    share is here: values that are synced like ``compute``, ``forward`` on one batch, states that keep their precision.
    """

    is_differentiable: bool = False
    full_state_update: bool = False

    #: All names that :meth:`losses` of this metric understands; fields of ``ArmStats``.
    loss_fields: tuple[str, ...] = LOSS_FIELDS

    #: States that describe generated samples; :meth:`forward` sets them aside to look at one batch alone.
    generated_states: tuple[str, ...] = ()

    identity: Tensor
    delta: float
    horizon: int | None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._output_dtype = torch.float64
        # What was derived from the states and can be derived again: never saved, never synced.
        self._caches: dict[str, Any] = {}
        # MetricCollection merges metrics whose states look equal after the first update, though their later states may
        # differ (other bound, other rows kept). Bytes, so that they differ in every dtype and by more than `allclose`.
        number = next(_identities)
        self.add_state("identity", torch.tensor([(number >> (8 * i)) % 256 for i in range(4)]), dist_reduce_fx="max")

    @abstractmethod
    def extract(self, inputs: Any) -> Tensor:
        """Turn a batch of samples into rows (features or class probabilities); touches no state."""

    @abstractmethod
    def check_rows(self, rows: Tensor) -> Tensor:
        """Return ``rows`` if they can be used, else raise ``InputError``; touches no state."""

    @abstractmethod
    def update_rows(self, rows: Tensor) -> None:
        """Add rows of generated samples (what :meth:`extract` returned): the same as one ``update``."""

    @abstractmethod
    def estimate(self) -> Tensor:
        """Return the plain plug-in score of the samples so far."""

    @abstractmethod
    def bounds(self) -> Interval:
        """Return the two-sided interval that belongs to ``bound=`` and ``delta=``."""

    @abstractmethod
    def debiased(self) -> Debiased:
        """Return a near-unbiased estimate, for comparing arms of different sample counts."""

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Number of generated samples so far (on this rank)."""

    @property
    @abstractmethod
    def burn_in_met(self) -> bool:
        """Whether there are enough samples (on this rank) for the bound's guarantee to hold."""

    @property
    @abstractmethod
    def min_samples(self) -> int:
        """The fewest samples with which the bound says anything at all (what ``burn_in="auto"`` draws)."""

    @abstractmethod
    def losses(self, fields: Iterable[str]) -> dict[str, float]:
        """Return the asked-for fields of ``ArmStats`` as floats in which smaller is better; compute nothing else.

        It must answer from two samples on; what is not known yet is infinite, or ``nan``.
        """

    @abstractmethod
    def score_from_loss(self, loss: float) -> float:
        """Translate a loss (or one end of an interval of losses) back into the metric's own unit."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add one batch of generated samples and return the optimistic score of this batch alone.

        Args:
            args: what ``update`` takes.
            kwargs: what ``update`` takes.

        Raises:
            NotReadyError: if the batch is too small for a score; nothing is added then, use ``update`` for it.
        """
        self._refuse_if_synced()
        rows = self.check_rows(self.extract(*args, **kwargs))
        kept = {name: getattr(self, name) for name in self.generated_states}
        count, caches = self._update_count, self._caches
        try:
            self._caches = {}
            for name in self.generated_states:
                default = self._defaults[name]
                setattr(self, name, default.clone() if isinstance(default, Tensor) else [])
            self.update_rows(rows)
            self._to_sync = self.dist_sync_on_step
            value = self.compute()
        finally:
            for name, state in kept.items():
                setattr(self, name, state)
            self._update_count, self._to_sync, self._computed = count, self.sync_on_compute, None
            self._caches = caches
        self.update_rows(rows)
        self._forward_cache = value
        return value

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Plot one value, or several in a row.

        Args:
            val: what ``compute`` or ``forward`` returned, or a list of such values; the current value by default.
            ax: matplotlib axes to draw into.

        Returns:
            The figure and the axes.
        """
        return self._plot(val, ax)

    def set_dtype(self, dst_type: str | torch.dtype) -> Metric:
        """Choose the dtype of returned values; statistics stay in float64 whatever is chosen.

        Args:
            dst_type: a floating dtype, or its name such as ``"float32"`` or ``"torch.float32"``.
        """
        name = str(dst_type).removeprefix("torch.")
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"Expected a floating dtype, but got {dst_type!r}.")
        self._output_dtype = dtype
        self._computed = None
        return self

    def reset(self) -> None:
        """Forget all samples."""
        super().reset()
        self._caches = {}

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Exchange states with the other ranks; if that fails, the local states are as they were.

        Args:
            args: as in torchmetrics.
            kwargs: as in torchmetrics.
        """
        try:
            super().sync(*args, **kwargs)
        except BaseException:
            if self._cache is not None and not self._is_synced:
                for name, state in self._cache.items():
                    setattr(self, name, state)
                self._cache = None
            raise

    @contextmanager
    def sync_context(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Sync, and give the local states back even if the computation in between raises.

        Args:
            args: as in torchmetrics.
            kwargs: as in torchmetrics.
        """
        should_unsync, caches = kwargs.pop("should_unsync", True), self._caches
        self.sync(*args, **kwargs)
        if self._is_synced:
            self._caches = {}
        try:
            with exact_arithmetic():
                yield
        finally:
            self.unsync(should_unsync=self._is_synced and should_unsync)
            self._caches = caches

    @contextmanager
    def _synced(self) -> Iterator[None]:
        """Sync as ``compute`` does, for the other methods that return values of all ranks' samples."""
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn,
            should_sync=self._to_sync and not self._is_synced,
            should_unsync=self._should_unsync and not self._is_synced,
        ):
            yield

    @property
    def _level(self) -> float:
        """The failure probability of one look."""
        return self.delta / (self.horizon or 1)

    def _refuse_if_synced(self) -> None:
        """Raise if what is added now would be lost with the next ``unsync``."""
        if self._is_synced:
            raise TorchMetricsUserError("Expected an unsynced metric to add samples to; call `unsync` first.")

    def _output(self, value: Tensor | float) -> Tensor:
        """Return a value as the scalar tensor that callers get."""
        return torch.as_tensor(value, dtype=torch.float64).to(self._output_dtype).to(self.device)

    def _note_update(self) -> None:
        """Do for rows what torchmetrics' wrapper does for ``update``."""
        self._computed = None
        self._update_count += 1
        if self.compute_on_cpu:
            self._move_list_states_to_cpu()

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        """Move states between devices only: a cast to half precision (a whole module's ``.to``) would ruin them."""
        device = fn(torch.zeros(1, device=self.device)).device
        return super()._apply(lambda tensor: tensor.to(device), exclude_state)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the caches out of pickles and clones."""
        return {**super().__getstate__(), "_caches": {}}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take states back; a metric that got samples this way counts as updated, and keeps its own identity."""
        state_dict.pop(prefix + "identity", None)
        found = any(prefix + name in state_dict for name in self._defaults)
        super()._load_from_state_dict(state_dict, prefix, *args)
        for name, default in self._defaults.items():
            if isinstance(default, list):
                # The list itself still belongs to whoever holds the state dict, perhaps to another metric.
                setattr(self, name, list(getattr(self, name)))
        if found:
            self._note_merge()

    def _reduce_states(self, incoming_state: Mapping[str, Any]) -> None:
        """Merge the states of another metric (``merge_state``), which may go on with its own."""
        copies = {
            name: [tensor.clone() for tensor in state] if isinstance(state, list) else state
            for name, state in incoming_state.items()
        }
        super()._reduce_states({**copies, "identity": self.identity})
        self._note_merge()

    def _note_merge(self) -> None:
        """Count samples that came with states as updates, and forget values without them."""
        self._computed = None
        if self.num_samples > 0:
            self._update_count = max(self._update_count, 1)


def check_level(delta: float, horizon: int | None) -> None:
    """Raise ``InputError`` unless ``delta`` is a failure probability and ``horizon`` a number of looks, if any."""
    if not is_number(delta) or not 0.0 < delta < 1.0:
        raise InputError(f"Expected `delta` to lie strictly between 0 and 1, but got {delta!r}; 0.05 is customary.")
    if horizon is not None and not is_whole(horizon, least=1):
        raise InputError(f"Expected `horizon` to be a positive integer or None, but got {horizon!r}.")


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any, least: int) -> bool:
    """Whether ``value`` is an integer of at least ``least``, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
