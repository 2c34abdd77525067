"""Baseline policies, and a randomised one."""

from __future__ import annotations

import random

from tm_bandit._arguments import check_number
from tm_bandit.errors import InputError
from tm_bandit.policies.board import Board
from tm_bandit.policies.policy import Policy, lowest


class Thompson(Policy):
    r"""Pull the arm with the smallest draw from :math:`\mathcal N(W, (s \cdot \mathrm{se})^2)`.

    Args:
        scale: :math:`s`, the factor on the standard error of the witness mean :math:`W`. As :math:`W` is already
            optimistic, less than one is better.

    Raises:
        InputError: if ``scale`` is negative.
    """

    needs = frozenset({"witness", "stderr"})

    def __init__(self, scale: float = 0.5) -> None:
        self.scale = check_number("scale", scale, least=0)

    def choose(self, board: Board, rng: random.Random) -> str:
        """Return the arm with the smallest draw."""
        draws = {arm.name: arm.witness + self.scale * arm.stderr * rng.gauss(0.0, 1.0) for arm in board}
        return lowest(board, lambda arm: draws[arm.name]).name


class Greedy(Policy):
    """Pull the arm with the smallest plug-in estimate.

    With the Frechet distance this locks in: the estimate of an arm that was pulled less is too high for that reason
    alone, so it is never pulled again.
    """

    needs = frozenset({"estimate"})

    def choose(self, board: Board, rng: random.Random) -> str:
        """Return the arm with the smallest estimate."""
        return lowest(board, lambda arm: arm.estimate).name


class EpsilonGreedy(Greedy):
    """Greedy, but with a small probability of pulling a random arm.

    Args:
        epsilon: that probability.

    Raises:
        InputError: if ``epsilon`` is not a probability.
    """

    def __init__(self, epsilon: float = 0.05) -> None:
        self.epsilon = check_number("epsilon", epsilon, least=0)
        if self.epsilon > 1.0:
            raise InputError(f"Expected epsilon in [0, 1], but got {epsilon}; 0.05 is the default.")

    def choose(self, board: Board, rng: random.Random) -> str:
        """Return the arm with the smallest estimate, or any."""
        if rng.random() < self.epsilon:
            return rng.choice(board).name
        return super().choose(board, rng)


class Uniform(Policy):
    """Round robin: pull the arm with the fewest samples, those under way included."""

    needs = frozenset()

    def choose(self, board: Board, rng: random.Random) -> str:
        """Return the arm with the fewest samples."""
        return lowest(board, board.promised).name


class Random(Policy):
    """Pull any arm, each with the same probability."""

    needs = frozenset()

    def choose(self, board: Board, rng: random.Random) -> str:
        """Return any arm."""
        return rng.choice(board).name
