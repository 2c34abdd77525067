"""What every bound provides."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Literal

#: What an interval promises: to hold at all looks together, at one sample count (or as many as `horizon` says), or
#: nothing.
Guarantee = Literal["anytime", "finite", "none"]


class Bound(ABC):
    """Turns a view of the samples into losses; it holds no samples itself, so all metrics share one object.

    A view belongs to a kind of metric: ``RowView`` to the Frechet distance, ``SumView`` to the Inception Score. It
    computes values on demand, so a bound should ask for no more than it needs.
    """

    guarantee: Guarantee = "none"
    #: Whether :meth:`centre` has an informative standard error.
    standard_errors: bool = False
    #: Whether it scores single rows, which then have to be kept.
    keeps_rows: bool = False
    #: Whether there are ends at all.
    interval: bool = True
    #: The fewest samples for which it is informative.
    min_samples: int = 2
    #: The fewest samples with which the guarantee holds; below it :meth:`ends` is vacuous.
    certifies_from: int = 0

    @abstractmethod
    def ends(self, view: Any) -> tuple[float, float]:
        """Return the losses that the truth is unlikely to be below or above; infinite if the bound has no such side.

        This is the promise. :meth:`optimistic` and :meth:`pessimistic` may be sharper, as arms are only compared by
        them.
        """

    def optimistic(self, view: Any) -> float:
        """Return the loss by which a bandit chooses: the optimistic end."""
        return self.ends(view)[0]

    def pessimistic(self, view: Any) -> float:
        """Return the pessimistic end."""
        return self.ends(view)[1]

    def centre(self, view: Any) -> tuple[float, float]:
        """Return the loss that the optimistic one is offset from, and its standard error, or 0 if that is not known."""
        return view.estimate(), 0.0

    def burn_in_met(self, view: Any) -> bool:
        """Whether there are as many samples as the guarantee requires; asked from ``min_samples`` on."""
        return True


class NoBound(Bound):
    """No bound: the optimistic loss is the plain one, and nothing is known about where the truth is.

    Args:
        min_samples: the fewest samples that give an estimate.
    """

    interval = False

    def __init__(self, min_samples: int) -> None:
        self.min_samples = min_samples

    def ends(self, view: Any) -> tuple[float, float]:
        """Return the whole line."""
        return -math.inf, math.inf

    def optimistic(self, view: Any) -> float:
        """Return the plain loss, which makes a bandit greedy."""
        return self.centre(view)[0]
