"""Processes that draw together: rank 0 decides, all draw their chunks of a pull, and the rows are gathered.

It is one protocol over ``torch.distributed``, whatever started the processes: torchrun, accelerate or Lightning.
"""

from __future__ import annotations

import itertools
import os
import pickle
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tm_bandit._failures import keep_trace
from tm_bandit._guards import uninterrupted
from tm_bandit.errors import ArmError, BanditError, InputError, brief

if TYPE_CHECKING:
    from tm_bandit.execution.kit import Kit
    from tm_bandit.execution.loop import Run
    from tm_bandit.pull import Pull

T = TypeVar("T")


class Ranks:
    """The processes of a group. Every method but :attr:`is_zero` must be called on all of them.

    Args:
        rank: which of them this is.
        world_size: how many there are. Nothing is sent if there is one.
        device: where tensors must be to be gathered; ``None`` asks the group.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, device: torch.device | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self._device = device

    @property
    def is_zero(self) -> bool:
        """Whether this is the rank that owns the statistics and decides."""
        return self.rank == 0

    def tell(self, value: T) -> T:
        """Return rank 0's ``value`` on all ranks; what the others pass is ignored."""
        if self.world_size == 1:
            return value
        box: list[Any] = [value if self.is_zero else None]
        dist.broadcast_object_list(box, src=0)
        told: T = box[0]
        return told

    def all_of(self, value: T) -> list[T]:
        """Return the values of all ranks, on all ranks; for small things.

        Args:
            value: this rank's value.
        """
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def first_error(self, error: Exception | None) -> str | None:
        """Agree on whether any rank failed; return the first failure's text on all ranks, or ``None``.

        This comes before any gathering of results: a rank that fails while the others already wait in a collective
        would end all of them with a message about a lost connection, which hides the cause.

        Args:
            error: what went wrong on this rank.
        """
        text = None if error is None else f"{type(error).__name__}: {error}"
        return next((text for text in self.all_of(text) if text is not None), None)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Raise what goes wrong in the block on all ranks: the others must learn of it before they wait for this one.

        The ranks on which nothing went wrong raise an ``InputError`` with the text of the first error.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as failure:  # any: see above
            error = failure
        text = self.first_error(error)
        if error is not None:
            raise error
        if text is not None:
            raise InputError(f"Another rank failed ({text}).")

    def gather(self, part: Tensor | Exception) -> Tensor:
        """Stack the ranks' tensors along a new first dimension.

        The ranks first agree on what each of them has. A backend that is handed tensors of different sizes aborts the
        process, or returns garbage.

        Args:
            part: this rank's tensor, or why it has none.

        Raises:
            BanditError: on all ranks, if any rank has none: the error itself if it is one of this package, else an
                ``ArmError`` with its text.
            ArmError: on all ranks, if the tensors differ in shape or type.
        """
        mine: Any
        if isinstance(part, Exception):
            mine = part if isinstance(part, BanditError) else ArmError(brief(part))
            mine.__cause__ = part.__cause__ if mine is part else part
            keep_trace(mine)
        else:
            mine = tuple(part.shape), str(part.dtype)
        forms = self.all_of(mine)
        for form in forms:
            if isinstance(form, Exception):
                raise form
        if len(set(forms)) > 1:
            listed = ", ".join(f"rank {rank}: {form[0]} {form[1]}" for rank, form in enumerate(forms))
            raise ArmError(
                f"Expected the same shape and type of rows on all ranks, but got {listed}; let the sampler return the "
                "same everywhere."
            )
        assert isinstance(part, Tensor)
        if self.world_size == 1:
            return part.unsqueeze(0)
        # As bytes: a backend that does not know a type fails on one rank, and leaves the others without it.
        content = part.detach().to(self._device or _group_device()).contiguous().flatten().view(torch.uint8)
        parts = [torch.empty_like(content) for _ in range(self.world_size)]
        dist.all_gather(parts, content)
        return torch.cat(parts).view(part.dtype).reshape(self.world_size, *part.shape)


