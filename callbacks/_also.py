"""Other metrics of the arms, on the samples that the bandit draws anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from tm_bandit.callbacks._arms import TrainedArm
from tm_bandit.callbacks._reference import lacks_reference
from tm_bandit.callbacks._report import Say, Summary
from tm_bandit.errors import InputError
from tm_bandit.metrics.base import OptimisticMetric


def check_also(also: Metric | MetricCollection | None, conditional: bool = False) -> MetricCollection | None:
    """Return the metrics as a collection.

    Args:
        also: what the user gave.
        conditional: whether samples have conditions.

    Raises:
        InputError: if it is not a metric, or if a metric needs more than there is.
    """
    if also is None:
        return None
    if isinstance(also, Metric):
        also = MetricCollection([also])
    if not isinstance(also, MetricCollection):
        raise InputError(f"Expected also= to be a MetricCollection or a metric, but got {type(also).__name__}.")
    for name, metric in also.items():
        if not isinstance(metric, OptimisticMetric):
            continue
        if metric.needs_conditions and not conditional:
            raise InputError(
                f"Expected metrics of samples alone in also=, but got {name}, which needs conditions; give conditions=."
            )
        if lacks_reference(metric):
            raise InputError(f"Expected metrics in also= to have a reference, but got {name}, which has none.")
    return also


@dataclass(eq=False)
class Companions:
    """Statistics of the other metrics, arm by arm; every rank adds its own samples, and values are synced.

    They live as long as the training run: a resumed one starts over.

    Args:
        metrics: the metrics, or ``None`` if there are none.
        warn: gets text and kind of an error, and reports the first of a kind; a companion never ends training.
    """

    metrics: MetricCollection | None
    warn: Say
    _of: dict[str, MetricCollection] = field(default_factory=dict, init=False)

    def _get(self, metrics: MetricCollection, arm: str, device: torch.device) -> MetricCollection:
        if arm not in self._of:
            self._of[arm] = metrics.to(device).clone()
        return self._of[arm]

    def add(self, arm: str, samples: Sequence[Tensor], count: int, conditions: Sequence[Any] = ()) -> None:
        """Add samples of an arm, as its sampler returned them.

        Args:
            arm: name of the arm.
            samples: this rank's chunks of a pull.
            count: how many samples of them count.
            conditions: those of the chunks, if there are any; metrics that take ``conditions=`` get them.
        """
        if self.metrics is None or not count:
            return
        try:
            batch = torch.cat(list(samples))[:count]
            metrics = self._get(self.metrics, arm, batch.device)
            given = [entry for chunk in conditions for entry in chunk][:count]
            metrics.update(batch, **({"conditions": given} if given else {}))
        except Exception as error:  # whatever a metric makes of the samples of a broken arm
            self.warn(f"the metrics of also= could not take samples of {arm} ({error})", "also")

    def extend(self, summary: Summary, step: int, arms: Mapping[str, TrainedArm], device: torch.device) -> Summary:
        """Add what they say about the newest and the best arm to a summary, and forget dropped arms; on all ranks.

        Args:
            summary: what is known after a validation.
            step: the step of the newest arms.
            arms: the arms by name.
            device: see :meth:`values`.
        """
        newest = [row["arm"] for row in summary.result.table() if row["arm"] in arms and arms[row["arm"]].step == step]
        values = self.values({"current": next(iter(newest), None), "best": summary.best_arm or None}, device)
        self._of = {name: metrics for name, metrics in self._of.items() if name in summary.arms}
        return replace(summary, values={**summary.values, **values})

    def values(self, arms: Mapping[str, str | None], device: torch.device) -> dict[str, float]:
        """Return what is logged, by name without the prefix; on all ranks, with the same arms.

        Args:
            arms: names of arms by the word under which they are logged.
            device: where to make the statistics of an arm that has no samples on this rank.
        """
        found: dict[str, float] = {}
        if self.metrics is None:
            return found
        for word, arm in arms.items():
            for name, metric in self._get(self.metrics, arm, device).items() if arm else ():
                value = self._value(metric, f"{name} of also= has no value for {arm}")
                if value is not None:
                    found[f"{word}/{name}"] = value
        return found

    def _value(self, metric: Any, complaint: str) -> float | None:
        """Return the plain score: what our metrics think best, and what others compute (of a pair, the mean)."""
        try:
            value = metric.debiased().value if isinstance(metric, OptimisticMetric) else metric.compute()
            return float(value[0] if isinstance(value, (tuple, list)) else value)
        except Exception as error:  # too few samples, or none
            self.warn(f"{complaint} ({error})", "also")
            return None
