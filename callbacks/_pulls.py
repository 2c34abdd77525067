"""Spending a budget: rank 0 chooses, all ranks draw, the new rows come together, rank 0 counts them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tm_bandit.callbacks._arms import Arm
from tm_bandit.callbacks._distributed import Ranks, Share
from tm_bandit.callbacks._sampling import RowSampler
from tm_bandit.callbacks._store import ArmStore
from tm_bandit.callbacks._weights import BorrowedModule, Fitted
from tm_bandit.errors import InputError
from tm_bandit.execution.rng import chunk_seed
from tm_bandit.pull import Pull
from tm_bandit.selection.selector import ModelSelector

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from tm_bandit.callbacks._report import Advance


@dataclass
class Outcome:
    """What became of the pulls of one validation.

    Args:
        samples: how many were drawn.
        failed: reasons by arm, of arms whose sampler raised.
        unusable: reasons by arm, of arms whose samples are no numbers, or none that the metric can use.
    """

    samples: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)

    @property
    def reasons(self) -> dict[str, str]:
        """Why each arm that failed did."""
        return {**self.failed, **self.unusable}


class PullLoop:
    """Makes the pulls of one validation; on all ranks.

    Args:
        rows: draws rows from the module as it is.
        store: the weights of the arms.
        arms: the active arms by name.
        batch_size: rows of a pull.
        ranks: the processes.
    """

    def __init__(
        self, rows: RowSampler, store: ArmStore, arms: Mapping[str, Arm], batch_size: int, ranks: Ranks
    ) -> None:
        self.rows = rows
        self.store = store
        self.arms = arms
        self.share = Share(batch_size, rows.chunk_size, ranks.world_size)
        self.ranks = ranks
        self._fitted: dict[str, Fitted] = {}

    def run(
        self,
        trainer: Trainer,
        borrowed: BorrowedModule[LightningModule],
        selector: ModelSelector | None,
        pulls: int,
        advance: Advance,
    ) -> Outcome:
        """Pull until the budget is spent or the stop rule is met.

        An arm that fails on any rank is left alone for the rest of the validation, and the others go on: an error may
        pass, and nothing that is known of the arm is lost.

        Args:
            trainer: the running Trainer.
            borrowed: the live module.
            selector: the statistics, on rank 0.
            pulls: the most pulls to make.
            advance: moves the progress bar.
        """
        batch = self.share.batch_size
        if selector is not None:
            selector.extend_budget(selector.spent + pulls * batch - selector.budget)
            for name in selector.arms:
                selector.release_arm(name)
        outcome = Outcome()
        while (pull := self.ranks.tell(self._next(selector))) is not None:
            rows, reason = self._draw(trainer, borrowed, pull)
            if reason is not None:
                outcome.failed[pull.arm] = reason
            elif rows is not None and selector is not None:
                try:
                    selector.tell(pull, rows)
                except Exception as error:  # bad rows, or algebra that fails on them: others wait for an order
                    outcome.unusable[pull.arm] = f"{type(error).__name__}: {error}"
            if pull.arm in outcome.reasons:
                if selector is not None:
                    with suppress(InputError):  # algebra may fail when the rows are already counted
                        selector.give_back(pull)
                    selector.hold_arm(pull.arm)
                continue
            outcome.samples += pull.size
            advance(pull.size)
        return outcome

    def _next(self, selector: ModelSelector | None) -> Pull | None:
        if selector is None or not selector.arms:
            return None
        return next(iter(selector.ask()), None)

    def _draw(
        self, trainer: Trainer, borrowed: BorrowedModule[LightningModule], pull: Pull
    ) -> tuple[Tensor | None, str | None]:
        """Return the rows of the pull, or the reason why there are none; the same on all ranks."""
        arm = self.arms[pull.arm]
        rows: Tensor | None = None
        failure: Exception | None = None
        try:
            # Put in anew for every pull: what a sampler changes in the module must not reach the next pull, which may
            # be drawn by another number of ranks, or after an interruption.
            borrowed.put(self._weights(borrowed, arm.weights))
            seeds = [chunk_seed(pull.seed, chunk) for chunk in self.share.chunks(self.ranks.rank)]
            parts = [self.rows.rows(trainer, borrowed.module, arm.variant, seed) for seed in seeds]
            rows = torch.cat(parts)
        except Exception as error:  # whatever a sampler raises: training goes on without this arm
            failure = error
        reason = self.ranks.first_error(failure)
        if reason is not None or rows is None:
            return None, reason
        return self.share.merge(self.ranks.gather(rows)), None

    def _weights(self, borrowed: BorrowedModule[LightningModule], name: str) -> Fitted:
        # Files are mapped into memory, so holding all arms of one validation takes no memory that is not given back.
        if name not in self._fitted:
            self._fitted[name] = borrowed.fit(self.store.read(name))
        return self._fitted[name]
