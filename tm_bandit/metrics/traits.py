"""What the engine must know of a metric, said by the metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Traits:
    """The character of a metric.

    Args:
        higher_is_better: direction of the score.
        centre: where the ``witness`` loss lies in expectation: ``"optimistic"`` (on the optimistic side of the truth)
            or ``"unbiased"``.
        guarantee: what the intervals promise: ``"anytime"`` (at all sample counts at once), ``"finite"`` (at one look),
            or ``"none"``.
        reference: what the metric compares samples with: ``"moments"`` of real samples, their ``"rows"``, or
            ``"none"``.
    """

    higher_is_better: bool
    centre: Literal["optimistic", "unbiased"]
    guarantee: Literal["anytime", "finite", "none"]
    reference: Literal["moments", "rows", "none"]
