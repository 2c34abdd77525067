"""A finite source as a sampler: a shuffled deck from which only the drawn samples are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from tm_bandit._arguments import check_count, check_flag, check_name
from tm_bandit.data.source import SampleSource
from tm_bandit.errors import InputError

T = TypeVar("T")


class SourceExhaustedError(InputError):
    """Every readable sample has been drawn."""


class SourceSampler:
    """Draws samples from a source, without replacement unless told otherwise.

    Args:
        source: where the samples come from.
        name: the arm's name; with ``seed`` it decides the order, so that the order does not depend on the other arms.
        seed: the run's seed.
        replacement: draw each time from all samples; the source is then never used up, but repeated samples add no
            information and the confidence bounds are too narrow.
        skip_unreadable: continue with the next sample when one cannot be read; ``left_out`` lists what could not.
        paired: leave the name out of the order, so that all sources of one length are drawn from in step: sample i of
            one is drawn when sample i of another is.

    Example:
        >>> import numpy as np
        >>> from tm_bandit.data import ArraySource
        >>> sampler = SourceSampler(ArraySource(np.eye(3), "eye.npy"), name="eye", seed=0)
        >>> sampler(2).shape, sampler.remaining
        (torch.Size([2, 3]), 1)
    """

    def __init__(
        self,
        source: SampleSource,
        name: str,
        seed: int = 0,
        replacement: bool = False,
        skip_unreadable: bool = False,
        paired: bool = False,
    ) -> None:
        if not isinstance(source, SampleSource):
            raise InputError(f"Expected a source of samples, but got a {type(source).__name__}; use `open_source`.")
        self.source = source
        self.replacement = check_flag("replacement", replacement)
        self.skip_unreadable = check_flag("skip_unreadable", skip_unreadable)
        self._unreadable: list[str] = []
        seed, name = check_count("seed", seed), check_name("an arm", name)
        text = f"{seed}" if check_flag("paired", paired) else f"{seed}/{name}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        deck = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        self._order = torch.randperm(len(source), generator=deck).tolist()
        self._position = 0

    @property
    def remaining(self) -> int | None:
        """How many samples can still be drawn; ``None`` if that is unlimited."""
        return None if self.replacement else len(self._order) - self._position

    def seek(self, position: int) -> None:
        """Continue after the first ``position`` samples: several processes can share a deck if each is told where.

        If unreadable samples are skipped, it is unknown how many come before, and with replacement it does not matter:
        the sampler then stays where it is.

        Args:
            position: how many samples come before the next.
        """
        if not (self.skip_unreadable or self.replacement):
            self._position = position

    @property
    def left_out(self) -> list[str]:
        """What could not be read, when the source was opened or since."""
        return [*map(str, self.source.unreadable), *self._unreadable]

    def __call__(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Read up to ``num_samples`` samples; fewer come back only when the source is nearly used up.

        Args:
            num_samples: how many are wanted.
            generator: decides what is drawn with replacement; without replacement the order was settled before.

        Raises:
            InputError: if a sample cannot be read.
            SourceExhaustedError: if none is left.
        """
        return torch.stack(self.take(num_samples, self.source.__getitem__, generator))

    def take(self, num_samples: int, read: Callable[[int], T], generator: torch.Generator | None = None) -> list[T]:
        """Read samples one by one with a function of the caller's; otherwise like a call.

        Args:
            num_samples: how many are wanted.
            read: returns the sample at an index of the source.
            generator: as in a call.

        Raises:
            InputError: see there.
        """
        samples: list[T] = []
        num_samples = check_count("num_samples", num_samples, 1)
        while len(samples) < num_samples and (self._order if self.replacement else self.remaining):
            index = self._next(generator)
            try:
                samples.append(read(index))
            except InputError:
                if not self.skip_unreadable:
                    raise
                self._leave_out(index)
        if not samples:
            drawn, path = len(self._order), self.source.path
            raise SourceExhaustedError(f"Expected more samples in {path}, but got all {drawn} already.")
        return samples

    def _next(self, generator: torch.Generator | None) -> int:
        if self.replacement:
            return int(self._order[int(torch.randint(len(self._order), (1,), generator=generator))])
        self._position += 1
        return int(self._order[self._position - 1])

    def _leave_out(self, index: int) -> None:
        """Remember an unreadable sample; with replacement it also leaves the deck, or it would come up forever."""
        self._unreadable.append(self.source.describe(index))
        if self.replacement:
            self._order.remove(index)
            if not self._order:
                raise InputError(f"Expected readable samples in {self.source.path}, but got none.")
