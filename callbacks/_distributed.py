"""The processes of a Trainer, and what is required of them before training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from tm_bandit.errors import InputError
from tm_bandit.execution.ranks import Ranks

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_SHARDED = (FSDPStrategy, DeepSpeedStrategy, ModelParallelStrategy)


def ranks_of(trainer: Trainer) -> Ranks:
    """Return the processes of a Trainer.

    Args:
        trainer: the running Trainer.
    """
    return Ranks(trainer.global_rank, trainer.world_size, trainer.strategy.root_device)


def check_shared(folder: Path, ranks: Ranks, everywhere: bool) -> None:
    """Check that all ranks see the folder that rank 0 has made.

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
            f"{type(trainer.strategy).__name__}; use strategy='ddp' or a single device, or set evaluate='after'."
        )
