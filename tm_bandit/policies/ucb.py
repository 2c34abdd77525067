"""Optimism in the face of uncertainty: FD-UCB and IS-UCB, by the metric's bound."""

from __future__ import annotations

import copy
import math
import random
from typing import Literal

from tm_bandit._arguments import check_choice, check_number
from tm_bandit.errors import InputError
from tm_bandit.policies.board import Board
from tm_bandit.policies.policy import ArmStats, Policy, central, lowest

#: Width of the index in units of the textbook's root, which supposes the worst case; chosen on the benchmark,
#: see benchmarks/results/constants.md.
_WIDTH = 0.3
#: The standard error of a few samples is itself a guess: this many of them over n are added to the width. Without it an
#: arm with an unlucky first batch can be left alone forever.
_FIRST = 15.0


class UCB(Policy):
    r"""Pull the arm whose optimistic loss is the smallest.

    With ``index="bound"`` the optimistic loss is the metric's own bound, whatever it is: this is the paper's FD-UCB /
    IS-UCB with ``bound="paper"``, the authors' program with ``bound="authors"``, Naive-UCB with ``bound="naive"``.

    With ``index="witness"`` (what the selector takes when the metric has ``bound="witness"``) it is

    .. math:: I = \max(W - z s_W, D - z s_D), \qquad z = 0.3\, c \sqrt{2 \ln(1 + t)} + \frac{15}{n}

    where :math:`W` is the mean of the witness scores, :math:`D` the debiased estimate, :math:`s_W` and :math:`s_D` are
    their standard errors, :math:`n` is the arm's number of samples and :math:`t` the number of pulls of all arms that
    are compared. Both terms are optimistic, so the larger one says more: :math:`W` is optimistic in itself but loose,
    :math:`D` is centred but noisy with many dimensions and few samples. The term :math:`15 / n` keeps an arm with
    an unlucky first batch in the race. Samples that are under way count as if they had confirmed what is known: with
    :math:`m` of them, :math:`n` becomes :math:`n + m` and the standard errors shrink by :math:`\sqrt{n / (n + m)}`.

    Arms that draw from the same noise are compared with the leader, the arm with the smallest debiased loss: the index
    of an arm is its difference to the leader minus :math:`z` times the error of that difference, on the draws that both
    have, and the leader's index is zero. If the leader has fewer draws than the arm with the smallest index, the leader
    is pulled, because more draws of the other one would add nothing.

    Args:
        exploration: the factor :math:`c`. The metric's own bound has no such factor.
        index: see above; ``None`` leaves it to the metric.

    Raises:
        InputError: if an argument is outside its range.

    Example:
        >>> import random
        >>> from tm_bandit.policies import UCB, ArmStats, Board
        >>> board = Board([ArmStats("a", 9, 90, witness=3.0, stderr=0.1, debiased=3.2, debiased_stderr=0.1),
        ...                ArmStats("b", 1, 10, witness=2.4, stderr=0.5, debiased=3.3, debiased_stderr=0.5)])
        >>> UCB().choose(board, random.Random(0))
        'b'
    """

    def __init__(self, *, exploration: float = 1.0, index: Literal["witness", "bound"] | None = None) -> None:
        if index is not None:
            check_choice("index", index, ("witness", "bound"))
        if index == "bound" and exploration != 1.0:
            raise InputError(f"Expected no exploration factor with index='bound', but got {exploration}; leave it out.")
        self.exploration = check_number("exploration", exploration, least=0)
        self.index = index
        # For the witness index, numbers as old as the selector's last refresh are good enough.
        self.needs = frozenset({"optimistic"} if index == "bound" else ())

    def with_index(self, index: Literal["witness", "bound"]) -> UCB:
        """Return this policy with the index that was left open.

        Args:
            index: what to use if this policy has none.

        Raises:
            InputError: if this policy has the witness index, and the metric has nothing but a bound.
        """
        if self.index == "witness" and index == "bound":
            raise InputError(
                "Expected a bound with standard errors for index='witness', but got none; use bound='witness'."
            )
        made = copy.copy(self)
        UCB.__init__(made, exploration=self.exploration, index=self.index or index)
        return made

    def choose(self, board: Board, rng: random.Random) -> str:
        """Return the arm with the smallest index."""
        if self.index == "bound":
            return lowest(board, lambda arm: arm.optimistic).name
        arms = board.arms
        pulls = 0
        for arm in arms:
            pulls += arm.pulls
        growth = _WIDTH * self.exploration * math.sqrt(2.0 * math.log1p(pulls))
        if board.paired:
            return _by_difference(board, growth)

        def index(arm: ArmStats) -> tuple[float, int]:
            n = board.promised(arm)
            z = _width(growth, arm.num_samples, n)
            by_witness, by_debiased = arm.witness - z * arm.stderr, arm.debiased - z * arm.debiased_stderr
            value = by_witness if math.isnan(by_debiased) else max(by_debiased, by_witness)
            return math.inf if math.isnan(value) else value, n

        return min(arms, key=index).name


def _width(growth: float, told: int, promised: int) -> float:
    """Return how many standard errors of the told samples are subtracted."""
    return (growth + _FIRST / promised) * math.sqrt(told / promised)


def _by_difference(board: Board, growth: float) -> str:
    """Return the arm whose optimistic difference to the leader is the smallest; the leader's own is zero."""

    def value(arm: ArmStats) -> float:
        loss = central(arm)
        return math.inf if math.isnan(loss) else loss

    leader = min(board, key=value)
    most, least, chosen = board.promised(leader), 0.0, leader
    for arm in board:
        if arm is leader:
            continue
        found, promised = board.compare(arm.name, leader.name), board.promised(arm)
        n = min(promised, most)
        optimistic = found.difference - _width(growth, found.n, n) * found.stderr
        if math.isnan(optimistic):
            optimistic = -math.inf
        if optimistic < least:
            # They are compared on the draws that both have, so the one with fewer is next.
            least, chosen = optimistic, arm if promised <= most else leader
    return chosen.name
