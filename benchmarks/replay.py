# ruff: noqa: D102 - the methods of the replaying metric are those of the real one
"""Each arm's numbers are computed once and shared by all policies that look at them.

The selector seeds samples by (seed, arm, draw), so two policies see the same samples of the same arm after the same
number of pulls. A stream computes the numbers with the real metric, as far as anybody asks; the selector then runs on a
metric that looks them up. Nothing is approximated by that; what is held between refreshes is held in the selector too.
The bounds of the baselines subtract a bonus from one and the same estimate, so they share a stream, and only what the
baselines look at is computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tm_bandit.execution.draw import stable_seed
from tm_bandit.metrics import OptimisticMetric, Traits
from tm_bandit.selection.setup import arm_delta
from tm_bandit.simulation import Scenario, SimulatedArm

#: The bounds whose numbers come from one stream, and what of these numbers is needed; ``None`` means all of them.
FAMILIES: dict[tuple[str, ...], Sequence[str] | None] = {
    ("witness",): None,
    ("authors", "naive"): ("estimate", "optimistic"),
}


def family(bound: str) -> tuple[str, ...]:
    """Return the bounds that share their stream with a bound."""
    return next(bounds for bounds in FAMILIES if bound in bounds)


class Stream:
    """The numbers of one arm after each pull, by bound."""

    def __init__(self, scenario: Scenario, arm: SimulatedArm, position: int, bound: str, seed: int, **how) -> None:
        self.bounds = family(bound)
        template = scenario.metric(self.bounds[0])
        initial = len(scenario.arms) - sum(pull > 0 for pull in scenario.joins.values())
        self.metric = template.fork(arm_delta(template, initial, position + 1))
        self.arm, self.seed = arm, seed
        self.batch_size: int = how["batch_size"]
        self.growth: float = 1.0 + how["refresh"]
        needed = FAMILIES[self.bounds]
        self.fields = self.metric.loss_fields if needed is None else needed
        if self.bounds == ("witness",):
            self.fresh: Sequence[str] = ("witness", "stderr", "optimistic")
        else:
            self.fresh = self.fields if how["always"] else ()
        unknown = dict.fromkeys(self.metric.loss_fields, math.nan)
        self.records: list[dict[str, dict[str, float]]] = [dict.fromkeys(self.bounds, unknown)]
        self.next_refresh = 1

    def at(self, pull: int, bound: str) -> dict[str, float]:
        """Return all numbers of a bound after a pull; the expensive ones may be as old as the last refresh."""
        while len(self.records) <= pull:
            self._pull()
        return self.records[pull][bound]

    def _pull(self) -> None:
        pull = len(self.records)
        generator = torch.Generator().manual_seed(stable_seed(self.seed, self.arm.name, pull - 1, 0))
        self.metric.update_rows(self.arm.sample(self.batch_size, generator=generator))
        due = pull >= self.next_refresh
        if due:
            self.next_refresh = max(pull + 1, math.ceil(self.growth * pull))
        fields = self.fields if due else self.fresh
        last = self.records[-1]
        self.records.append({bound: {**last[bound], **self._losses(fields, bound)} for bound in self.bounds})

    def _losses(self, fields: Sequence[str], bound: str) -> dict[str, float]:
        if not fields:
            return {}
        # The samples, and all that is derived from them, are the same for every bound of the family.
        self.metric.bound = bound
        return self.metric.losses(fields)


class Replay(OptimisticMetric):
    """A metric that looks its numbers up; a row holds the number of the arm it comes from."""

    higher_is_better = False
    full_state_update = False

    def __init__(self, streams: Sequence[Stream], template: OptimisticMetric) -> None:
        super().__init__()
        self.streams, self.template = streams, template
        self.bound, self.delta = template.bound, template.delta
        self.loss_fields = template.loss_fields
        self.add_state("pulls", torch.tensor(0), dist_reduce_fx="sum")
        self.index = -1

    def __deepcopy__(self, memo: dict) -> Replay:
        return type(self)(self.streams, self.template)

    @property
    def traits(self) -> Traits:
        return self.template.traits

    def extract(self, inputs: Tensor) -> Tensor:
        return inputs

    def check_rows(self, rows: Tensor) -> Tensor:
        return rows

    def add_rows(self, rows: Tensor) -> None:
        self.index = int(rows[0, 0])
        self.pulls = self.pulls + 1

    def _now(self) -> dict[str, float]:
        return self.streams[self.index].at(int(self.pulls), self.bound)

    @property
    def num_samples(self) -> int:
        return int(self.pulls)

    @property
    def min_samples(self) -> int:
        return self.template.min_samples

    def losses(self, fields: Iterable[str]) -> dict[str, float]:
        now = self._now()
        return {name: now[name] for name in fields}

    def score_from_loss(self, loss: float) -> float:
        return self.template.score_from_loss(loss)


class ReplayUp(Replay):
    """The same for scores where higher is better."""

    higher_is_better = True


def replayed(scenario: Scenario, seed: int, *, batch_size: int = 5, refresh: float = 0.05, always: bool = False):
    """Return the scenario with streams in place of samplers, for one trial.

    Args:
        scenario: the real one.
        seed: seed of the trial; the selector must be given the same.
        batch_size: samples per pull.
        refresh: growth of the sample count after which the expensive numbers are refreshed.
        always: compute what the baselines need at every pull (small dimensions), not only at a refresh.
    """
    streams: dict[tuple[str, ...], list[Stream]] = {}
    how = {"batch_size": batch_size, "refresh": refresh, "always": always}

    def metric(bound: str) -> Replay:
        key = family(bound)
        if key not in streams:
            streams[key] = [Stream(scenario, arm, i, bound, seed, **how) for i, arm in enumerate(scenario.arms)]
        kind = ReplayUp if scenario.higher_is_better else Replay
        return kind(streams[key], scenario.metric(bound))

    def sampler(index: int):
        return lambda num_samples: torch.full((num_samples, 1), float(index))

    arms = [SimulatedArm(arm.name, sampler(i), arm.score) for i, arm in enumerate(scenario.arms)]
    return Scenario(scenario.name, arms, metric, scenario.joins, scenario.higher_is_better)
