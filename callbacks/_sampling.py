"""From a seed to rows: the user's sampler on the live module, then the metric's feature network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from tm_bandit._guards import seed_all
from tm_bandit.errors import BanditError, InputError, NotReadyError, WeightsError, brief
from tm_bandit.execution.conditions import Conditions, chunk_of
from tm_bandit.execution.draw import Sampler, draw_rows
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.selection.modules import SamplerLike, bind_sampler
from tm_bandit.selection.repeats import may_come_again, repeats


@dataclass(eq=False)
class RowSampler:
    """Draws rows from the live module with whatever weights it holds at the moment.

    Args:
        sampler: see :func:`~tm_bandit.selection.modules.bind_sampler`.
        metric: turns samples into rows.
        variants: keyword arguments of the sampler by variant.
        chunk_size: samples per call of the sampler, always the same, so that compiled modules compile once.
        conditions: labels or prompts that the sampler has to take; ``None`` if there are none.
    """

    sampler: SamplerLike
    metric: OptimisticMetric
    variants: Mapping[str, Mapping[str, Any]]
    chunk_size: int
    conditions: Conditions | None = None
    _bound: dict[str, Sampler] = field(default_factory=dict, init=False)

    def rehearse(self, trainer: Trainer, module: LightningModule, batch_size: int) -> None:
        """Draw one chunk of every variant and check that the metric can use it, before any training time is spent.

        The first variant is drawn from twice, to see whether the sampler heeds its seed.

        Args:
            trainer: the running Trainer.
            module: the module that is being trained.
            batch_size: samples per pull, for which conditions are requested.

        Raises:
            InputError: if a call fails, if the metric refuses what it returns, or if the conditions cannot be obtained.
        """
        taken = () if self.conditions is None else self.conditions.take(0, batch_size, seed=())
        conditions = chunk_of(taken, 0, self.chunk_size)
        for variant in self.variants:
            called = f"the sampler, variant {variant!r}," if variant else "the sampler"
            try:
                rows = self.rows(trainer, module, variant, seed=0, conditions=conditions)
                # Untrained weights may well give values that are not finite; only the kind of output is judged here.
                rows = self.metric.check_rows(torch.nan_to_num(rows))
                if variant == next(iter(self.variants)):
                    again = torch.nan_to_num(self.rows(trainer, module, variant, seed=1, conditions=conditions))
                    if torch.equal(rows, self.metric.check_rows(again)) and not may_come_again(rows):
                        raise repeats(0, 1)
            except (NotReadyError, WeightsError):
                raise  # the metric itself cannot be used, whatever the sampler returns
            except Exception as error:  # also what a feature network raises on a wrong shape
                raise InputError(
                    f"Expected {called} to return {self.chunk_size} samples that {type(self.metric).__name__} can "
                    f"score, but got {_text(error)}; repair it before training, or pass another sampler=."
                ) from error

    def rows(
        self,
        trainer: Trainer,
        module: LightningModule,
        variant: str,
        seed: int,
        conditions: Any = (),
        seen: Callable[[Tensor], object] | None = None,
    ) -> Tensor:
        """Return the rows of one chunk; seeds the global random states, which the caller has set aside.

        Args:
            trainer: the running Trainer.
            module: the module with the arm's weights; always the same one.
            variant: name of the sampler variant.
            seed: seed of the chunk.
            conditions: of the chunk; empty if there are none.
            seen: gets the samples before they are scored.

        Raises:
            ArmError: if the sampler fails, or does not return ``chunk_size`` samples that the metric can take.
        """
        if variant not in self._bound:
            # A plain call from a hook is not under the Trainer's precision: mixed would be ignored, true would fail.
            context = trainer.precision_plugin.val_step_context
            self._bound[variant] = bind_sampler(module, self.sampler, self.variants[variant], context)
        seed_all(seed)
        return draw_rows(self._bound[variant], self.chunk_size, seed, self.metric, conditions=conditions, seen=seen)


def _text(error: Exception) -> str:
    return f"this: {error}".rstrip(".") if isinstance(error, BanditError) else brief(error)
