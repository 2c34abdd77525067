"""The arms of a run, by name, and the questions about all of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tm_bandit.errors import ArmError, InputError
from tm_bandit.execution.local import Sampler
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.base import ArmStats, Policy
from tm_bandit.policies.board import Board
from tm_bandit.pull import Pull
from tm_bandit.selection.arm import Arm
from tm_bandit.selection.verdict import Verdict, judge


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

    def board(self, arms: Iterable[Arm], delta: float) -> Board:
        """Return what a policy sees of some arms.

        Args:
            arms: these arms.
            delta: failure probability of all comparisons together.
        """
        stats, pending, traces = [], {}, {}
        for arm in arms:
            stats.append(arm.stats)
            pending[arm.name], traces[arm.name] = arm.pending, arm.trace
        return Board(stats, pending=pending, spent=self.spent, traces=traces, delta=delta)

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
        board = self.board(arms, delta).only([numbers[arm.name] for arm in arms])
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