def _group_device() -> torch.device:
    """Return where the default group takes tensors: on the CPU if it can."""
    if "nccl" not in str(dist.get_backend_config()) or "gloo" in str(dist.get_backend_config()):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Join the processes that torchrun or accelerate has started; without them, this process is alone.

    An existing group is used and left as it is. One that is made here ends with the block.

    Raises:
        InputError: if environment variables say that there are others, but not how to find them.

    Example:
        >>> with joined_ranks() as ranks:
        ...     ranks.world_size
        1
    """
    if not dist.is_available():
        yield Ranks()
    elif dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size())
    elif "RANK" in os.environ and "MASTER_ADDR" in os.environ and _number_from("WORLD_SIZE", "1") > 1:
        store, rank, world_size = _meeting_place()
        # Rows are small: they need nothing faster than the CPU.
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        try:
            yield Ranks(rank, world_size)
        finally:
            dist.destroy_process_group()
    else:
        yield Ranks()


#: How often this process has joined the others; all of them join equally often.
_joined = itertools.count()


def _meeting_place() -> tuple[Any, int, int]:
    """Return a store for a new group, which of the processes this is, and how many there are.

    Each group has its own names in it: those of an ended group lead to where nobody listens.
    """
    store, rank, world_size = _rendezvous()
    names = dist.PrefixStore(f"tm_bandit/{next(_joined)}", store)  # type: ignore[attr-defined]
    return names, rank, world_size


def _number_from(variable: str, default: str = "") -> int:
    given = os.environ.get(variable, default)
    try:
        return int(given)
    except ValueError:
        raise InputError(
            f"Expected {variable} to be a whole number, as torchrun sets it, but got {given!r}; unset WORLD_SIZE to "
            "run alone."
        ) from None


@cache
def _rendezvous() -> tuple[Any, int, int]:
    from torch.distributed.rendezvous import rendezvous  # a torch without torch.distributed does not have it

    for variable in ("RANK", "MASTER_PORT"):
        _number_from(variable)
    try:
        place: tuple[Any, int, int] = next(iter(rendezvous("env://")))
    except (RuntimeError, ValueError) as error:  # no such address, or nobody who answers
        raise InputError(
            f"Expected the processes to meet at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}, but got "
            f"{brief(error)}; unset WORLD_SIZE to run alone."
        ) from error
    return place


class Share:
    """Which chunks of a pull a rank draws, so that the rows do not depend on the number of ranks.

    A chunk is one call of the sampler; its seed belongs to the chunk, not to the rank. All ranks make the same number
    of calls (a sampler may itself communicate); surplus rows are cut off after gathering.

    Args:
        batch_size: rows of a pull.
        chunk_size: rows of a chunk.
        world_size: number of ranks.

    Example:
        >>> share = Share(batch_size=10, chunk_size=4, world_size=2)
        >>> share.chunks(rank=0), share.chunks(rank=1)
        (range(0, 2), range(2, 4))
    """

    def __init__(self, batch_size: int, chunk_size: int, world_size: int) -> None:
        self.batch_size = batch_size
        self.num_chunks = -(-batch_size // chunk_size)
        self.calls = -(-self.num_chunks // world_size)

    def chunks(self, rank: int) -> range:
        """Return the indices of the chunks that ``rank`` draws."""
        return range(rank * self.calls, (rank + 1) * self.calls)

    def own(self, rank: int, rows: int) -> int:
        """Return how many of the rows that ``rank`` has drawn belong to the pull.

        Args:
            rank: the rank.
            rows: how many rows every rank has drawn.

        Example:
            >>> share = Share(batch_size=10, chunk_size=4, world_size=2)
            >>> share.own(0, 8), share.own(1, 8)
            (8, 2)
        """
        return min(max(self.batch_size - rank * rows, 0), rows)

    def merge(self, gathered: Tensor) -> Tensor:
        """Return the rows of the pull in the order of their chunks.

        Args:
            gathered: rows of shape ``(world_size, calls * chunk_size, d)``.
        """
        return gathered.flatten(0, 1)[: self.batch_size]


def default_chunk_size(batch_size: int) -> int:
    """Split a pull into up to four equal calls of at least eight samples: up to four ranks then share the work.

    It is a function of the batch size alone: the same samples are drawn on one rank and on four.

    Example:
        >>> default_chunk_size(50), default_chunk_size(64), default_chunk_size(5)
        (25, 16, 5)
    """
    parts = next(k for k in (4, 3, 2, 1) if k == 1 or (batch_size % k == 0 and batch_size // k >= 8))
    return batch_size // parts


def idle_ranks(batch_size: int, chunk_size: int, world_size: int) -> str:
    """Return a warning if a pull is made of fewer calls than there are ranks, else an empty string.

    Args:
        batch_size: rows of a pull.
        chunk_size: rows of a chunk.
        world_size: number of ranks.
    """
    chunks = -(-batch_size // chunk_size)
    if chunks >= world_size:
        return ""
    return (
        f"a pull of {batch_size} samples is drawn in {chunks} calls of the sampler, so {world_size - chunks} of "
        f"{world_size} ranks draw samples that are thrown away; set chunk_size={max(1, batch_size // world_size)}."
    )


def pulls_on_ranks(run: Run, kit: Kit, ranks: Ranks) -> Generator[str]:
    """Make pulls until there are none left, and yield the arm of each; on all ranks.

    Rank 0 alone has the statistics. The others draw and are told nothing but pulls; they yield nothing.

    Args:
        run: the selector.
        kit: draws the rows.
        ranks: the processes.

    Raises:
        BanditError: on all ranks, what :meth:`tm_bandit.ModelSelector.ask` raises on rank 0.
    """
    if not ranks.is_zero:
        # Ctrl-C reaches all of them. Rank 0 ends the run at the next pull; until then it needs the others.
        with suppress(KeyboardInterrupt), uninterrupted():
            while (pull := _told(ranks, None)) is not None:
                with suppress(BanditError):
                    _drawn(kit, pull, ranks)
        return
    asked: list[Pull] = []
    try:
        while True:
            with uninterrupted():
                asked = run.ask()
                if not asked:
                    break
                _told(ranks, asked[0])
                _tell(run, kit, asked[0], ranks)
                name, asked = asked[0].arm, []
            yield name
    except BaseException as error:
        for pull in asked:
            with suppress(InputError):
                run.give_back(pull)
        ranks.tell(error if _travels(error) else None)
        raise
    ranks.tell(None)


def _tell(run: Run, kit: Kit, pull: Pull, ranks: Ranks) -> None:
    start = time.perf_counter()
    try:
        rows = _drawn(kit, pull, ranks)
        # This rank's clock counts for all: the others are not asked.
        run.tell(pull, rows, time.perf_counter() - start if run.measures else None)
    except ArmError as error:
        run.tell(pull, error)


def _told(ranks: Ranks, value: Pull | None) -> Pull | None:
    told: Any = ranks.tell(value)
    if isinstance(told, Exception):
        raise told
    return told  # type: ignore[no-any-return]


def _travels(error: BaseException) -> bool:
    """Whether the other ranks can be told of an error as it is."""
    if not isinstance(error, Exception):
        return False
    with suppress(Exception):
        pickle.loads(pickle.dumps(error))
        return True
    return False


def _drawn(kit: Kit, pull: Pull, ranks: Ranks) -> Tensor:
    """Return the rows of a pull, the same on all ranks."""
    share = Share(pull.size, kit.chunk_size or pull.size, ranks.world_size)
    part: Tensor | Exception
    try:
        part = kit.rows(pull, share.chunks(ranks.rank))
    except Exception as error:  # any: the other ranks must learn of it before they wait for the rows
        part = error
    return share.merge(ranks.gather(part))
