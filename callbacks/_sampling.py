"""From a seed to rows: the user's sampler on the live module, then the metric's feature network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tm_bandit.errors import BanditError, InputError, NotReadyError, WeightsError
from tm_bandit.execution.local import Sampler, draw_rows
from tm_bandit.execution.rng import seed_all
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.selection.checkpoints import SamplerLike, bind_sampler

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class RowSampler:
    """Draws rows from the live module with whatever weights it holds at the moment.

    Args:
        sampler: see :func:`~tm_bandit.selection.checkpoints.bind_sampler`.
        metric: turns samples into rows.
        variants: keyword arguments of the sampler by variant.
        chunk_size: samples per call of the sampler, always the same, so that compiled modules compile once.
    """

    def __init__(
        self,
        sampler: SamplerLike,
        metric: OptimisticMetric,
        variants: Mapping[str, Mapping[str, Any]],
        chunk_size: int,
    ) -> None:
        self.sampler = sampler
        self.metric = metric
        self.variants = variants
        self.chunk_size = chunk_size
        self._bound: dict[str, Sampler] = {}

    def check(self, module: LightningModule) -> None:
        """Raise an ``InputError`` if the module has no method to sample with; nothing is called.

        Args:
            module: the module that is being trained.
        """
        bind_sampler(module, self.sampler, {})

    def rehearse(self, trainer: Trainer, module: LightningModule) -> None:
        """Draw one chunk of every variant and see whether the metric can use it, before any training time is spent.

        Args:
            trainer: the running Trainer.
            module: the module that is being trained.

        Raises:
            InputError: if a call fails, or if the metric refuses what it returns.
        """
        for variant in self.variants:
            called = f"the sampler, variant {variant!r}," if variant else "the sampler"
            try:
                rows = self.rows(trainer, module, variant, seed=0)
                # Untrained weights may well give values that are not finite; only the kind of output is judged here.
                self.metric.check_rows(torch.nan_to_num(rows))
            except (NotReadyError, WeightsError):
                raise  # the metric itself cannot be used, whatever the sampler returns
            except Exception as error:  # also what a feature network raises on a wrong shape
                raise InputError(
                    f"Expected {called} to return {self.chunk_size} samples that {type(self.metric).__name__} can "
                    f"score, but got {_text(error)}; repair it before the training, or give another sampler=."
                ) from error

    def rows(self, trainer: Trainer, module: LightningModule, variant: str, seed: int) -> Tensor:
        """Return the rows of one chunk; it seeds the global random states, which the caller has put aside.

        Args:
            trainer: the running Trainer.
            module: the module with the arm's weights; always the same one.
            variant: name of the sampler variant.
            seed: seed of the chunk.

        Raises:
            ArmError: if the sampler fails, or does not return ``chunk_size`` samples that the metric can take.
        """
        if variant not in self._bound:
            # A plain call from a hook is not under the Trainer's precision: mixed would be ignored, true would fail.
            context = trainer.precision_plugin.val_step_context
            self._bound[variant] = bind_sampler(module, self.sampler, self.variants[variant], context)
        seed_all(seed)
        return draw_rows(self._bound[variant], self.chunk_size, seed, self.metric)


def _text(error: Exception) -> str:
    return f"this: {error}".rstrip(".") if isinstance(error, BanditError) else f"{type(error).__name__}: {error}"
