"""One arm: a named sampler, its metric and the numbers derived from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from typing import Any

from torch import Tensor

from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.base import ArmStats, Trace
from tm_bandit.selection.sampling import Sampler, takes_generator

#: Samples from which on there is an estimate.
FEWEST_SAMPLES = 2


@dataclass
class Arm:
    """A named sampler with its own copy of the metric.

    The numbers that are dear to compute are refreshed only when the sample count has grown by the factor ``growth``,
    and during the burn-in when it has doubled. The counts at which that happens are the same for all arms, so any two
    arms can be compared at equal counts.
    """

    name: str
    metric: OptimisticMetric
    sampler: Sampler | None
    growth: float
    joined: dict[str, int]
    stats: ArmStats = field(init=False)
    trace: Trace = field(init=False, default_factory=dict)
    retired: str | None = field(init=False, default=None)
    held: bool = field(init=False, default=False)
    next_refresh: int = field(init=False, default=1)
    _fresh: ArmStats | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.stats = ArmStats(self.name, 0, 0)
        self.with_generator = self.sampler is not None and takes_generator(self.sampler)

    def add(self, rows: Tensor, needs: Iterable[str], min_samples: int) -> bool:
        """Add rows and refresh the numbers; return whether the dear ones were refreshed too.

        Args:
            rows: checked rows.
            needs: fields that must be fresh.
            min_samples: below this count, an arm's burn-in, it is only looked at to be recommended.
        """
        self.metric.update_rows(rows)
        self._fresh = None
        pulls, count = self.stats.pulls + 1, self.stats.num_samples + rows.shape[0]
        ready = count >= min_samples
        # An arm that gets no more than its burn-in can be judged all the same.
        ends_burn_in = ready and self.stats.num_samples < min_samples
        due = ends_burn_in or (count >= FEWEST_SAMPLES and pulls >= self.next_refresh)
        fields = self.metric.loss_fields if due else tuple(needs) if ready else ()
        fresh: dict[str, Any] = self.metric.losses(fields) if fields else {}
        self.stats = replace(self.stats, pulls=pulls, num_samples=count, **fresh)
        if due:
            self.next_refresh = max(pulls + 1, math.ceil(self.growth * pulls)) if ready else 2 * pulls
            self.trace[count] = self.stats
        return due

    def is_candidate(self, min_samples: int) -> bool:
        """Whether a verdict is about this arm: it is not retired, nor held before the end of its burn-in.

        Args:
            min_samples: the burn-in.
        """
        return self.retired is None and not (self.held and self.stats.num_samples < min_samples)

    def fresh_stats(self) -> ArmStats:
        """Return the numbers with all fields up to date, without changing what the policy sees."""
        if self.retired is not None or not self.trace or self.stats.num_samples in self.trace:
            return self.stats
        if self._fresh is None:
            self._fresh = replace(self.stats, **self.metric.losses(self.metric.loss_fields))  # type: ignore[arg-type]
        return self._fresh

    def retire(self, reason: str) -> None:
        """Keep the last numbers for the result and let go of the samples, and of what only rivals are compared by.

        Args:
            reason: shown in the result.
        """
        if self.retired is None:
            self.stats = self.fresh_stats()
            self.metric.reset()
            self.trace, self.joined = {}, {}
        self.retired = reason

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the sampler as tensors, numbers and strings."""
        return {
            "name": self.name,
            "retired": self.retired,
            "held": self.held,
            "joined": dict(self.joined),
            "next_refresh": self.next_refresh,
            "stats": _numbers(self.stats),
            "trace": [_numbers(stats) for stats in self.trace.values()],
            "metric": {} if self.retired is not None else self._metric_state(),
        }

    def _metric_state(self) -> dict[str, Tensor | list[Tensor]]:
        return {name: _detached(value) for name, value in self.metric.metric_state.items() if name != "identity"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._fresh = None
        self.retired = state["retired"]
        self.held = bool(state["held"])
        self.joined = dict(state["joined"])
        self.next_refresh = int(state["next_refresh"])
        self.stats = ArmStats(self.name, **state["stats"])
        snapshots = [ArmStats(self.name, **numbers) for numbers in state["trace"]]
        self.trace = {stats.num_samples: stats for stats in snapshots}
        device = self.metric.device
        lost = {name for name in self.metric.metric_state if name != "identity"} - set(state["metric"])
        if lost and self.retired is None:
            raise ValueError(f"the arm {self.name!r} has no {', '.join(sorted(lost))}")
        for name, value in state["metric"].items():
            moved = [v.to(device) for v in value] if isinstance(value, list) else value.to(device)
            setattr(self.metric, name, moved)
        # torchmetrics asks these two whether there is anything to compute, and whether it was computed already.
        self.metric._update_count = self.stats.pulls
        self.metric._computed = None


_NUMBERS = tuple(item.name for item in fields_of(ArmStats) if item.name != "name")


def _numbers(stats: ArmStats) -> dict[str, Any]:
    # Not `asdict`, which copies every number as if it were a tree: a training has thousands of them to save.
    return {name: getattr(stats, name) for name in _NUMBERS}


def _detached(value: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    # A clone, because saving a view of a large tensor would write the whole of it.
    if isinstance(value, list):
        return [item.detach().cpu().clone() for item in value]
    return value.detach().cpu().clone()
