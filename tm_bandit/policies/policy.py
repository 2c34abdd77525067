"""What a policy sees (plain numbers) and what it answers (the name of an arm)."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tm_bandit.policies.board import Board


@dataclass(frozen=True, slots=True)
class ArmStats:
    r"""Everything a policy may know about one arm, as plain numbers.

    All scores are *losses*: smaller is better for every metric (the Frechet distance as it is, the Inception Score as
    :math:`-\log \mathrm{IS}`), so no policy has to know in which direction a metric points.

    A field that the policy did not list in :attr:`Policy.needs` may be ``nan`` or a few pulls old: the selector
    computes only what is asked for, because the plug-in estimate costs far more than the witness.

    Args:
        name: the arm's name.
        pulls: how many batches were drawn from it.
        num_samples: how many samples were drawn from it.
        witness: mean of the witness scores, which lies on the optimistic side of the truth in expectation; for bounds
            that have no witness it is the plug-in estimate.
        stderr: standard error of ``witness``.
        estimate: the plug-in estimate, which lies on the pessimistic side of the truth in expectation.
        optimistic: the optimistic end of the confidence interval (a lower bound of the loss).
        pessimistic: the pessimistic end of the confidence interval (an upper bound of the loss).
        debiased: the near-unbiased estimate, for comparing arms with different ``num_samples``.
        debiased_stderr: its standard error.
        cost: what its pulls have cost so far, as far as :meth:`tm_bandit.ModelSelector.tell` was told.
    """

    name: str
    pulls: int
    num_samples: int
    witness: float = float("nan")
    stderr: float = float("nan")
    estimate: float = float("nan")
    optimistic: float = float("nan")
    pessimistic: float = float("nan")
    debiased: float = float("nan")
    debiased_stderr: float = float("nan")
    cost: float = 0.0


#: An arm's numbers at growing sample counts that are the same for all arms: ``{num_samples: numbers}``, ascending.
Trace = dict[int, ArmStats]


def lowest(arms: Sequence[ArmStats], score: Callable[[ArmStats], float]) -> ArmStats:
    """Return the arm with the lowest score; ties go to the fewest samples, then to the earliest registered.

    A score that is not a number never wins: its arm must not be pulled forever for a lack of information.

    Args:
        arms: the arms to choose from, in order of registration.
        score: maps an arm's numbers to the score.

    Example:
        >>> from tm_bandit.policies import ArmStats
        >>> a, b = ArmStats("a", 4, 20, estimate=2.0), ArmStats("b", 2, 10, estimate=2.0)
        >>> lowest([a, b], lambda arm: arm.estimate).name
        'b'
        >>> lowest([a, ArmStats("broken", 2, 10)], lambda arm: arm.estimate).name
        'a'
    """

    def key(arm: ArmStats) -> tuple[float, int]:
        value = score(arm)
        return (math.inf if math.isnan(value) else value, arm.num_samples)

    return min(arms, key=key)


def central(arm: ArmStats) -> float:
    """Return the arm's least biased loss: the debiased one, else the midpoint, else the plug-in estimate."""
    if not math.isnan(arm.debiased):
        return arm.debiased
    middle = 0.5 * (arm.witness + arm.estimate)
    return arm.estimate if math.isnan(middle) else middle


class Policy(ABC):
    """Chooses the arm to pull next.

    A policy is a small object over numbers. It never sees a model, a tensor or a metric, and it needs no code for
    burn-in (the selector pulls each newcomer until it has ``burn_in`` samples before the policy is asked about it). It
    is handed a :class:`~tm_bandit.policies.Board`, which is a sequence of :class:`ArmStats` and a little more.

    Example::

        class Laziest(Policy):
            needs = frozenset()
            def choose(self, board, rng):
                return min(board, key=lambda arm: arm.num_samples).name
    """

    #: The fields of :class:`ArmStats` that :meth:`choose` reads and that must be fresh. The other fields are as old as
    #: the last time the arm's sample count had grown by five per cent.
    needs: frozenset[str] = frozenset({"optimistic"})

    #: Whether arms that are likely worse than the leader are left out, whatever ends the run. Where prices differ, such
    #: a policy is asked once each arm has been seen, and not only after their burn-in.
    races: bool = False

    def prepare(self, *, num_arms: int, budget: int, batch_size: int) -> None:  # noqa: B027 - optional hook
        """Learn, once before the first choice, what there is to spend (successive halving plans its rungs here)."""

    def describe(self) -> str:
        """Return what is worth printing before a run, such as a plan of the rungs; empty for most policies."""
        return ""

    @abstractmethod
    def choose(self, board: Board, rng: random.Random) -> str:
        """Return the name of the arm to pull next.

        Args:
            board: the active arms that are past their burn-in (see :attr:`races`), in order of registration. Never
                empty.
            rng: the only source of randomness that a policy may use; it is seeded per pull, so runs are reproducible.
        """

    def recommend(self, board: Board) -> str | None:
        """Name the arm this policy believes to be the best, or ``None`` to leave that to the selector's own rule.

        Args:
            board: the active arms, in order of registration. Not asked while one of them is in its burn-in.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and strings that :meth:`load_state_dict` needs to continue; empty for a stateless policy."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - optional hook
        """Restore what :meth:`state_dict` returned."""
