"""What every bound answers, whoever invented it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Generic, Literal, Protocol, TypeVar

#: What an interval promises: to hold at all looks together, at one sample count (or as many as `horizon` says), or
#: nothing.
Guarantee = Literal["anytime", "finite", "none"]


class HasEstimate(Protocol):
    """A view of samples that knows their plain loss."""

    def estimate(self) -> float:
        """Return the plug-in loss."""


View = TypeVar("View", bound=HasEstimate, contravariant=True)


class Bound(ABC, Generic[View]):
    """Turns a view of the samples into losses; it holds no samples itself, so all metrics share one object.

    A view computes what it is asked for, when it is asked: a bound should ask for no more than it needs.
    """

    guarantee: Guarantee = "none"
    #: Whether :meth:`centre` has a standard error that says something.
    standard_errors: bool = False
    #: Whether it scores single rows, which then have to be kept.
    keeps_rows: bool = False
    #: The fewest samples with which it says anything.
    min_samples: int = 2

    @abstractmethod
    def optimistic(self, view: View) -> float:
        """Return the loss that the truth is hardly below."""

    @abstractmethod
    def pessimistic(self, view: View) -> float:
        """Return the loss that the truth is hardly above; infinite if the bound has no such side."""

    def ends(self, view: View) -> tuple[float, float]:
        """Return both ends of the interval, the optimistic one first."""
        return self.optimistic(view), self.pessimistic(view)

    def centre(self, view: View) -> tuple[float, float]:
        """Return what the optimistic loss is an offset from, and its standard error; 0 if there is none."""
        return view.estimate(), 0.0

    def burn_in_met(self, view: View) -> bool:
        """Whether the samples are as many as the guarantee asks for; asked from ``min_samples`` on."""
        return True


class NoBound(Bound[HasEstimate]):
    """No bound: the optimistic loss is the plain one, and nothing is known about where the truth is.

    Args:
        min_samples: the fewest samples of which there is an estimate.
    """

    def __init__(self, min_samples: int) -> None:
        self.min_samples = min_samples

    def optimistic(self, view: HasEstimate) -> float:
        """Return the plain loss."""
        return view.estimate()

    def pessimistic(self, view: HasEstimate) -> float:
        """Return infinity."""
        return math.inf

    def ends(self, view: HasEstimate) -> tuple[float, float]:
        """Return the whole line."""
        return -math.inf, math.inf
