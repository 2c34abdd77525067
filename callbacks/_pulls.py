"""Spending a budget: rank 0 chooses, all ranks draw, the new rows come together, rank 0 counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tm_bandit.callbacks._arms import Arm
from tm_bandit.callbacks._distributed import Ranks, Share
from tm_bandit.callbacks._sampling import RowSampler
from tm_bandit.callbacks._store import ArmStore
from tm_bandit.callbacks._weights import BorrowedModule, Fitted
from tm_bandit.selection.selector import ModelSelector

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from tm_bandit.callbacks._report import Advance

#: A pull: the name of the arm and the seeds of all chunks.
Order = tuple[str, list[int]]


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
        while (order := self.ranks.tell(self._next(selector))) is not None:
            name, seeds = order
            rows, reason = self._draw(trainer, borrowed, self.arms[name], seeds)
            if reason is not None:
                outcome.failed[name] = reason
            elif rows is not None and selector is not None:
                try:
                    selector.observe(name, rows)
                except Exception as error:  # bad rows, or algebra that fails on them: others wait for an order
                    outcome.unusable[name] = f"{type(error).__name__}: {error}"
            if name in outcome.reasons:
                if selector is not None:
                    selector.hold_arm(name)
                continue
            outcome.samples += batch
            advance(batch)
        return outcome

    def _next(self, selector: ModelSelector | None) -> Order | None:
        if selector is None or not selector.arms:
            return None
        name = selector.select()
        if name is None:
            return None
        chunks = range(self.share.calls * self.ranks.world_size)
        return name, [selector.seed_for(name, selector.draws(name), chunk) for chunk in chunks]

    def _draw(
        self, trainer: Trainer, borrowed: BorrowedModule[LightningModule], arm: Arm, seeds: list[int]
    ) -> tuple[Tensor | None, str | None]:
        """Return the rows of the pull, or the reason why there are none; the same on all ranks."""
        rows: Tensor | None = None
        failure: Exception | None = None
        try:
            # Put in anew for every pull: what a sampler changes in the module must not reach the next pull, which may
            # be drawn by another number of ranks, or after an interruption.
            borrowed.put(self._weights(borrowed, arm.weights))
            chunks = self.share.chunks(self.ranks.rank)
            parts = [self.rows.rows(trainer, borrowed.module, arm.variant, seeds[chunk]) for chunk in chunks]
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
