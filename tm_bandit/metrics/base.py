"""The interface that all metrics share, and all that the selector and the callback rely on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tm_bandit._arguments import check_count, check_level
from tm_bandit._device import check_device
from tm_bandit.comparison import Pair, has_few_values
from tm_bandit.errors import InputError
from tm_bandit.functional.confidence import ScoreMoments, mean_interval
from tm_bandit.metrics._attributes import Setting, optional
from tm_bandit.metrics.row_log import LoggedMetric
from tm_bandit.metrics.traits import Traits


class Interval(NamedTuple):
    """A two-sided confidence interval; a side about which nothing is known is ``-inf`` or ``+inf``.

    Example:
        >>> Interval(torch.tensor(5.0537), torch.tensor(float("inf")))
        [5.054, inf]
    """

    lower: Tensor
    upper: Tensor

    def __repr__(self) -> str:
        return f"[{float(self.lower):.4g}, {float(self.upper):.4g}]"


class Debiased(NamedTuple):
    """A near-unbiased estimate and its standard error.

    Example:
        >>> Debiased(torch.tensor(7.8234), torch.tensor(0.125))
        7.823 +- 0.12
    """

    value: Tensor
    stderr: Tensor

    def __repr__(self) -> str:
        return f"{float(self.value):.4g} +- {float(self.stderr):.2g}"


#: The names that :meth:`OptimisticMetric.losses` of every metric understands: float fields of ``ArmStats``.
LOSS_FIELDS = ("witness", "stderr", "estimate", "optimistic", "pessimistic", "debiased", "debiased_stderr")

#: All that the engine uses of a metric; most of it has a default in :class:`OptimisticMetric`.
_QUESTIONS = ("traits", "delta", "device", "num_samples", "min_samples", "row_width", "loss_fields", "metric_state")
_ROWS = ("needs_conditions", "extract", "check_rows", "add_rows", "note_update", "reset", "load_states")
_ANSWERS = ("losses", "score_from_loss", "paired", "certificate", "fork")

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
    return [name for name in _QUESTIONS + _ROWS + _ANSWERS if not hasattr(type(metric), name) and name not in own]


class OptimisticMetric(LoggedMetric, ABC):
    """A streaming score of a generator with an optimistic bound.

    A subclass describes itself (:attr:`traits`), turns samples into rows (:meth:`extract`), stores them
    (:meth:`add_rows`) and reports losses, where smaller is better (:meth:`losses`). Everything else has a
    default here: values in the score's own unit, synced like ``compute``; ``forward`` on one batch; states that keep
    their precision; copies for arms (:meth:`fork`) and their comparison (:meth:`paired`).

    The engine uses ``traits``, ``delta``, ``device``, ``num_samples``, ``min_samples``, ``row_width``,
    ``loss_fields``, ``needs_conditions``, ``extract``, ``check_rows``, ``add_rows``, ``note_update``, ``losses``,
    ``score_from_loss``, ``paired``, ``certificate``, ``fork``, ``reset``, ``metric_state`` and ``load_states``, and
    nothing else.
    ``update_rows``, ``compute``, ``estimate``, ``bounds``, ``debiased`` and ``burn_in_met`` are for users.

    Args:
        delta: failure probability of the bound.
        horizon: number of looks at which the bound must hold together; ``delta`` is divided by it.
        kwargs: see torchmetrics' ``Metric``.
    """

    is_differentiable: bool = False
    full_state_update: bool = False

    #: All names that :meth:`losses` of this metric understands; fields of ``ArmStats``.
    loss_fields: tuple[str, ...] = LOSS_FIELDS

    #: Whether ``extract`` needs the samples' conditions (prompts, labels) as a second argument.
    needs_conditions: bool = False

    #: Kind of the confidence sequences; some metrics let the user choose.
    width: Any = "mixture"

    #: States that describe generated samples; :meth:`forward` sets them aside to look at one batch alone.
    generated_states: tuple[str, ...] = ()

    delta = Setting(check_level)
    horizon = Setting(optional(lambda name, value: check_count(name, value, 1)))

    def __init__(self, delta: float = 0.05, horizon: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.delta = delta
        self.horizon = horizon

    # ---- what a metric must say ----

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """What the engine must know about this metric with its bound."""

    @abstractmethod
    def extract(self, inputs: Any) -> Tensor:
        """Turn a batch of samples into rows (features or class probabilities); touches no state."""

    @abstractmethod
    def check_rows(self, rows: Tensor) -> Tensor:
        """Return ``rows`` if they can be used, else raise ``InputError``; touches no state."""

    @abstractmethod
    def add_rows(self, rows: Tensor) -> None:
        """Add rows of generated samples, as :meth:`check_rows` returned them, to the states, without further checks."""

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Number of generated samples so far (on this rank)."""

    @abstractmethod
    def losses(self, fields: Iterable[str]) -> dict[str, float]:
        """Return the requested fields of ``ArmStats`` as floats where smaller is better; compute nothing else.

        It must work from two samples on; what is not known yet is infinite, or ``nan``.
        """

    @property
    def min_samples(self) -> int:
        """The fewest samples for which the bound is informative (what ``burn_in="auto"`` draws)."""
        return 2

    def score_from_loss(self, loss: float) -> float:
        """Translate a loss (or one end of an interval of losses) back into the metric's own unit: negate it, or not."""
        return -loss if self.higher_is_better else loss

    # ---- what the engine gets in return ----

    def fork(self: M, delta: float | None = None, device: str | torch.device | None = None) -> M:
        """Return a copy for one arm, with statistics of its own and everything heavy shared.

        It never syncs: every process gives its arms the same rows, and a sync would count each row again.

        Args:
            delta: failure probability of the copy's bounds; ``None`` leaves this metric's.
            device: where its statistics live; ``None`` means with this metric's.
        """
        copy: M = self.clone()  # type: ignore[assignment]
        copy.sync_on_compute = copy._to_sync = False
        copy._share(self)
        if delta is not None:
            copy.delta = delta
        return copy if device is None else copy.to(check_device(device))

    def _share(self, template: Any) -> None:
        """Share whatever is heavy with the metric that this one was copied from."""

    def row_scores(self, count: int) -> Tensor | None:
        """Return one loss for each of the first ``count`` samples, whose mean estimates the loss, or ``None``.

        Over samples that two arms drew from the same noise, the mean difference of these losses estimates the
        difference of the arms' losses, with the standard error of a plain mean.

        Args:
            count: how many samples; later ones are ignored.
        """
        return None

    def paired(self: M, other: M, count: int) -> Pair | None:
        """Return how this metric's loss compares with another's on ``count`` common draws, or ``None``.

        If all scores are the same for both, and have few values, that is ``None``: the next draw may tell them apart.

        Args:
            other: a metric of the same kind with at least ``count`` samples, drawn from the same noise.
            count: how many samples.
        """
        mine, theirs = self.row_scores(count), other.row_scores(count)
        if mine is None or theirs is None or (torch.equal(mine, theirs) and has_few_values(mine)):
            return None
        return Pair.of(torch.stack([mine, theirs]))

    def certificate(self: M, other: M, count: int) -> float | None:
        """Return a lower bound of this metric's loss minus the other's from ``count`` common draws, or ``None``.

        It fails with probability ``other.delta``, over all counts together.

        Args:
            other: a metric of the same kind over other samples, drawn from the same noise.
            count: how many samples.
        """
        mine, theirs = self.row_scores(count), other.row_scores(count)
        if mine is None or theirs is None or self.traits.centre != "unbiased":
            return None
        return mean_interval(ScoreMoments.of(mine - theirs), other._level, self.width)[0]

    # ---- what users get in return ----

    def update(self, inputs: Any) -> None:
        """Add a batch of generated samples, whatever :meth:`extract` takes."""
        self.add_rows(self.check_rows(self.extract(inputs)))

    def update_rows(self, rows: Tensor) -> None:
        """Check and add rows of generated samples (what :meth:`extract` returned): the same as one ``update``."""
        self.add_rows(self.check_rows(rows))
        self.note_update()

    def compute(self) -> Tensor:
        """Return the optimistic score, by which a bandit chooses: the truth is unlikely to be better."""
        return self._score("optimistic")

    def estimate(self) -> Tensor:
        """Return the plain plug-in score of the samples so far."""
        return self._score("estimate")

    def bounds(self) -> Interval:
        """Return the two-sided interval that the bound promises; a side about which nothing is known is infinite."""
        with self._synced():
            ends = [self._output(self.score_from_loss(loss)) for loss in self._ends()]
        return Interval(*(reversed(ends) if self.higher_is_better else ends))

    def debiased(self) -> Debiased:
        """Return a near-unbiased estimate and its standard error, for comparing arms with different sample counts."""
        loss, stderr = self._debiased_loss()
        return Debiased(self._output(self.score_from_loss(loss)), self._output(stderr * self._steepness(loss)))

    @property
    def burn_in_met(self) -> bool:
        """Whether there are enough samples (on this rank) for the bound's guarantee to hold."""
        return self.num_samples >= self.min_samples

    def _check_fields(self, fields: Iterable[str]) -> list[str]:
        """Return the requested fields, or raise ``InputError`` if :meth:`losses` does not know one."""
        try:
            wanted: list[Any] = list(fields)
        except Exception:  # an odd tensor raises TypeError or RuntimeError, depending on torch's version
            wanted = [fields]
        unknown = [field for field in wanted if not isinstance(field, str) or field not in self.loss_fields]
        if unknown:
            raise InputError(f"Expected fields among {self.loss_fields}, but got {unknown}.")
        return wanted

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
            NotReadyError: if the batch is too small for a score; nothing is added then; use ``update`` instead.
        """
        self._refuse_if_synced()
        rows = self.check_rows(self.extract(*args, **kwargs))
        kept = {name: getattr(self, name) for name in self.generated_states}
        count, log = self._update_count, self._row_log
        try:
            for name in self.generated_states:
                default = self._defaults[name]
                setattr(self, name, default.clone() if isinstance(default, Tensor) else [])
            self.add_rows(rows)
            self.note_update()
            self._to_sync = self.dist_sync_on_step
            value: Any = self.compute()
        finally:
            vars(self).update(kept, _row_log=log)
            self._update_count, self._to_sync, self._computed = count, self.sync_on_compute, None
        self.add_rows(rows)
        self.note_update()
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

    def _before_change(self, setting: str, value: Any) -> None:
        """Refuse to change a setting if values with the new one can no longer be computed."""

    @property
    def _level(self) -> float:
        """The failure probability of one look."""
        return self.delta / (self.horizon or 1)
