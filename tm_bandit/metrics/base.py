"""The surface that all metrics share, and the only one that the selector and the callback rely on."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from tm_bandit._arguments import check_count, check_level
from tm_bandit.comparison import Comparison, compare_independent
from tm_bandit.errors import InputError
from tm_bandit.metrics._attributes import Setting, optional
from tm_bandit.metrics.row_log import RowLog
from tm_bandit.metrics.traits import Traits


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

#: All that the engine uses of a metric; most of it has a default in :class:`OptimisticMetric`.
_QUESTIONS = ("traits", "delta", "device", "num_samples", "min_samples", "row_width", "loss_fields", "metric_state")
_ACTIONS = (
    "extract",
    "check_rows",
    "update_rows",
    "losses",
    "score_from_loss",
    "compare",
    "fork",
    "reset",
    "load_states",
)

_identities = itertools.count(1)

M = TypeVar("M", bound="OptimisticMetric")


def missing_parts(metric: object) -> list[str]:
    """Return what an object lacks to be used as a metric by the selector; nothing for an :class:`OptimisticMetric`.

    Args:
        metric: any object.

    Example:
        >>> missing_parts(torch.nn.Identity())[:3]
        ['traits', 'delta', 'device']
    """
    # Not looked up on the instance itself, which would compute a property.
    own = getattr(metric, "__dict__", {})
    return [name for name in _QUESTIONS + _ACTIONS if not hasattr(type(metric), name) and name not in own]


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Make plain tensors, without gradients, whatever mode the caller is in.

    Validation loops run in inference mode, and a tensor made there can never be changed in place outside of it.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


class OptimisticMetric(Metric, ABC):
    """A streaming score of a generator with an optimistic bound.

    A subclass says what it is (:attr:`traits`), turns samples into rows (:meth:`extract`), takes them in
    (:meth:`update_rows`) and answers in losses, of which smaller is better (:meth:`losses`). Everything else has a
    default here: values in the score's own unit, synced like ``compute``; ``forward`` on one batch; states that keep
    their precision; copies for arms (:meth:`fork`) and their comparison (:meth:`compare`).

    The engine uses ``traits``, ``delta``, ``device``, ``num_samples``, ``min_samples``, ``row_width``,
    ``loss_fields``, ``extract``, ``check_rows``, ``update_rows``, ``losses``, ``score_from_loss``, ``compare``,
    ``fork``, ``reset``, ``metric_state`` and ``load_states``, and nothing else. ``compute``, ``estimate``, ``bounds``,
    ``debiased`` and ``burn_in_met`` are for people.

    Args:
        delta: failure probability of the bound.
        horizon: number of looks that the bound shall hold for at once; it divides ``delta``.
        kwargs: see torchmetrics' ``Metric``.
    """

    is_differentiable: bool = False
    full_state_update: bool = False

    #: All names that :meth:`losses` of this metric understands; fields of ``ArmStats``.
    loss_fields: tuple[str, ...] = LOSS_FIELDS

    #: States that describe generated samples; :meth:`forward` sets them aside to look at one batch alone.
    generated_states: tuple[str, ...] = ()

    identity: Tensor
    delta = Setting(check_level)
    horizon = Setting(optional(lambda name, value: check_count(name, value, 1)))

    def __init__(self, delta: float = 0.05, horizon: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._output_dtype = torch.float64
        # Opened when it is needed; holds all that was derived from the states: never saved, never synced.
        self._row_log: RowLog | None = None
        self.delta = delta
        self.horizon = horizon
        # MetricCollection merges metrics whose states look equal after the first update, though their later states may
        # differ (other bound, other rows kept). Bytes, so that they differ in every dtype and by more than `allclose`.
        number = next(_identities)
        self.add_state("identity", torch.tensor([(number >> (8 * i)) % 256 for i in range(4)]), dist_reduce_fx="max")

    # ---- what a metric must say ----

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """What the engine must know of this metric, with the bound it has."""

    @abstractmethod
    def extract(self, inputs: Any) -> Tensor:
        """Turn a batch of samples into rows (features or class probabilities); touches no state."""

    @abstractmethod
    def check_rows(self, rows: Tensor) -> Tensor:
        """Return ``rows`` if they can be used, else raise ``InputError``; touches no state."""

    @abstractmethod
    def update_rows(self, rows: Tensor) -> None:
        """Check and add rows of generated samples (what :meth:`extract` returned): the same as one ``update``.

        It ends with :meth:`note_update`.
        """

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Number of generated samples so far (on this rank)."""

    @abstractmethod
    def losses(self, fields: Iterable[str]) -> dict[str, float]:
        """Return the asked-for fields of ``ArmStats`` as floats in which smaller is better; compute nothing else.

        It must answer from two samples on; what is not known yet is infinite, or ``nan``.
        """

    @property
    def min_samples(self) -> int:
        """The fewest samples with which the bound says anything at all (what ``burn_in="auto"`` draws)."""
        return 2

    @property
    def row_width(self) -> int | None:
        """Length of a row, or ``None`` while it is not known; a saved run goes on with rows of this length only."""
        return None

    def score_from_loss(self, loss: float) -> float:
        """Translate a loss (or one end of an interval of losses) back into the metric's own unit: negate it, or not."""
        return -loss if self.higher_is_better else loss

    # ---- what the engine gets for it ----

    def fork(self: M, delta: float | None = None, device: str | torch.device | None = None) -> M:
        """Return a copy for one arm: statistics of its own, everything heavy shared.

        It never syncs: every process gives the same rows to its arms, and a sync would count each of them again.

        Args:
            delta: failure probability of the copy's bounds; ``None`` leaves this metric's.
            device: where its statistics live; ``None`` means with this metric's.
        """
        copy: M = self.clone()  # type: ignore[assignment]
        copy.sync_on_compute = copy._to_sync = False
        copy._share(self)
        if delta is not None:
            copy.delta = delta
        return copy if device is None else copy.to(device)

    def _share(self, template: Any) -> None:
        """Use what is heavy together with the metric that this one was copied from."""

    def compare(self, other: OptimisticMetric) -> Comparison:
        """Return how much larger this metric's debiased loss is than another's; noise is taken as independent.

        Args:
            other: a metric of the same kind over other samples.
        """
        least = min(self.num_samples, other.num_samples)
        return compare_independent(self._debiased_loss(), other._debiased_loss(), least, self._level)

    def load_states(self, states: Mapping[str, Tensor | list[Tensor]], updates: int = 1) -> None:
        """Take the samples back that ``metric_state`` of a metric of this kind held.

        Args:
            states: tensors by name, on any device.
            updates: number of updates that made them.

        Raises:
            InputError: if one is missing; nothing has changed then.
        """
        lost = sorted(set(self._defaults) - {"identity"} - set(states))
        if lost:
            raise InputError(f"Expected the states of a {type(self).__name__}, but got none for {', '.join(lost)}.")
        for name, default in self._defaults.items():
            if name != "identity":
                moved = [part.to(self.device) for part in as_list(states[name])]
                setattr(self, name, moved if isinstance(default, list) else moved[0])
        self._computed, self._update_count = None, updates

    # ---- what people get for it ----

    def compute(self) -> Tensor:
        """Return the optimistic score: with probability ``1 - delta`` the truth is not better."""
        return self._score("optimistic")

    def estimate(self) -> Tensor:
        """Return the plain plug-in score of the samples so far."""
        return self._score("estimate")

    def bounds(self) -> Interval:
        """Return the two-sided interval that belongs to the bound; a side about which nothing is known is infinite."""
        with self._synced():
            ends = [self._output(self.score_from_loss(loss)) for loss in self._ends()]
        return Interval(*(reversed(ends) if self.higher_is_better else ends))

    def debiased(self) -> Debiased:
        """Return a near-unbiased estimate and its standard error, for comparing arms of different sample counts."""
        loss, stderr = self._debiased_loss()
        return Debiased(self._output(self.score_from_loss(loss)), self._output(stderr * self._steepness(loss)))

    @property
    def burn_in_met(self) -> bool:
        """Whether there are enough samples (on this rank) for the bound's guarantee to hold."""
        return self.num_samples >= self.min_samples

    def _score(self, field: str) -> Tensor:
        return self._output(self.score_from_loss(self.losses((field,))[field]))

    def _debiased_loss(self) -> tuple[float, float]:
        found = self.losses(("debiased", "debiased_stderr"))
        return found["debiased"], found["debiased_stderr"]

    def _ends(self) -> tuple[float, float]:
        """Return both ends of the interval as losses, the optimistic one first."""
        found = self.losses(("optimistic", "pessimistic"))
        return found["optimistic"], found["pessimistic"]

    def _steepness(self, loss: float) -> float:
        """Return by how much the score changes with the loss, for standard errors."""
        return 1.0

    # ---- torchmetrics ----

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
        count, log = self._update_count, self._row_log
        try:
            for name in self.generated_states:
                default = self._defaults[name]
                setattr(self, name, default.clone() if isinstance(default, Tensor) else [])
            self.update_rows(rows)
            self._to_sync = self.dist_sync_on_step
            value: Any = self.compute()
        finally:
            vars(self).update(kept, _row_log=log)
            self._update_count, self._to_sync, self._computed = count, self.sync_on_compute, None
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
        self._row_log = None

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
        should_unsync = kwargs.pop("should_unsync", True)
        self.sync(*args, **kwargs)
        try:
            with exact_arithmetic():
                yield
        finally:
            self.unsync(should_unsync=self._is_synced and should_unsync)

    def _synced(self) -> AbstractContextManager[None]:
        """Sync as ``compute`` does, for the other methods that return values of all ranks' samples."""
        if not self._to_sync or self._is_synced:
            return exact_arithmetic()
        return self.sync_context(dist_sync_fn=self.dist_sync_fn, should_unsync=self._should_unsync)

    @property
    def row_log(self) -> RowLog:
        """The samples so far: where everything that is derived from them is remembered."""
        if self._row_log is None:
            self._row_log = self._open_log()
        return self._row_log

    def _open_log(self) -> RowLog:
        """Return a log of what the states hold."""
        return RowLog()

    def _before_change(self, setting: str) -> None:
        """Refuse to change a setting if values with the new one can no longer be had."""

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

    def note_update(self) -> None:
        """Do for rows what torchmetrics' wrapper does for ``update``: count it, and forget the last value."""
        self._computed = None
        self._update_count += 1
        if self.compute_on_cpu:
            self._move_list_states_to_cpu()

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        """Move states between devices only: a cast to half precision (a whole module's ``.to``) would ruin them."""
        device = fn(torch.zeros(1, device=self.device)).device
        return super()._apply(lambda tensor: tensor.to(device), exclude_state)

    def __getstate__(self) -> dict[str, Any]:
        """Leave what can be derived again out of pickles and clones."""
        return {**super().__getstate__(), "_row_log": None}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take states back; a metric that got samples this way counts as updated, and keeps its own identity."""
        state_dict.pop(prefix + "identity", None)
        found = any(prefix + name in state_dict for name in self._defaults)
        super()._load_from_state_dict(state_dict, prefix, *args)
        for name, default in self._defaults.items():
            if isinstance(default, list):
                # A copy: the list belongs to whoever holds the state dict. In a synced metric it was one tensor.
                setattr(self, name, as_list(getattr(self, name)))
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


def as_list(state: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Return a list state as a new list, also if it comes from a synced metric and therefore is one tensor.

    Args:
        state: the state.
    """
    return [state] if isinstance(state, Tensor) else list(state)
