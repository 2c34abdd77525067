"""A numeric axis: where a value is on it, and which round numbers are written next to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_PAD = 0.04  # of the axis, so that no dot is on its border
_APART, _LETTER = 0.1, 0.026  # of the axis, between two numbers beside it: at least, and for each of their letters


class Axis(NamedTuple):
    """An axis that is linear, or linear near zero and logarithmic beyond: the inverse hyperbolic sine of the value.

    Args:
        low: its lower end.
        high: its upper end.
        knee: where it turns logarithmic, on both sides of zero; infinite if it is linear.

    Example:
        >>> Axis(0.0, 10.0).place(2.5), round(Axis(0.0, 1000.0, knee=0.001).place(1.0), 2)
        (0.25, 0.52)
    """

    low: float
    high: float
    knee: float = math.inf

    @classmethod
    def around(cls, values: Sequence[float], knee: float = math.inf) -> Axis:
        """Return the axis that includes all of these values.

        Args:
            values: finite numbers.
            knee: see :class:`Axis`.
        """
        bare = cls(0.0, 1.0, knee)
        low, high = (bare._bent(end(values, default=0.0)) for end in (min, max))
        pad = _PAD * (high - low) or 0.5 * max(1.0, abs(high))
        return cls(bare._straight(low - pad), bare._straight(high + pad), knee)

    def place(self, value: float) -> float:
        """Return where a value is: 0 at the lower end, 1 at the upper end, the nearer of them if it is outside."""
        low, high = self._bent(self.low), self._bent(self.high)
        return (self._bent(min(max(value, self.low), self.high)) - low) / (high - low)

    def ticks(self) -> list[float]:
        """Return round numbers on the axis, in order and with room for their digits."""
        if math.isinf(self.knee):
            return nice_ticks(self.low, self.high)
        powers = range(math.floor(math.log10(self.knee)), math.ceil(math.log10(max(abs(self.low), abs(self.high)))) + 1)
        chosen = [0.0]
        for factor in (1, 3):
            for power in reversed(powers):
                for tick in (factor * 10.0**power, -factor * 10.0**power):
                    alone = all(abs(self.place(tick) - self.place(other)) >= _room(tick, other) for other in chosen)
                    if self.low <= tick <= self.high and alone:
                        chosen.append(float(f"{tick:.0e}"))
        return sorted(tick for tick in chosen if self.low <= tick <= self.high)

    def _bent(self, value: float) -> float:
        return value if math.isinf(self.knee) else math.asinh(value / self.knee)

    def _straight(self, value: float) -> float:
        return value if math.isinf(self.knee) else self.knee * math.sinh(value)


def _room(one: float, two: float) -> float:
    """Return how far apart two numbers must be, whose halves lie between their middles."""
    return max(_APART, _LETTER * sum(len(f"{tick:.3g}") for tick in (one, two)) / 2)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers that cover an interval.

    Example:
        >>> nice_ticks(0.0, 9.3)
        [0.0, 2.0, 4.0, 6.0, 8.0]
        >>> nice_ticks(3.1, 3.1)
        [3.1]
    """
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """Return a number of an axis in a few letters.

    Example:
        >>> tick_text(0.25), tick_text(12000.0)
        ('0.25', '12,000')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
