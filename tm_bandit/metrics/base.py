"""The surface that both metrics share, and the only one that the selector and the callback rely on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor
from torchmetrics import Metric


class Interval(NamedTuple):
    """A two-sided confidence interval; a side about which nothing can be said is ``-inf`` / ``+inf``."""

    lower: Tensor
    upper: Tensor


class Debiased(NamedTuple):
    """A near-unbiased estimate and its standard error."""

    value: Tensor
    stderr: Tensor


#: The names that :meth:`OptimisticMetric.losses` understands: the float fields of ``ArmStats``.
LOSS_FIELDS = ("witness", "stderr", "estimate", "optimistic", "pessimistic", "debiased", "debiased_stderr")


class OptimisticMetric(Metric, ABC):
    """A streaming score of a generator with an optimistic bound.

    Subclasses are thin: they store rows or sums, sync them, and delegate to :mod:`tm_bandit.functional`.
    """

    @abstractmethod
    def extract(self, inputs: Tensor) -> Tensor:
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
        """Whether there are enough samples for the bound's guarantee to hold."""

    @property
    @abstractmethod
    def min_samples(self) -> int:
        """The fewest samples with which the bound says anything at all (what ``burn_in="auto"`` draws)."""

    @abstractmethod
    def losses(self, fields: Iterable[str]) -> dict[str, float]:
        """Return the asked-for fields of ``ArmStats`` as floats in which smaller is better; compute nothing else."""

    @abstractmethod
    def score_from_loss(self, loss: float) -> float:
        """Translate a loss (or one end of an interval of losses) back into the metric's own unit."""
