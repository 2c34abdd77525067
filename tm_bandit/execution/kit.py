"""What a worker holds: the arms' samplers and the feature network; it gets pulls and returns rows."""

from __future__ import annotations

import os
import pickle
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from tm_bandit._failures import keep_trace
from tm_bandit.errors import BanditError, InputError, brief
from tm_bandit.execution.conditions import chunk_of
from tm_bandit.execution.draw import Sampler, carry_out, chunk_seed, draw_rows, takes_generator
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.pull import Pull


class Factory:
    """A sampler that is built where it is needed, once in each process: for what cannot be pickled, or is large.

    Args:
        build: a function at the top level of a module; it returns the sampler.
        args: its arguments.
        kwargs: its keyword arguments.

    Example:
        >>> def build(shift):
        ...     return lambda num_samples, generator: shift + torch.randn(num_samples, 2, generator=generator)
        >>> Factory(build, 3.0)(4, generator=torch.Generator()).shape
        torch.Size([4, 2])
    """

    def __init__(self, build: Callable[..., Sampler], *args: Any, **kwargs: Any) -> None:
        if not callable(build):
            raise InputError(f"Expected a function that returns a sampler, but got {type(build).__name__}.")
        self._plan = (build, args, kwargs)
        self._sampler: Sampler | None = None

    def __call__(self, num_samples: int, generator: torch.Generator, **conditions: Any) -> Tensor:
        """Draw a batch; the first call builds the sampler."""
        if self._sampler is None:
            build, args, kwargs = self._plan
            self._sampler = build(*args, **kwargs)
            self._with_generator = takes_generator(self._sampler)
        extra = {"generator": generator} if self._with_generator else {}
        return self._sampler(num_samples, **extra, **conditions)

    def __getstate__(self) -> dict[str, Any]:
        return {"_plan": self._plan, "_sampler": None}


@dataclass
class Kit:
    """Everything needed to carry out pulls.

    Args:
        samplers: the samplers by the names of their arms.
        metric: turns samples into rows.
        samples: ``"features"`` if samplers already return rows.
        chunk_size: samples per call of a sampler; ``None`` draws a pull in one call.
    """

    samplers: Mapping[str, Sampler]
    metric: OptimisticMetric
    samples: Literal["images", "features"] = "images"
    chunk_size: int | None = None
    #: Gets the first samples of each arm, if they are images and drawn in this process, one call at a time.
    seen: Callable[..., None] | None = None
    #: How many samples of each arm :attr:`seen` gets at least.
    shown: int = 0
    #: Where it was made, and its number: two runs may use the same workers.
    owner: int = field(default_factory=os.getpid)
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def rows(self, pull: Pull, chunks: Iterable[int] | None = None, threaded: bool = False) -> Tensor:
        """Return the rows of a pull, or of some chunks of it.

        A sampler with a method ``seek(position)`` is told how many of the arm's samples come before a chunk.

        Args:
            pull: what to draw.
            chunks: indices of chunks, which are all of the same size; without them, the rows of the whole pull.
            threaded: other threads draw at the same time, so the global random states are left alone.

        Raises:
            ArmError: see :func:`~tm_bandit.execution.carry_out`, also for the other errors.
            InputError: if the arm has no sampler, or one that needs the global random states in a thread.
        """
        size = self.chunk_size or pull.size
        count = -(-pull.size // size)
        wanted = range(count) if chunks is None else chunks
        sampler = self.samplers.get(pull.arm)
        if sampler is None:
            raise InputError(f"Expected a sampler for arm {pull.arm!r}, but got None; give it one with add_arm().")
        if threaded and not takes_generator(sampler):
            raise InputError(
                f"Expected samplers that take generator= for workers that are threads, but that of arm {pull.arm!r} "
                "does not: threads share the global random state. Add the parameter, or use processes."
            )
        parts: list[Tensor] = []
        batches: list[Tensor] = []
        early = pull.draw * pull.size < self.shown
        seen = self.seen if early and self.samples == "images" and not threaded else None
        note = None if seen is None else batches.append
        for index in wanted:
            chunk = index % count  # rows past the end of the pull are cut off, whatever they are
            if hasattr(sampler, "seek"):
                sampler.seek(pull.draw * pull.size + chunk * size)
            part = part_of(pull, chunk, size)
            if threaded:
                rows = draw_rows(
                    sampler, part.size, part.seed, self.metric, samples=self.samples, conditions=part.conditions
                )
            else:
                generator = takes_generator(sampler)
                rows = carry_out(part, sampler, self.metric, samples=self.samples, with_generator=generator, seen=note)
            parts.append(rows)
        if seen is not None:
            seen(pull, *batches)
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        return rows if chunks is not None else rows[: pull.size]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "seen": None}  # the run stays where it is

    def pack(self) -> bytes:
        """Return the kit as bytes for another process.

        Raises:
            InputError: if a part of it cannot be pickled; the message names it.
        """
        try:
            return pickle.dumps(self)
        except Exception as error:
            for name, sampler in self.samplers.items():
                self._check(f"the sampler of arm {name!r}", sampler, error)
            self._check("the metric with its feature network", self.metric, error)
            raise

    @staticmethod
    def _check(what: str, part: object, error: Exception) -> None:
        try:
            pickle.dumps(part)
        except Exception as reason:
            raise InputError(
                f"Expected {what} to go to another process, but it cannot be pickled ({brief(reason)}); define it at "
                "the top level of a module, or give tm_bandit.execution.Factory(build, ...), where build is a function "
                "at the top level of a module that returns the sampler."
            ) from error


