"""What training and the callback must agree on at the start: the folder, and what Lightning is about to do."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from tm_bandit.callbacks._folder import RunFolder, claim, default_root, find, home
from tm_bandit.callbacks._resume import ResumePoint
from tm_bandit.execution.ranks import Ranks, idle_ranks

if TYPE_CHECKING:
    from tm_bandit.callbacks.bandit_checkpoint import BanditCheckpoint


def open_folder(
    settings: BanditCheckpoint, trainer: Trainer, ranks: Ranks, point: ResumePoint | None
) -> tuple[RunFolder, bool]:
    """Return the folder of the run, and whether it is that of the resumed run; on all ranks.

    Args:
        settings: the callback.
        trainer: the running Trainer.
        ranks: the processes.
        point: the resumed checkpoint, if any.

    Raises:
        InputError: if nothing can be written there.
    """
    run = ranks.tell(secrets.token_hex(8)) if point is None else point.state["run"]
    root, found = _wanted_folder(settings, trainer, ranks), None
    folder: RunFolder | None = None
    with ranks.agreed():
        if ranks.is_zero and not is_dev_run(trainer):
            if point is not None:
                hint = point.state["folder"]
                # By default, a run is where all runs of this Trainer are.
                trusted = point.in_place or (settings.dirpath is None and Path(hint).is_relative_to(home(trainer)))
                found = find(root, run, hint, point.path, trusted)
            wanted, root = root, claim(found or root, run)
            folder = RunFolder(root, run)
            folder.lock()
            if found is None and root != wanted:
                rank_zero_info(f"{settings.key}: {wanted} belongs to another run; this one writes to {root}.")
    root, found = ranks.tell((root, found))
    if point is not None and found is None and point.state["arms"]:
        rank_zero_warn(
            f"The arms of the resumed run were in {point.state['folder']}. They are neither in {root} nor next to the "
            "checkpoint, so they are left alone and the selection starts over. To continue with them, set dirpath= to "
            "their folder."
        )
    return folder or RunFolder(root, run), found is not None


def _wanted_folder(settings: BanditCheckpoint, trainer: Trainer, ranks: Ranks) -> Path:
    given = settings.dirpath
    if given is None:
        return ranks.tell(default_root(trainer, settings.key))
    others = [callback for callback in trainer.checkpoint_callbacks if callback is not settings]
    shared = any(getattr(other, "dirpath", None) == given and isinstance(other, type(settings)) for other in others)
    root = Path(given).expanduser().absolute()
    return root / settings.key if shared else root


def warn_of_idle_ranks(settings: BanditCheckpoint, ranks: Ranks) -> None:
    """Warn if a pull is made of fewer calls than there are ranks.

    Args:
        settings: the callback.
        ranks: the processes.
    """
    idle = idle_ranks(settings.batch_size, settings.chunk_size, ranks.world_size)
    if idle:
        rank_zero_warn(f"{settings.key}: {idle}")


def warn_of_burn_in(settings: BanditCheckpoint, newcomers: int) -> None:
    """Warn if the new arms of a validation leave nothing of its budget for comparing them.

    Args:
        settings: the callback.
        newcomers: how many arms join in one validation.
    """
    burn_in = settings.new_selector(newcomers).burn_in
    if newcomers * burn_in >= settings.budget:
        rank_zero_warn(
            f"{settings.key}: {newcomers} new arms of a validation with {burn_in} samples each take the whole budget "
            f"of {settings.budget} samples, and nothing is left to compare them; raise budget to "
            f"{2 * newcomers * burn_in}, say, or lower batch_size or burn_in."
        )


def is_dev_run(trainer: Trainer) -> bool:
    """Whether this is a ``fast_dev_run``, which writes nothing.

    Args:
        trainer: the running Trainer.
    """
    return bool(getattr(trainer, "fast_dev_run", False))  # Lightning sets it without declaring it


def is_validation_next(trainer: Trainer, done: int) -> bool:
    """Whether Lightning is about to validate the weights that it writes to a checkpoint.

    After a resume from that checkpoint it will not do so. There is no public way to ask.

    Args:
        trainer: the running Trainer.
        done: the ``global_step`` of the last validation that has ended.
    """
    loop = trainer.fit_loop
    if not trainer.training or not trainer.enable_validation or done == trainer.global_step:
        return False
    try:
        batches = loop.epoch_loop.batch_progress.current
        if batches.processed != batches.ready:  # type: ignore[attr-defined]  # an exception in the middle of a batch
            return False
        return bool(loop.epoch_loop._should_check_val_fx(loop._data_fetcher))  # type: ignore[arg-type]
    except Exception:  # another version of Lightning, or not training
        return False
