"""The race: FD-UCB and IS-UCB on differences."""

from __future__ import annotations

import random
from collections.abc import Mapping

from tm_bandit.policies.board import Board
from tm_bandit.policies.policy import Policy


class Race(Policy):
    r"""Pull the arms that may still be the best, in step, and leave the others alone.

    Optimism as in the paper, on the quantity that can be known precisely: an arm stays in the race while its
    *optimistic difference* to the leader, the lower end of :meth:`~tm_bandit.policies.Board.compare`, is not above
    zero. Arms that draw from the same noise have most of their error in common, so near ties are told apart with a
    fraction of the samples that each score by itself would need. The remaining arms have equal numbers of samples, so
    biases that fall with the count cancel as well; one that joins late has the fewest and catches up first. Arms that
    seem worse, by 1.5 standard errors, wait until the race is decided without them, so that the samples go to those
    that are still in contention; like all others, they are ruled out only by the whole margin.

    If samples of some arms cost more than those of others, the race begins after the first batch of each, and the
    comparison with the leader that will have cost the least after its next pull is next. Two arms are compared on the
    draws that they have in common, so a rival that is ahead of the leader waits for it, and so does a leader that is
    ahead of all rivals. Cheap arms are told apart first, and an expensive leader draws in step with its rivals. With
    equal costs this is the same as above.

    Example:
        >>> import random
        >>> from tm_bandit.policies import ArmStats, Board, Race
        >>> Race().choose(Board([ArmStats("a", 9, 90), ArmStats("b", 8, 80)]), random.Random(0))
        'b'
    """

    needs = frozenset()
    races = True

    def choose(self, board: Board, rng: random.Random) -> str:
        """Return the arm with the fewest samples, or of the cheapest comparison, what is under way included."""
        pending, prices = board.pending, board.prices
        if not prices:
            return min(board.arms, key=lambda arm: arm.num_samples + pending.get(arm.name, 0)).name
        size = max(arm.num_samples // max(arm.pulls, 1) for arm in board)
        counts = {arm.name: board.promised(arm) + size for arm in board}
        costs = _comparisons(counts, prices, board.best)
        return min(costs, key=lambda name: costs[name])


def _comparisons(counts: Mapping[str, int], prices: Mapping[str, float], leader: str | None) -> dict[str, float]:
    """Return, for each arm that a comparison waits for, what the cheapest such comparison will have cost.

    Args:
        counts: samples of each arm after its next pull.
        prices: cost of a sample by arm.
        leader: the leader; if it is not there, an arm counts by itself.
    """
    if leader is None or leader not in counts or len(counts) == 1:
        return {name: count * prices[name] for name, count in counts.items()}
    has = counts[leader]
    rivals = {name: count for name, count in counts.items() if name != leader}
    partners = {name: prices[leader] for name, count in rivals.items() if count <= has}
    if waiting := [prices[name] for name, count in rivals.items() if count >= has]:
        partners[leader] = min(waiting)
    return {name: count * (prices[name] + partners[name]) for name, count in counts.items() if name in partners}