def part_of(pull: Pull, chunk: int, size: int) -> Pull:
    """Return one chunk of a pull as a pull of its own.

    Args:
        pull: the whole.
        chunk: index of the chunk.
        size: samples per chunk; see :func:`~tm_bandit.execution.conditions.chunk_of`.

    Example:
        >>> whole = Pull("ema", draw=3, size=4, seed=17, conditions=("a", "b", "c", "d"))
        >>> part_of(whole, 0, 2).seed, part_of(whole, 1, 2).conditions
        (17, ('c', 'd'))
    """
    conditions = chunk_of(pull.conditions, chunk, size)
    return replace(pull, size=size, seed=chunk_seed(pull.seed, chunk), conditions=conditions)


#: What a worker answers: rows (as bytes from another process) and the seconds they took, or why there are none.
Drawn = tuple[Tensor | bytes, float] | BanditError

#: The kits of this process, by token.
_kits: dict[str, Kit] = {}


def keep(kit: Kit) -> None:
    """Hold a kit in this process; it replaces an earlier one of the same token."""
    _kits[kit.token] = kit


def forget(kit: Kit) -> None:
    """Drop a kit."""
    _kits.pop(kit.token, None)


def unpack(packed: bytes, device: str | None = None) -> str:
    """Hold a packed kit in this process, and return its token.

    Args:
        packed: what :meth:`Kit.pack` returned.
        device: where its feature network goes; ``None`` leaves it where it was.
    """
    kit: Kit = pickle.loads(packed)
    if device is not None:
        kit.metric.to(device)
    keep(kit)
    return kit.token


def draw(token: str, pull: Pull) -> Drawn | None:
    """Carry out a pull with a kit of this process; return ``None`` if it has no such kit.

    Rows travel as bytes: a tensor would travel as a handle to shared memory, which is gone with a worker that dies. A
    thread hands over a copy, since a sampler may fill the same tensor again.

    Args:
        token: which kit.
        pull: what to draw.
    """
    kit = _kits.get(token)
    if kit is None:
        return None
    start, threaded = time.perf_counter(), kit.owner == os.getpid()
    try:
        rows = kit.rows(pull, threaded=threaded)
    except BanditError as error:
        keep_trace(error)
        return error
    rows = rows.detach().cpu()
    return rows.clone() if threaded else pickle.dumps(rows), time.perf_counter() - start
