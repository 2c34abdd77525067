"""Arms on their common draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tm_bandit.comparison import Pair

if TYPE_CHECKING:
    from tm_bandit.selection.arm import Arm


class Pairs:
    """The pairs of arms of a run, each compared when it is first asked for.

    A pair at ``n`` samples is a function of the first ``n`` draws of the two arms, and of nothing else: a run that is
    resumed finds the same.

    Args:
        paired: whether arms draw from the same noise; if not, there are no pairs.
    """

    #: Pairs that are remembered: a look at thirty arms asks for some sixty, the next one for others.
    _KEPT = 256

    def __init__(self, paired: bool) -> None:
        self.paired = paired
        self._known: dict[tuple[str, str, int], Pair | None] = {}

    def at(self, first: Arm, second: Arm, n: int) -> Pair | None:
        """Compare two arms that are known at ``n`` samples on their first ``n`` draws; ``None`` if impossible.

        Args:
            first: one arm.
            second: the other.
            n: number of samples of each.
        """
        if not self.paired or n < 2 or first.name == second.name or n not in first.trace or n not in second.trace:
            return None
        if first.name > second.name:
            turned = self.at(second, first, n)
            return None if turned is None else turned._replace(difference=-turned.difference)
        key = (first.name, second.name, n)
        if key not in self._known:
            while len(self._known) >= self._KEPT:
                del self._known[next(iter(self._known))]
            self._known[key] = first.metric.paired(second.metric, n)
        return self._known[key]

    def certificate(self, first: Arm, second: Arm) -> float | None:
        """Return a lower bound of how much larger the loss of one arm is than another's, or ``None``.

        Args:
            first: one arm.
            second: the other.
        """
        n = min(first.stats.num_samples, second.stats.num_samples)
        return first.metric.certificate(second.metric, n) if self.paired and n > 1 else None
