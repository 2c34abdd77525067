"""What is known about the difference of two arms."""

from __future__ import annotations

from typing import NamedTuple


class Comparison(NamedTuple):
    """The difference of two arms' losses at equal sample counts.

    Args:
        n: samples of each arm that the comparison rests on.
        difference: loss of the first arm minus loss of the second; negative if the first is better.
        stderr: standard error of the difference.
        correlation: correlation of the two arms' scores; 0 for arms with independent samples.
        lower: lower end of a confidence interval of the difference; ``-inf`` if nothing can be said.
        upper: its upper end; ``inf`` if nothing can be said.
    """

    n: int
    difference: float
    stderr: float
    correlation: float
    lower: float
    upper: float
