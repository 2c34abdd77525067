"""What a policy sees, and the one place that says how two arms compare."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from tm_bandit.comparison import Comparison, anytime_margin
from tm_bandit.policies.base import ArmStats, Trace, central


def compare(first: ArmStats, second: ArmStats, *, num_arms: int = 2, delta: float = 0.05) -> Comparison:
    r"""Compare two arms whose samples are independent.

    The difference is that of the least biased losses. The interval is a heuristic: it holds the differences of both the
    witness means and the plug-in estimates, which err on opposite sides, each with as many standard errors as
    :func:`~tm_bandit.comparison.anytime_margin` says. At unequal counts their biases do not cancel, and the interval is
    infinite.

    Args:
        first: one arm's numbers.
        second: the other arm's numbers, at the same sample count if there is one.
        num_arms: number of arms that are compared with each other.
        delta: failure probability of all intervals together.

    Example:
        >>> a = ArmStats("a", 20, 100, witness=2.0, stderr=0.1, estimate=4.0, debiased=3.0, debiased_stderr=0.3)
        >>> b = ArmStats("b", 20, 100, witness=1.0, stderr=0.1, estimate=3.0, debiased=1.5, debiased_stderr=0.4)
        >>> found = compare(a, b)
        >>> found.difference, found.stderr, round(found.lower, 2), round(found.upper, 2)
        (1.5, 0.5, 0.43, 1.57)
    """
    n = min(first.num_samples, second.num_samples)
    lower, upper = -math.inf, math.inf
    by_witness, by_estimate = first.witness - second.witness, first.estimate - second.estimate
    if first.num_samples == second.num_samples > 0 and first.stderr > 0.0 and second.stderr > 0.0:
        width = anytime_margin(n, delta / num_arms) * math.hypot(first.stderr, second.stderr)
        if not math.isnan(by_witness + by_estimate + width):
            lower, upper = min(by_witness, by_estimate) - width, max(by_witness, by_estimate) + width
    error = math.hypot(first.debiased_stderr, second.debiased_stderr)
    return Comparison(n, central(first) - central(second), error, 0.0, lower, upper)


@dataclass(frozen=True)
class Board(Sequence[ArmStats]):
    """The arms that a policy may choose from, as a sequence of their numbers.

    Args:
        arms: the arms' numbers, in order of registration.
        pending: samples under way by arm: asked for, but not told yet.
        spent: samples drawn from all arms so far.
        traces: the arms' numbers at earlier sample counts.
        delta: failure probability of all comparisons together.

    Example:
        >>> board = Board([ArmStats("a", 2, 10, estimate=2.0), ArmStats("b", 2, 10, estimate=3.0)], pending={"b": 5})
        >>> [board.promised(arm) for arm in board]
        [10, 15]
        >>> board.compare("a", "b").difference
        -1.0
    """

    arms: Sequence[ArmStats]
    pending: Mapping[str, int] = field(default_factory=dict)
    spent: float = 0
    traces: Mapping[str, Trace] = field(default_factory=dict, repr=False)
    delta: float = 0.05

    def only(self, arms: Sequence[ArmStats]) -> Board:
        """Return a board with some of the arms."""
        return replace(self, arms=arms)

    def promised(self, arm: ArmStats) -> int:
        """Return the samples that an arm has or will have once everything under way is told."""
        return arm.num_samples + self.pending.get(arm.name, 0)

    def compare(self, a: str, b: str) -> Comparison:
        """Compare two arms at the largest sample count at which both are known, or by their latest numbers.

        Args:
            a: name of one arm.
            b: name of the other.

        Raises:
            KeyError: if there is no such arm.
        """
        one, two = self.traces.get(a, {}), self.traces.get(b, {})
        n = next((n for n in reversed(one) if n in two), None)
        first, second = (self[a], self[b]) if n is None else (one[n], two[n])
        return compare(first, second, num_arms=len(self.arms), delta=self.delta)

    @overload
    def __getitem__(self, key: int | str) -> ArmStats: ...

    @overload
    def __getitem__(self, key: slice) -> Sequence[ArmStats]: ...

    def __getitem__(self, key: int | str | slice) -> ArmStats | Sequence[ArmStats]:
        """Return an arm by position or name, or several."""
        if not isinstance(key, str):
            return self.arms[key]
        for arm in self.arms:
            if arm.name == key:
                return arm
        raise KeyError(key)

    def __iter__(self) -> Iterator[ArmStats]:
        return iter(self.arms)

    def __len__(self) -> int:
        return len(self.arms)
