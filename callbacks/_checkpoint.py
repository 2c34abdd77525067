"""Writing checkpoints as the Trainer does, and waiting for those it writes itself."""

from __future__ import annotations

import os
from typing import Any

import lightning
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from tm_bandit.errors import brief


def dump(trainer: Trainer) -> dict[str, Any]:
    """Return what ``Trainer.save_checkpoint(weights_only=True)`` would write.

    This is the only place that reaches into Lightning's connector. The public method waits for all ranks after the
    hooks of the module have run: one that fails on a single rank would leave the others waiting.

    Args:
        trainer: the running Trainer.
    """
    module = trainer.lightning_module
    running = module._current_fx_name
    try:
        return trainer._checkpoint_connector.dump_checkpoint(weights_only=True)
    finally:
        module._current_fx_name = running  # a hook that raises leaves its name there, and nothing can be logged then


def write(trainer: Trainer, checkpoint: dict[str, Any], path: os.PathLike[str]) -> None:
    """Write a checkpoint with the Trainer's own writer, and return when it is written.

    Args:
        trainer: the running Trainer.
        checkpoint: what to write.
        path: the file.
    """
    io = trainer.strategy.checkpoint_io
    # An asynchronous writer returns before there is a file to read back.
    inner = io.checkpoint_io if isinstance(io, AsyncCheckpointIO) else io
    (inner or io).save_checkpoint(checkpoint, str(path))


def bare(trainer: Trainer) -> dict[str, Any]:
    """Return a checkpoint that holds only the weights.

    Args:
        trainer: the running Trainer.
    """
    state = trainer.lightning_module.state_dict()
    return {
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "pytorch-lightning_version": lightning.__version__,
        "state_dict": {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)},
    }


def is_on_disk(trainer: Trainer) -> bool:
    """Wait for the checkpoints that the Trainer is still writing, and return whether all went well.

    Args:
        trainer: the running Trainer.
    """
    io = trainer.strategy.checkpoint_io
    if isinstance(io, AsyncCheckpointIO):
        try:
            io.teardown()  # it waits; the next save starts a new thread
        except Exception as error:  # Lightning will raise it with its next save
            rank_zero_warn(f"A checkpoint could not be written ({brief(error)}); nothing is deleted.")
            return False
    return True
