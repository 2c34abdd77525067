"""What the engine must know about a metric, as the metric states it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tm_bandit.bounds.bound import Guarantee


@dataclass(frozen=True)
class Traits:
    """Properties of a metric with its bound.

    Args:
        higher_is_better: the direction of the score; losses always point down.
        centre: where the loss called ``witness`` lies on average: on the optimistic side of the truth (then the
            debiased loss differs from it), or on the truth itself.
        guarantee: what the interval promises: to hold at all looks together, at one sample count, or nothing. Only a
            bound that promises something can certify a winner, and only its failure probability is divided among
            arms: one that promises nothing is reproduced with the ``delta`` it was written for.
        reference: what the metric needs to know of real samples: moments, rows or nothing.
        bound: name of the bound, for reports.
        standard_errors: whether ``stderr`` is informative; if not, it is 0.
        certifies_from: fewest samples of an arm with which its interval certifies anything, whatever its ends are.
        interval: whether ``optimistic`` and ``pessimistic`` are the ends of an interval; if not, nothing is known about
            where the truth is, and a bandit uses the estimate.
    """

    higher_is_better: bool
    centre: Literal["optimistic", "unbiased"]
    guarantee: Guarantee
    reference: Literal["moments", "rows", "none"]
    bound: str = ""
    standard_errors: bool = True
    certifies_from: int = 0
    interval: bool = True

    @property
    def certifies(self) -> bool:
        """Whether intervals that do not overlap prove anything."""
        return self.guarantee != "none"
