"""Policies that aim to name the best arm, not to spend little on the others."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tm_bandit._arguments import check_name, check_number
from tm_bandit.policies.board import Board
from tm_bandit.policies.policy import ArmStats, Policy, lowest


class LUCB(Policy):
    r"""Play the leader against its most dangerous rival (Kalyanakrishnan et al., 2012).

    The leader is the arm with the smallest pessimistic loss, the challenger the arm with the smallest optimistic loss
    among the others; of the two, the one with the wider interval is pulled. The run can stop when the challenger's
    optimistic loss is above the leader's pessimistic one, and these are the two numbers that have to meet.

    Example:
        >>> import random
        >>> from tm_bandit.policies import LUCB, ArmStats, Board
        >>> board = Board([ArmStats("a", 9, 90, optimistic=1.0, pessimistic=2.0),
        ...                ArmStats("b", 9, 90, optimistic=1.5, pessimistic=4.0),
        ...                ArmStats("c", 9, 90, optimistic=3.0, pessimistic=9.0)])
        >>> LUCB().choose(board, random.Random(0))
        'b'
    """

    needs = frozenset({"optimistic"})

    def choose(self, board: Board, rng: random.Random) -> str:
        """Return the leader or its challenger, whichever is known less precisely."""
        leader = lowest(board, lambda arm: arm.pessimistic)
        rivals = [arm for arm in board if arm.name != leader.name]
        if not rivals:
            return leader.name
        challenger = lowest(rivals, lambda arm: arm.optimistic)
        return lowest([leader, challenger], lambda arm: arm.optimistic - arm.pessimistic).name


class Rung(NamedTuple):
    """One round of successive halving: how many arms take part and how many samples each has at its end."""

    arms: int
    samples_per_arm: int


class SuccessiveHalving(Policy):
    r"""Give all arms the same number of samples, keep the better half, and repeat (Karnin et al., 2013).

    Arms are compared only at equal :math:`n`, so the bias of the plug-in estimate, which falls with :math:`n`, cannot
    fool it. The budget is divided evenly over the rungs, :math:`\lceil \log_2 G \rceil` of them if arms are halved. An
    arm that joins later first catches up with the current rung; samples that are left at the end go to the last
    survivor.

    Args:
        reduction_factor: each rung keeps one arm in ``reduction_factor``, rounded up, and at least one arm goes.
        rank_by: the field of :class:`~tm_bandit.policies.ArmStats` that is compared at the end of a rung.

    Raises:
        InputError: if ``reduction_factor`` is not above 1, or ``rank_by`` is not a name.

    Example:
        >>> from tm_bandit.policies import SuccessiveHalving
        >>> policy = SuccessiveHalving()
        >>> policy.prepare(num_arms=8, budget=2400, batch_size=10)
        >>> print(policy.describe())
        rung   arms   samples per arm
           1      8               100
           2      4               300
           3      2               700
    """

    def __init__(self, reduction_factor: float = 2.0, rank_by: str = "witness") -> None:
        self.reduction_factor = check_number("reduction_factor", reduction_factor, above=1)
        self.rank_by = check_name("the field to rank by", rank_by)
        self.needs = frozenset({rank_by})
        self.rungs: list[Rung] = []
        self._level = 0
        self._out: list[str] = []

    def prepare(self, *, num_arms: int, budget: int, batch_size: int) -> None:
        """Plan the rungs."""
        sizes = [num_arms]
        while sizes[-1] > 1:
            # With a small factor, rounding up would keep all of them forever.
            sizes.append(max(1, min(sizes[-1] - 1, math.ceil(sizes[-1] / self.reduction_factor))))
        sizes = sizes[:-1] or [1]
        self.rungs, total = [], 0
        for size in sizes:
            total += max(1, budget // len(sizes) // size // batch_size) * batch_size
            self.rungs.append(Rung(size, total))
        self._level, self._out = 0, []

    def describe(self) -> str:
        """Return the table of rungs."""
        lines = ["rung   arms   samples per arm"]
        lines += [f"{i + 1:4d} {rung.arms:6d} {rung.samples_per_arm:17d}" for i, rung in enumerate(self.rungs)]
        return "\n".join(lines)

    def choose(self, board: Board, rng: random.Random) -> str:
        """Return the survivor with the fewest samples, after closing every rung that is complete."""
        alive = self._alive(board)
        while self._level < len(self.rungs) and len(alive) > 1:
            goal = self.rungs[self._level].samples_per_arm
            if min(arm.num_samples for arm in alive) < goal:
                break
            self._level += 1
            size = self.rungs[self._level].arms if self._level < len(self.rungs) else 1
            order = sorted(alive, key=self._rank)
            self._out += [arm.name for arm in order[size:]]
            alive = self._alive(board)
        return lowest(alive, board.promised).name

    def recommend(self, board: Board) -> str | None:
        """Name the best of the survivors of the last complete rung."""
        return min(self._alive(board), key=self._rank).name

    def state_dict(self) -> dict[str, Any]:
        """Return the plan, the current rung and the arms that are out."""
        return {"rungs": [list(rung) for rung in self.rungs], "level": self._level, "out": list(self._out)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.rungs = [Rung(*rung) for rung in state["rungs"]]
        self._level, self._out = int(state["level"]), list(state["out"])

    def _alive(self, arms: Sequence[ArmStats]) -> list[ArmStats]:
        alive = [arm for arm in arms if arm.name not in self._out]
        # Every survivor may have been retired since; then those that lost to it are all there is.
        return alive or list(arms)

    def _rank(self, arm: ArmStats) -> float:
        value = float(getattr(arm, self.rank_by))
        return math.inf if math.isnan(value) else value
