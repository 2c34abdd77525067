"""What the ranks tell each other: one decision and the new features per pull, nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch import Tensor

from tm_bandit.errors import InputError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

T = TypeVar("T")

_SHARDED = (FSDPStrategy, DeepSpeedStrategy, ModelParallelStrategy)


class Ranks:
    """The processes of a Trainer. Every method but :attr:`is_zero` must be called on all of them.

    Args:
        trainer: the running Trainer.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._strategy = trainer.strategy
        self.world_size = trainer.world_size
        self.rank = trainer.global_rank

    @property
    def is_zero(self) -> bool:
        """Whether this is the rank that owns the statistics and decides."""
        return self.rank == 0

    def tell(self, value: T) -> T:
        """Return rank 0's ``value`` on all ranks; what the others pass is ignored."""
        return self._strategy.broadcast(value, src=0)

    def first_error(self, error: Exception | None) -> str | None:
        """Agree on whether any rank failed; return the first failure's text on all ranks, or ``None``.

        This comes before any gathering of results: a rank that fails while the others already wait in a collective
        would end all of them with a message about a lost connection, which hides the cause.

        Args:
            error: what went wrong on this rank.
        """
        if not self._strategy.reduce_boolean_decision(error is not None, all=False):
            return None
        text = None if error is None else f"{type(error).__name__}: {error}"
        return next(text for text in self.all_of(text) if text is not None)

    def all_of(self, value: T) -> list[T]:
        """Return the values of all ranks, on all ranks; for small and rare things.

        Args:
            value: this rank's value.
        """
        return [self._strategy.broadcast(value, src=rank) for rank in range(self.world_size)]

    def agree(self, error: Exception | None) -> None:
        """Raise ``error`` on the ranks that have one, and an ``InputError`` with its text on the others.

        Args:
            error: what went wrong on this rank.
        """
        text = self.first_error(error)
        if error is not None:
            raise error
        if text is not None:
            raise InputError(f"Another rank failed ({text}).")

    def gather(self, tensor: Tensor) -> Tensor:
        """Stack the ranks' tensors, which must have one shape, along a new first dimension.

        Args:
            tensor: this rank's part.
        """
        if self.world_size == 1:
            return tensor.unsqueeze(0)  # strategies of a single device return the tensor without that dimension
        gathered = self._strategy.all_gather(tensor.to(self._strategy.root_device))
        return torch.as_tensor(gathered)


def check_shared(folder: Path, ranks: Ranks, everywhere: bool) -> None:
    """See whether all ranks see the folder that rank 0 has made.

    Args:
        folder: where the arms go.
        ranks: the processes.
        everywhere: whether all ranks need it.

    Raises:
        InputError: on all ranks, if the folder is not shared.
    """
    error: Exception | None = None
    if everywhere and not folder.is_dir():
        error = InputError(
            f"Expected {folder} on a file system that all nodes share, but rank {ranks.rank} does not see it; give "
            "another dirpath=, or store='memory'."
        )
    ranks.agree(error)


class Share:
    """Which chunks of a pull a rank draws, so that the rows do not depend on the number of ranks.

    A chunk is one call of the sampler; its seed belongs to the chunk, not to the rank. All ranks make the same number
    of calls (a sampler may itself communicate); what is too much is cut off after the gathering.

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


def refuse_sharded(trainer: Trainer) -> None:
    """Refuse strategies under which no rank holds the whole module.

    Args:
        trainer: the running Trainer.

    Raises:
        InputError: for FSDP, DeepSpeed and ModelParallel.
    """
    if isinstance(trainer.strategy, _SHARDED):
        raise InputError(
            f"Expected a strategy that keeps the whole module on every device, but got "
            f"{type(trainer.strategy).__name__}; use strategy='ddp' or a single device, or select after the training "
            "with ModelSelector.from_checkpoints."
        )
