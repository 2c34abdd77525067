"""Training runs whose arms are compared afterwards: the Trainer itself writes the weights during training."""

from __future__ import annotations

import math
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from tm_bandit.callbacks._arms import TrainedArm, note_variant
from tm_bandit.callbacks._distributed import check_shared, ranks_of
from tm_bandit.callbacks._folder import claim, default_root
from tm_bandit.callbacks._loggers import PLOT, publish
from tm_bandit.callbacks._report import RESULT, never_fatal
from tm_bandit.callbacks._weights import averaging_callback
from tm_bandit.errors import brief
from tm_bandit.report.result import SelectionResult, central_score
from tm_bandit.selection.checkpoints import selector_from_checkpoints

if TYPE_CHECKING:
    from tm_bandit.callbacks.bandit_checkpoint import BanditCheckpoint


class Afterwards:
    """Writes the arms of one training run, and selects among them at its end; on all ranks.

    Args:
        settings: the callback.
        trainer: the running Trainer.
    """

    def __init__(self, settings: BanditCheckpoint, trainer: Trainer) -> None:
        self.settings = settings
        self.ranks = ranks_of(trainer)
        self.files: list[Path] = []
        self.step = -1
        root = Path(settings.dirpath) if settings.dirpath is not None else default_root(trainer, settings.key)
        with self.ranks.agreed():
            if self.ranks.is_zero:
                root = claim(root.expanduser().absolute(), secrets.token_hex(8))
        self.folder = self.ranks.tell(root)
        check_shared(self.folder, self.ranks, everywhere=True)

    def save(self, trainer: Trainer) -> None:
        """Write the weights as they are; a strategy that shards them gathers them first.

        Args:
            trainer: the running Trainer.
        """
        self.step = trainer.global_step
        path = self.folder / f"step{self.step}.ckpt"
        trainer.save_checkpoint(path, weights_only=True)
        self.files.append(path)

    def select(self, module: LightningModule) -> tuple[SelectionResult, Path] | None:
        """Compare the arms; return the result and the best file, or ``None`` after a warning: training is over.

        Args:
            module: the module that was trained.
        """
        try:
            result = self._compare(module)
        except Exception as error:  # whatever the module raises when it is rebuilt, or draws
            rank_zero_warn(
                f"{self.settings.key}: the arms in {self.folder} could not be compared at the end of training "
                f"({brief(error)}). Run `tm-bandit watch {self.folder} --module ...`."
            )
            return None
        note_variant(result, self.settings.variants)
        if self.ranks.is_zero:
            with suppress(OSError):
                result.to_json(self.folder / RESULT, indent=1)
        if result.best is None:
            return None
        return result, next(path for path in self.files if path.stem == result.best.split("/")[0])

    def _compare(self, module: LightningModule) -> SelectionResult:
        """Run a selection in which each arm is a module without a Trainer; errors are those of all ranks."""
        settings = self.settings
        with self.ranks.agreed():
            selector = selector_from_checkpoints(
                self.files,
                type(module),
                settings.metric.to(module.device),
                settings.sampler,
                variants=settings.variants,
                budget=settings.budget * len(self.files),
                burn_in=settings.burn_in,
                **settings.selection(),
            )
        alone = self.ranks.world_size == 1
        return selector.run(progress=False, workers=0 if alone else None, chunk_size=settings.chunk_size)

    def publish(self, trainer: Trainer, result: SelectionResult) -> None:
        """Give the curves, the table, the plot and samples of the best arm to the loggers; on rank 0.

        Args:
            trainer: the running Trainer.
            result: what :meth:`select` found.
        """
        if not self.ranks.is_zero:
            return
        key = self.settings.key
        for logger in trainer.loggers:
            with never_fatal(self._say, f"{type(logger).__name__} does not take the scores"):
                for step, values in sorted(self._curves(trainer, result).items()):
                    logger.log_metrics({f"{key}/{name}": value for name, value in values.items()}, step=step)
        publish(trainer, key, result, self._say, self.folder / PLOT)

    def _say(self, text: str, kind: str) -> None:
        rank_zero_warn(f"{self.settings.key}: {text}")

    def _curves(self, trainer: Trainer, result: SelectionResult) -> dict[int, dict[str, float]]:
        """Return the scores by step and kind of arm, and with the last step which one is the best."""
        averaged = averaging_callback(trainer) is not None  # a checkpoint then holds the averaged weights
        curves: dict[int, dict[str, float]] = {arm.step: {} for arm in map(_arm_of, result.num_samples)}
        for row in result.arms:
            arm, score = _arm_of(row["arm"], averaged), central_score(row)
            if math.isfinite(score):
                curves[arm.step][arm.kind] = score
        if result.best is not None:
            curves[max(curves)] |= {"best": result.best_score, "best_step": float(_arm_of(result.best).step)}
        return curves


def _arm_of(name: str, averaged: bool = False) -> TrainedArm:
    """Return the arm that a file of :meth:`Afterwards.save` and a variant are."""
    weights, _, variant = name.partition("/")
    return TrainedArm(int(weights.removeprefix("step")), averaged, variant)
