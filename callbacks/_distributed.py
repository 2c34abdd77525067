"""The processes of a Trainer, and what is required of them before training."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from tm_bandit.errors import InputError
from tm_bandit.execution.ranks import Ranks

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
    with ranks.agreed():
        if everywhere and not folder.is_dir():
            raise InputError(
                f"Expected {folder} on a file system that all nodes share, but rank {ranks.rank} does not see it; give "
                "another dirpath=, or store='memory'."
            )


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


def check_whole(trainer: Trainer) -> None:
    """Refuse strategies that would write a checkpoint in pieces.

    Args:
        trainer: the running Trainer.

    Raises:
        InputError: if no whole checkpoint would be written.
    """
    strategy, advice = trainer.strategy, ""
    if isinstance(strategy, FSDPStrategy) and strategy._state_dict_type != "full":
        advice = "use FSDPStrategy(state_dict_type='full')"
    elif isinstance(strategy, ModelParallelStrategy) and strategy._save_distributed_checkpoint:
        advice = "use ModelParallelStrategy(save_distributed_checkpoint=False)"
    elif isinstance(strategy, DeepSpeedStrategy):
        advice = "convert its folders with `zero_to_fp32.py`, and let `tm-bandit watch` look at the files"
    if advice:
        raise InputError(
            f"Expected a strategy that writes whole checkpoints for evaluate='after', but got "
            f"{type(strategy).__name__}, which writes them in pieces; {advice}."
        )
