"""The rows that a metric keeps, the one place where derived values are remembered, and the metric that owns both."""

from __future__ import annotations

import functools
import itertools
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from tm_bandit._device import exact_device
from tm_bandit.errors import InputError, brief
from tm_bandit.functional.moments import Moments

T = TypeVar("T")

_epochs = itertools.count(1)
_identities = itertools.count(1)


class RowLog:
    """A history of samples that only grows, until it is rewritten.

    A derived value is valid as long as the :attr:`key` stays the same: the ``epoch`` changes when rows are removed or
    replaced, the ``length`` when some are added. A value that can be extended remembers how far it has read and
    continues from there while the epoch is the same. Settings that it depends on belong in its key as well.

    A metric whose states are reassigned (reset, load, sync, merge) opens a new log: all derived values are gone.

    Args:
        batches: rows that are kept, in order; the list itself is kept and grows with the log.
        folded: moments of earlier rows that are no longer kept.
    """

    def __init__(self, batches: list[Tensor] | None = None, folded: Moments | None = None) -> None:
        self.epoch = next(_epochs)
        #: Names of states whose tensors were made here and may be overwritten; others may be shared.
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
        """What distinguishes this history from every other."""
        return self.epoch, self.length

    def append(self, rows: Tensor) -> None:
        """Add rows; they are not copied, so they must not change afterwards.

        Args:
            rows: shape ``(n, d)``.
        """
        if len(rows):
            self._starts.append(self.kept)
            self.batches.append(rows)
            self.kept += len(rows)
            self.length += len(rows)

    def fold(self, count: int, folded: Moments) -> None:
        """Discard the oldest rows.

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

    def first(self, count: int) -> Tensor | None:
        """Return the first rows of all, or ``None`` if some of them are not kept, or are not there yet.

        Args:
            count: how many of them.
        """
        return None if self.gone or not 0 < count <= self.kept else next(self.blocks(0, count, count))

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
        """Derive it again next time."""
        self._derived.pop(name, None)


class LoggedMetric(Metric):
    """A torchmetrics metric whose states are a log of samples.

    Its states keep their precision and their device, whatever is done to the module around it, and a new log
    is opened whenever they are rewritten. A metric that refuses samples, or fails to sync, is left unchanged.

    Args:
        kwargs: see torchmetrics' ``Metric``.
    """

    #: States that saved runs of older versions may lack.
    later_states: tuple[str, ...] = ()

    #: Rows up to this width are worked on in one thread. On two cores with ten busy processes, a pull of 50 rows took
    #: 37 ms instead of 208 at width 64, and 96 instead of 854 at width 256.
    _narrow: ClassVar[int] = 512

    identity: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._output_dtype = torch.float64
        # Opened when it is needed; holds everything derived from the states: never saved, never synced.
        self._row_log: RowLog | None = None
        # MetricCollection merges metrics whose states look equal after the first update, though their later states may
        # differ (other bound, other rows kept). Bytes, so that they differ in every dtype and by more than `allclose`.
        number = next(_identities)
        self.add_state("identity", torch.tensor([(number >> (8 * i)) % 256 for i in range(4)]), dist_reduce_fx="max")

    @property
    def _is_narrow(self) -> bool:
        """Whether its algebra is too little work to be split among threads."""
        return (self.row_width or 0) <= self._narrow

    @property
    def row_width(self) -> int | None:
        """Length of a row, or ``None`` while it is not known; a saved run continues only with rows of this length."""
        return None

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Number of generated samples so far (on this rank)."""

    @property
    def row_log(self) -> RowLog:
        """The samples so far: where everything derived from them is remembered."""
        if self._row_log is None:
            self._row_log = self._open_log()
        return self._row_log

    def _open_log(self) -> RowLog:
        """Return a log of what the states hold."""
        return RowLog()

    def _log_of_state(self, name: str, folded: Moments | None = None) -> RowLog:
        """Return a log of the batches in a list state, which grows with it."""
        batches = [batch for batch in as_list(getattr(self, name)) if len(batch)]
        if not self._is_synced:
            vars(self)[name] = batches
        return RowLog(batches, folded)

    def _refuse_if_synced(self) -> None:
        """Raise if what is added now would be lost with the next ``unsync``."""
        if self._is_synced:
            raise TorchMetricsUserError("Expected an unsynced metric to add samples to; call `unsync` first.")

    def note_update(self) -> None:
        """Do for rows what torchmetrics' wrapper does for ``update``: count it, and forget the last value."""
        self._computed = None
        self._update_count += 1
        if self.compute_on_cpu:
            self._move_list_states_to_cpu()

    def _wrap_update(self, update: Callable[..., None]) -> Callable[..., None]:
        """Keep a refused update from being counted: torchmetrics counts before it tries."""
        counted = super()._wrap_update(update)

        @functools.wraps(update)
        def tried(*args: Any, **kwargs: Any) -> None:
            count = self._update_count
            try:
                counted(*args, **kwargs)
            except BaseException:
                self._update_count = count
                raise

        return tried

    def load_states(self, states: Mapping[str, Tensor | list[Tensor]], updates: int = 1) -> None:
        """Restore the samples that ``metric_state`` of a metric of this kind held.

        Args:
            states: tensors by name, on any device.
            updates: number of updates that made them.

        Raises:
            InputError: if one is missing; nothing has changed then.
        """
        self._check_states(states)
        for name, default in self._defaults.items():
            if name != "identity":
                moved = [part.to(self.device) for part in as_list(states.get(name, ()))]
                setattr(self, name, moved if isinstance(default, list) else moved[0])
        self._computed, self._update_count = None, updates

    def _check_states(self, states: Any) -> None:
        """Raise ``InputError`` unless there is something for each state."""
        known = set(states) if isinstance(states, Mapping) else set()
        lost = sorted(set(self._defaults) - {"identity", *self.later_states} - known)
        if lost:
            raise InputError(f"Expected the states of a {type(self).__name__}, but got none for {', '.join(lost)}.")

    def set_dtype(self, dst_type: str | torch.dtype) -> Metric:
        """Choose the dtype of returned values; statistics stay in float64 regardless.

        Args:
            dst_type: a floating dtype, or its name such as ``"float32"`` or ``"torch.float32"``.
        """
        name = str(dst_type).removeprefix("torch.")
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise InputError(f"Expected a floating dtype, but got {dst_type!r}; torch.float32 is one.")
        self._output_dtype = dtype
        self._computed = None
        return self

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of returned values, see :meth:`set_dtype`."""
        return self._output_dtype

    def reset(self) -> None:
        """Forget all samples."""
        super().reset()
        self._row_log = None

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Exchange states with the other ranks; if that fails, the local states are left unchanged.

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
        """Sync, and restore the local states even if the computation in between raises.

        Args:
            args: as in torchmetrics.
            kwargs: as in torchmetrics.
        """
        should_unsync = kwargs.pop("should_unsync", True)
        self.sync(*args, **kwargs)
        try:
            with exact_arithmetic(self._is_narrow):
                yield
        finally:
            self.unsync(should_unsync=self._is_synced and should_unsync)

    def _synced(self) -> AbstractContextManager[None]:
        """Sync as ``compute`` does, for the other methods that return values of all ranks' samples."""
        if not self._to_sync or self._is_synced:
            return exact_arithmetic(self._is_narrow)
        return self.sync_context(dist_sync_fn=self.dist_sync_fn, should_unsync=self._should_unsync)

    def _output(self, value: Tensor | float) -> Tensor:
        """Return a value as the scalar tensor that callers get."""
        return torch.as_tensor(value, dtype=torch.float64).to(self._output_dtype).to(self.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        """Move states between devices only: a cast to half precision (a whole module's ``.to``) would ruin them.

        They stay on the CPU where the target has no float64.
        """
        device = fn(torch.zeros(1, device=self.device)).device
        if exact_device(device) == device:
            super()._apply(lambda tensor: tensor.to(device), exclude_state)
        self._follow(device)
        return self

    def _follow(self, device: torch.device) -> None:
        """Move the network along, if there is one."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave derived values out of pickles and clones."""
        return {**super().__getstate__(), "_row_log": None}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load states; a metric that gets samples this way counts as updated, and keeps its own identity."""
        state_dict.pop(prefix + "identity", None)
        found = any(prefix + name in state_dict for name in self._defaults)
        super()._load_from_state_dict(state_dict, prefix, *args)
        for name, default in self._defaults.items():
            if isinstance(default, list):
                # A copy: the list belongs to whoever holds the state dict. In a synced metric it was one tensor.
                setattr(self, name, as_list(getattr(self, name)))
        if found:
            self._note_merge()

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Take over the samples of another metric of this kind.

        Args:
            incoming_state: the metric, or its states by name.

        Raises:
            InputError: if it is of another kind, or has other states.
        """
        try:
            super().merge_state(incoming_state)
        except InputError:
            raise
        except (ValueError, RuntimeError, AttributeError, TypeError) as error:  # whatever a state of another kind does
            raise InputError(f"Expected a metric of this kind or its states, but got {brief(error)}.") from error

    def _reduce_states(self, incoming_state: Mapping[str, Any]) -> None:
        """Merge the states of another metric (``merge_state``), which may keep using its own."""
        copies = {
            name: [tensor.clone() for tensor in state] if isinstance(state, list) else state
            for name, state in incoming_state.items()
        }
        super()._reduce_states({**copies, "identity": self.identity})
        self._note_merge()

    def _note_merge(self) -> None:
        """Count samples that came with states as updates, and forget values computed without them."""
        self._computed = None
        if self.num_samples > 0:
            self._update_count = max(self._update_count, 1)


@contextmanager
def exact_arithmetic(narrow: bool = False) -> Iterator[None]:
    """Make plain tensors, without gradients, whatever mode the caller is in.

    Validation loops run in inference mode, and a tensor made there can never be changed in place outside of it.

    Args:
        narrow: whether all of it is so little work that threads would only wait for each other.
    """
    threads = torch.get_num_threads() if narrow else 1
    if threads > 1:
        torch.set_num_threads(1)
    try:
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)


def as_list(state: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Return a list state as a new list, even if it comes from a synced metric and is therefore a single tensor.

    Args:
        state: the state.
    """
    return [state] if isinstance(state, Tensor) else list(state)
