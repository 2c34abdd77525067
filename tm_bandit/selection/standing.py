"""What can be asked of a run at any time; nothing here changes it."""

from __future__ import annotations

from typing import Any

from tm_bandit._arguments import check_count
from tm_bandit.comparison import Comparison, in_units
from tm_bandit.execution.draw import DrawPlan
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.policy import ArmStats, central
from tm_bandit.selection.costs import Costs
from tm_bandit.selection.roster import Roster
from tm_bandit.selection.state import settings_of
from tm_bandit.selection.verdict import Verdict


class Standing:
    """Where a run stands: the half of :class:`~tm_bandit.ModelSelector` that only looks."""

    metric: OptimisticMetric
    delta: float
    _plan: DrawPlan
    _arms: Roster
    _costs: Costs | None

    @property
    def _verdict(self) -> Verdict:
        """What is said about the arms."""
        raise AssertionError("the selector has it")

    @property
    def arms(self) -> list[str]:
        """Names of the arms that have not been retired, in order of registration."""
        return [arm.name for arm in self._arms.values() if arm.retired is None]

    @property
    def retired(self) -> dict[str, str]:
        """The arms that failed or were taken out, with the reason."""
        return self._arms.retired

    @property
    def spent(self) -> int:
        """Samples drawn so far."""
        return self._arms.spent

    @property
    def unit(self) -> str:
        """What the budget counts: ``"samples"``, ``"seconds"``, or ``"cost"`` in the user's own unit."""
        return "samples" if self._costs is None else self._costs.unit

    @property
    def used(self) -> float:
        """How much of the budget is spent, in its unit."""
        return self.spent if self._costs is None else self._arms.cost

    @property
    def best(self) -> str | None:
        """The arm that is recommended now."""
        return self._verdict.best

    def stats(self, arm: str) -> ArmStats:
        """Return the numbers of one arm as the policy sees them."""
        return self._arms.known(arm).stats

    def compare(self, a: str, b: str) -> Comparison:
        """Return by how much the score of ``a`` is larger than that of ``b``, at equal sample counts if possible."""
        board = self._arms.board([self._arms.known(a), self._arms.known(b)], self.spent, self.delta)
        return in_units(board.compare(a, b), central(board[b]), self.metric.score_from_loss)

    def draws(self, arm: str) -> int:
        """Return the index of an arm's next draw: how many batches were drawn, unless one was given back."""
        return self._arms.known(arm).next_draw

    def twins(self) -> dict[str, str]:
        """Return the arms that are the same model as an arm before them: the same rows in two draws or more, always."""
        return self._arms.twins()

    def seed_for(self, arm: str, draw: int, chunk: int = 0) -> int:
        """Return the seed of one batch, or of one chunk of it; with ``pairing="common"`` it is that of every arm."""
        return self._plan.seed_for(arm, check_count("draw", draw, 0), check_count("chunk", chunk, 0))

    def settings(self) -> dict[str, Any]:
        """Return how the run is set up, as plain values."""
        return settings_of(self)  # type: ignore[arg-type]
