"""The arms of a run: each a named sampler with its metric, its numbers and its pulls under way; and all of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from typing import Any, Literal, NamedTuple

from torch import Tensor

from tm_bandit.errors import ArmError, InputError
from tm_bandit.execution.local import Sampler, carry_out, takes_generator
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.base import ArmStats, Policy, Trace
from tm_bandit.policies.board import Board
from tm_bandit.pull import Pull
from tm_bandit.selection.verdict import Verdict, judge

#: Samples from which on there is an estimate.
FEWEST_SAMPLES = 2

_NUMBERS = tuple(item.name for item in fields_of(ArmStats) if item.name != "name")


@dataclass
class Arm:
    """A named sampler with its own copy of the metric.

    The numbers that are dear to compute are refreshed only when the sample count has grown by the factor ``growth``,
    and during the burn-in when it has doubled. The counts at which that happens are the same for all arms, so any two
    arms can be compared at equal counts.

    Rows are added in the order of their draws, whatever the order in which they are told: rows that are told while an
    earlier draw is under way wait for it. So an arm's numbers do not depend on which worker was faster.
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
    #: Samples that were asked for and are not counted yet.
    pending: int = field(init=False, default=0)
    _under_way: dict[int, Pull] = field(init=False, default_factory=dict)
    _waiting: dict[int, tuple[Tensor, float]] = field(init=False, default_factory=dict)
    _given_back: set[int] = field(init=False, default_factory=set)
    _fresh: ArmStats | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.stats = ArmStats(self.name, 0, 0)
        self.with_generator = self.sampler is not None and takes_generator(self.sampler)
        self.fields = tuple(name for name in self.metric.loss_fields if name in _NUMBERS)

    # ---- pulls ------------------------------------------------------------------------------------------------

    @property
    def next_draw(self) -> int:
        """Index of the next draw: the first that was given back, or a new one."""
        if self._given_back:
            return min(self._given_back)
        return self.stats.pulls + len(self._under_way) + len(self._waiting)

    def reserve(self, pull: Pull) -> Pull:
        """Put a pull under way; its draw must be :attr:`next_draw`."""
        self._given_back.discard(pull.draw)
        self._under_way[pull.draw] = pull
        self.pending += pull.size
        return pull

    def expects(self, pull: Pull) -> bool:
        """Whether this very pull is under way."""
        return self._under_way.get(pull.draw) == pull

    def carry_out(self, pull: Pull, metric: OptimisticMetric, samples: Literal["images", "features"]) -> Tensor:
        """Return the rows of a pull, drawn here and now.

        Args:
            pull: what to draw.
            metric: turns samples into rows.
            samples: what the sampler returns.

        Raises:
            InputError: if the arm has no sampler.
            ArmError: see :func:`~tm_bandit.execution.carry_out`.
        """
        if self.sampler is None:
            raise InputError(
                f"Expected a sampler for arm {self.name!r}, but got None; use tell() or add_arm(..., sampler)."
            )
        return carry_out(pull, self.sampler, metric, samples=samples, with_generator=self.with_generator)

    def checked(self, pull: Pull, rows: Tensor) -> Tensor:
        """Return the rows of a pull where the arm's metric keeps its own.

        Args:
            pull: the pull.
            rows: what was told.

        Raises:
            ArmError: if they cannot be used.
        """
        if not isinstance(rows, Tensor):
            raise ArmError(
                f"Expected rows as a tensor or an exception, but got a {type(rows).__name__}; hand in a tensor with "
                "one row per sample."
            )
        try:
            rows = self.metric.check_rows(rows.to(self.metric.device))
        except (InputError, NotImplementedError) as error:
            raise ArmError(str(error)) from error
        if rows.shape[0] != pull.size:
            raise ArmError(f"Expected {pull.size} rows, but got {rows.shape[0]}; hand in one batch at a time.")
        return rows

    def give_back(self, pull: Pull) -> None:
        """Take a pull back; its draw comes next, unless the arm has been retired."""
        del self._under_way[pull.draw]
        if self.retired is None:
            self._given_back.add(pull.draw)
            self.pending -= pull.size

    def tell(self, pull: Pull, rows: Tensor, cost: float) -> None:
        """Keep the checked rows of a pull until :meth:`ready` hands them out."""
        del self._under_way[pull.draw]
        self._waiting[pull.draw] = (rows, cost)

    def ready(self) -> tuple[Tensor, float] | None:
        """Hand out the rows (and the cost) that are next to be added, or ``None`` if they wait for an earlier draw."""
        if not self._waiting:
            return None
        draw = min(self._waiting)
        if self._under_way and min(self._under_way) < draw:
            return None
        rows, cost = self._waiting.pop(draw)
        self.pending -= rows.shape[0]
        return rows, cost

    # ---- numbers ----------------------------------------------------------------------------------------------

    def add(self, rows: Tensor, cost: float, needs: Iterable[str], min_samples: int) -> bool:
        """Add rows and refresh the numbers; return whether the dear ones were refreshed too.

        Args:
            rows: checked rows.
            cost: what it cost to draw them.
            needs: fields that must be fresh.
            min_samples: below this count, an arm's burn-in, it is only looked at to be recommended.
        """
        self.metric.update_rows(rows)
        self._fresh = None
        before = self.stats
        pulls, count = before.pulls + 1, before.num_samples + rows.shape[0]
        ready = count >= min_samples
        # An arm that gets no more than its burn-in can be judged all the same.
        ends_burn_in = ready and before.num_samples < min_samples
        due = ends_burn_in or (count >= FEWEST_SAMPLES and pulls >= self.next_refresh)
        fields = self.fields if due else tuple(needs) if ready else ()
        fresh: dict[str, Any] = self.metric.losses(fields) if fields else {}
        self.stats = replace(before, pulls=pulls, num_samples=count, cost=before.cost + cost, **fresh)
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
            self._fresh = replace(self.stats, **self.metric.losses(self.fields))  # type: ignore[arg-type]
        return self._fresh

    def retire(self, reason: str) -> None:
        """Keep the last numbers for the result and let go of the samples, and of what only rivals are compared by.

        Pulls under way stay so: whoever carries them out cannot know, and may tell them.

        Args:
            reason: shown in the result.
        """
        if self.retired is None:
            self.stats = self.fresh_stats()
            self.metric.reset()
            self.trace, self.joined = {}, {}
            self._waiting, self._given_back, self.pending = {}, set(), 0
        self.retired = reason

    # ---- state ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the sampler as tensors, numbers and strings; pulls under way count as given back."""
        active = self.retired is None
        return {
            "name": self.name,
            "retired": self.retired,
            "held": self.held,
            "joined": dict(self.joined),
            "next_refresh": self.next_refresh,
            "given_back": sorted({*self._given_back, *self._under_way, *self._waiting}) if active else [],
            "stats": _numbers(self.stats),
            "trace": [_numbers(stats) for stats in self.trace.values()],
            "metric": self._metric_state() if active else {},
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
        # Version 0.1 knew no pulls under way.
        self._given_back = set(state.get("given_back", ()))
        self.stats = self._loaded(state["stats"])
        snapshots = [self._loaded(numbers) for numbers in state["trace"]]
        self.trace = {stats.num_samples: stats for stats in snapshots}
        if self.retired is None:
            self.metric.load_states(state["metric"], self.stats.pulls)

    def _loaded(self, numbers: Mapping[str, Any]) -> ArmStats:
        # Version 0.1 saved two numbers more, which nobody looks at any longer.
        return ArmStats(self.name, **{name: value for name, value in numbers.items() if name in _NUMBERS})


class Survey(NamedTuple):
    """Where a run stands.

    Args:
        drawn: the arms that may be drawn from.
        newcomers: those of them that are in their burn-in.
        spent: samples drawn so far.
        pending: samples under way.
    """

    drawn: list[Arm]
    newcomers: list[Arm]
    spent: int
    pending: int


class Roster(dict[str, Arm]):
    """The arms in order of registration, those included that have been retired."""

    def check_new(self, name: object, sampler: object) -> None:
        """Raise ``InputError`` unless an arm of this name can join.

        Args:
            name: its name.
            sampler: its sampler, or ``None``.
        """
        if not isinstance(name, str) or not name:
            raise InputError(f"Expected the name of an arm to be a non-empty string, but got {name!r}; give it a name.")
        if name in self:
            raise InputError(f"Expected a new name for the arm, but got {name!r}, which exists; choose another name.")
        if sampler is not None and not callable(sampler):
            raise InputError(f"Expected a callable sampler for arm {name!r}, but got {type(sampler).__name__}.")

    def join(self, name: str, metric: OptimisticMetric, sampler: Sampler | None, growth: float) -> None:
        """Let an arm join.

        Args:
            name: its name.
            metric: its own metric.
            sampler: its sampler, or ``None``.
            growth: see :class:`~tm_bandit.selection.arm.Arm`.
        """
        joined = {arm.name: arm.stats.num_samples for arm in self.values() if arm.retired is None}
        self[name] = Arm(name, metric, sampler, growth, joined)

    @property
    def retired(self) -> dict[str, str]:
        """The arms that failed or were taken out, with the reason."""
        return {arm.name: arm.retired for arm in self.values() if arm.retired is not None}

    @property
    def spent(self) -> int:
        """Samples drawn so far."""
        return sum([arm.stats.num_samples for arm in self.values()])

    def known(self, name: str) -> Arm:
        """Return an arm.

        Raises:
            InputError: if there is none of this name.
        """
        if name not in self:
            raise InputError(f"Expected one of the arms {list(self)}, but got {name!r}; add it with add_arm().")
        return self[name]

    def active(self) -> list[Arm]:
        """Return the arms that have not been retired.

        Raises:
            InputError: if there never was an arm.
            ArmError: if all have been retired.
        """
        if not self:
            raise InputError("Expected at least one arm, but got none; add one with add_arm().")
        active = [arm for arm in self.values() if arm.retired is None]
        if not active:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.retired.items())
            raise ArmError(f"Expected at least one working arm, but all of them have been retired ({reasons}).")
        return active

    def survey(self, burn_in: int) -> Survey:
        """Return where a run stands.

        Args:
            burn_in: samples that an arm needs before a policy is asked about it.

        Raises:
            InputError: if there never was an arm.
            ArmError: if all have been retired.
        """
        drawn, newcomers, spent, pending = [], [], 0, 0
        for arm in self.values():
            spent += arm.stats.num_samples
            if arm.retired is None:
                pending += arm.pending
                if not arm.held:
                    drawn.append(arm)
                    if arm.stats.num_samples < burn_in:
                        newcomers.append(arm)
        if not drawn:
            self.active()
        return Survey(drawn, newcomers, spent, pending)

    def under_way(self, pull: Pull) -> Arm:
        """Return the arm of a pull.

        Raises:
            InputError: if this very pull is not under way.
        """
        if not isinstance(pull, Pull):
            raise InputError(f"Expected a Pull that ask() returned, but got {type(pull).__name__}.")
        arm = self.known(pull.arm)
        if not arm.expects(pull):
            raise InputError(
                f"Expected a pull that is under way, but got draw {pull.draw} of {pull.arm!r}, which was never asked, "
                "or was told or given back before; tell or give back each pull of ask() once."
            )
        return arm

    def drawn_since(self, arm: Arm) -> int:
        """Return the most samples that any single arm drew since this one joined; zero for a held arm.

        A held arm cannot catch up; it is compared by what there is.

        Args:
            arm: the arm.
        """
        if arm.held:
            return 0
        names = list(self)
        later = names[names.index(arm.name) :]
        # Arms that are neither had been retired before this one joined.
        before = {**arm.joined, **dict.fromkeys(later, 0)}
        return max(self[name].stats.num_samples - count for name, count in before.items() if name in self)

    @staticmethod
    def board(arms: Iterable[Arm], spent: int, delta: float) -> Board:
        """Return what a policy sees of some arms.

        Args:
            arms: these arms.
            spent: samples drawn from all arms.
            delta: failure probability of all comparisons together.
        """
        stats, pending, traces = [], {}, {}
        for arm in arms:
            stats.append(arm.stats)
            pending[arm.name], traces[arm.name] = arm.pending, arm.trace
        return Board(stats, pending, spent, traces, delta)

    def warn_of_a_small_budget(self, burn_in: int, budget: int) -> None:
        """Warn if the budget does not even cover the burn-in of the arms.

        Args:
            burn_in: samples that each arm needs.
            budget: samples that may be drawn in all.
        """
        needed = sum(max(0, burn_in - arm.stats.num_samples) for arm in self.active() if not arm.held)
        left = max(budget - self.spent, 0)
        if needed > left:
            warnings.warn(
                f"The burn-in of the arms needs {needed} more samples, but {left} are left of the budget: the answer "
                "rests on next to nothing. Raise the budget, or lower burn_in or batch_size.",
                stacklevel=3,
            )

    def verdict(
        self,
        numbers: Mapping[str, ArmStats],
        *,
        burn_in: int,
        delta: float,
        epsilon: float,
        certifies: bool,
        policy: Policy | None,
    ) -> Verdict:
        """Say which arm is the best and how sure that is.

        Args:
            numbers: the arms' numbers.
            burn_in: samples that an arm needs to be judged.
            delta: failure probability of all arms together.
            epsilon: differences up to this do not matter.
            certifies: whether the intervals promise anything.
            policy: may have an opinion of its own; ``None`` if it has not begun.
        """
        candidates = [arm for arm in self.values() if arm.is_candidate(burn_in)]
        arms = [arm for arm in candidates if arm.trace]
        board = self.board(arms, self.spent, delta).only([numbers[arm.name] for arm in arms])
        settled = bool(arms) and all(arm.num_samples >= burn_in for arm in board)
        verdict = judge(
            board,
            drawn_since={arm.name: self.drawn_since(arm) for arm in arms},
            epsilon=epsilon,
            preferred=policy.recommend(board) if settled and policy is not None else None,
            certifies=certifies,
        )
        # Nobody has won against arms of which nothing is known yet.
        return verdict if len(arms) == len(candidates) else replace(verdict, level="open")


def _numbers(stats: ArmStats) -> dict[str, Any]:
    # Not `asdict`, which copies every number as if it were a tree: a training has thousands of them to save.
    return {name: getattr(stats, name) for name in _NUMBERS}


def _detached(value: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    # A clone, because saving a view of a large tensor would write the whole of it.
    if isinstance(value, list):
        return [item.detach().cpu().clone() for item in value]
    return value.detach().cpu().clone()
