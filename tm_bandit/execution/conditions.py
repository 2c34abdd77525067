"""Labels or prompts for the samples: a list in balanced random order, or a function of the draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tm_bandit._device import check_dense
from tm_bandit.errors import InputError, brief
from tm_bandit.execution.draw import accepts, stable_seed

#: A list (or tensor) of labels or prompts, or a function ``(draw, size)`` that returns as many of them.
ConditionsLike = Sequence[Any] | Tensor | Callable[[int, int], Any]


def shuffled(length: int, start: int, count: int, *seed: object) -> list[int]:
    """Return a part of an endless stream of indices, in which every pass over the list is a new permutation.

    So the uses of any two entries of the list differ by at most one, however many samples are drawn. An entry of the
    stream depends only on its position and the seed.

    Args:
        length: length of the list.
        start: position of the first index.
        count: how many indices.
        seed: numbers and strings that decide the permutations.

    Example:
        >>> stream = shuffled(3, 0, 6, "seed")
        >>> sorted(stream[:3]), sorted(stream[3:]), stream[2:5] == shuffled(3, 2, 3, "seed")
        ([0, 1, 2], [0, 1, 2], True)
    """
    places = (divmod(position, length) for position in range(start, start + count))
    return [int(_permutation(length, stable_seed(*seed, turn))[place]) for turn, place in places]


@lru_cache(maxsize=2)  # a draw spans two passes at most, unless the list is shorter than a draw
def _permutation(length: int, seed: int) -> Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))


class Conditions:
    """What samples are conditioned on, one entry per sample.

    Args:
        given: a sequence, which is used in balanced random order (see :func:`shuffled`), or a function
            ``(draw, size)`` that returns a sequence of that size.

    Raises:
        InputError: if it is neither, or empty.

    Example:
        >>> Conditions(["cat", "dog"]).take(draw=0, size=4, seed=(0,)).count("cat")
        2
        >>> Conditions(lambda draw, size: [draw] * size).take(draw=7, size=2, seed=(0,))
        (7, 7)
    """

    def __init__(self, given: ConditionsLike) -> None:
        check_dense(given)
        self._given: Any = given
        if not is_sequence(given):
            if not callable(given):
                raise InputError(
                    f"Expected conditions to be a sequence or a function of (draw, size), but got "
                    f"{type(given).__name__}; hand in a list of labels or prompts."
                )
        elif len(given) == 0:  # type: ignore[arg-type]
            raise InputError(
                "Expected at least one entry in conditions, but got none; leave conditions out if there are none."
            )

    @classmethod
    def of(cls, given: ConditionsLike | None) -> Conditions | None:
        """Return them, or ``None`` if none are given."""
        return None if given is None else cls(given)

    @property
    def kind(self) -> int | str:
        """The length of the list, or ``"function"``: what a saved run can say about them."""
        return len(self._given) if is_sequence(self._given) else "function"

    def take(self, draw: int, size: int, seed: tuple[object, ...]) -> tuple[Any, ...] | Tensor:
        """Return the conditions of one draw: a tensor on the CPU if a tensor was given, else a tuple.

        Args:
            draw: index of the draw.
            size: its samples.
            seed: decides the order of a list.

        Raises:
            InputError: if they cannot be obtained, or a function returns the wrong number of them.
        """
        try:
            taken = self._read(draw, size, seed) if is_sequence(self._given) else self._given(draw, size)
        except Exception as error:  # whatever a user's function or dataset raises
            raise InputError(
                f"Expected conditions for the {size} samples of draw {draw}, but got {brief(error)}; repair conditions."
            ) from error
        if not is_sequence(taken) or len(taken) != size:
            got = f"{len(taken)}" if is_sequence(taken) else f"a {type(taken).__name__}"
            raise InputError(
                f"Expected conditions({draw}, {size}) to return {size} entries, one per sample, but got {got}; return "
                "a sequence with exactly as many entries as were asked for."
            )
        return taken.detach().cpu() if isinstance(taken, Tensor) else tuple(taken)

    def _read(self, draw: int, size: int, seed: tuple[object, ...]) -> Any:
        indices = shuffled(len(self._given), draw * size, size, *seed, "conditions")
        return self._given[indices] if isinstance(self._given, Tensor) else [self._given[index] for index in indices]


def check_conditioned(sampler: Callable[..., Any], whose: str = "the sampler") -> None:
    """Raise ``InputError`` unless a sampler takes conditions.

    Args:
        sampler: the sampler.
        whose: what to call it.
    """
    if not accepts(sampler, "conditions", by_kwargs=True):
        raise InputError(
            f"Expected {whose} to take `conditions=`, because some are given, but it has no such parameter; add it, or "
            "leave conditions out."
        )


def chunk_of(conditions: tuple[Any, ...] | Tensor, chunk: int, size: int) -> tuple[Any, ...] | Tensor:
    """Return the conditions of one chunk of a draw.

    All calls of a sampler are of one size, so the last chunk may hold more samples than the draw needs. These get
    conditions from its beginning, and are cut off afterwards.

    Args:
        conditions: those of the draw; may be empty.
        chunk: index of the chunk.
        size: samples per chunk.

    Example:
        >>> chunk_of(("a", "b", "c"), chunk=1, size=2)
        ('c', 'a')
    """
    if len(conditions) == 0:
        return conditions
    places = [place % len(conditions) for place in range(chunk * size, (chunk + 1) * size)]
    return conditions[places] if isinstance(conditions, Tensor) else tuple(conditions[place] for place in places)


def is_sequence(value: object) -> bool:
    """Whether conditions are a list of some kind: a dataset or an array too, but not a string, which is one prompt."""
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim > 0
    other = isinstance(value, (str, bytes, Mapping, type))
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not other
