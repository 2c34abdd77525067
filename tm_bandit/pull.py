"""A pull as a value: it can be sent to a worker, repeated and written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

#: Default number of samples per pull: if it is small, a clearly worse arm costs little.
BATCH_SIZE = 10


@dataclass(frozen=True)
class Pull:
    """One batch to be drawn from one arm.

    Args:
        arm: name of the arm.
        draw: which of the arm's batches this is, counted from zero.
        size: samples to draw.
        seed: seed of the samples.
        conditions: what the samples are to be conditioned on, one entry per sample (a tensor if they were given as
            one); empty without conditions. They follow from the rest: pulls that differ in nothing else are equal.

    Example:
        >>> Pull("ema", draw=3, size=5, seed=17)
        Pull(arm='ema', draw=3, size=5, seed=17, conditions=())
    """

    arm: str
    draw: int
    size: int
    seed: int
    conditions: tuple[Any, ...] | Tensor = field(default=(), compare=False)
