"""Spending a budget: rank 0 chooses, all ranks draw, the new rows are gathered, rank 0 counts them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tm_bandit._failures import reason_of, warn_of_failure
from tm_bandit.callbacks._also import Companions
from tm_bandit.callbacks._arms import TrainedArm
from tm_bandit.callbacks._report import Advance
from tm_bandit.callbacks._sampling import RowSampler
from tm_bandit.callbacks._store import ArmStore
from tm_bandit.callbacks._weights import Borrowed, Fitted
from tm_bandit.errors import BanditError, InputError
from tm_bandit.execution.kit import part_of
from tm_bandit.execution.ranks import Share
from tm_bandit.pull import Pull
from tm_bandit.selection.selector import ModelSelector


@dataclass
class Outcome:
    """What became of the pulls of one validation.

    Args:
        samples: how many were drawn.
        failed: reasons by arm, of arms whose sampler raised.
        unusable: reasons by arm, of arms whose samples are not numbers, or not ones that the metric can use.
    """

    samples: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)

    @property
    def reasons(self) -> dict[str, str]:
        """Why each failed arm failed."""
        return {**self.failed, **self.unusable}


@dataclass(eq=False)
class PullLoop:
    """Makes the pulls of one validation; on all ranks.

    Args:
        rows: draws rows from the module as it is.
        store: the weights of the arms.
        arms: the active arms by name.
        batch_size: rows of a pull.
        companions: other metrics, which get the samples as they were drawn.
    """

    rows: RowSampler
    store: ArmStore
    arms: Mapping[str, TrainedArm]
    batch_size: int
    companions: Companions
    _fitted: dict[str, Fitted] = field(default_factory=dict, init=False)
    _logged: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.ranks = self.store.ranks
        self.share = Share(self.batch_size, self.rows.chunk_size, self.ranks.world_size)

    def run(self, borrowed: Borrowed, selector: ModelSelector | None, pulls: int, advance: Advance) -> Outcome:
        """Pull until the budget is spent or the stop rule is met.

        An arm that fails on any rank is left alone for the rest of the validation, and the others continue: an error
        may pass, and nothing known about the arm is lost.

        Args:
            borrowed: the live module.
            selector: the statistics, on rank 0.
            pulls: the most pulls to make.
            advance: moves the progress bar.
        """
        if selector is not None:
            selector.extend_budget(selector.spent + pulls * self.batch_size - selector.budget)
            for name in selector.arms:
                selector.release_arm(name)
        outcome = Outcome()
        while (pull := self.ranks.tell(self._next(selector, outcome))) is not None:
            rows, samples, reason = self._draw(borrowed, pull)
            if reason is not None:
                outcome.failed[pull.arm] = reason
            elif rows is not None and selector is not None:
                try:
                    selector.tell(pull, rows)
                except Exception as error:  # bad rows, or algebra that fails on them: other ranks wait for an order
                    outcome.unusable[pull.arm] = reason_of(error)
            if pull.arm in outcome.reasons:
                if selector is not None:
                    with suppress(InputError):  # algebra may fail when the rows are already counted
                        selector.give_back(pull)
                    selector.hold_arm(pull.arm)
                continue
            if selector is not None and pull.draw == 0:  # of later ones, more ranks draw less here
                selector.illustrate(pull, *samples)
            outcome.samples += pull.size
            advance(pull.size)
        return outcome

    def _next(self, selector: ModelSelector | None, outcome: Outcome) -> Pull | None:
        if selector is None or not selector.arms:
            return None
        try:
            return next(iter(selector.ask()), None)
        except InputError as error:  # conditions that cannot be obtained: other ranks wait for an order
            name = selector.select() or ""
            outcome.failed[name] = reason_of(error)
            selector.hold_arm(name)
        return self._next(selector, outcome)

    def _draw(self, borrowed: Borrowed, pull: Pull) -> tuple[Tensor | None, list[Tensor], str | None]:
        """Return the rows of the pull or why there are none, the same on all ranks, and this rank's samples."""
        arm = self.arms[pull.arm]
        mine: Tensor | Exception
        samples: list[Tensor] = []
        conditions: list[Any] = []
        try:
            # Put in again for every pull: what a sampler changes in the module must not reach the next pull, which may
            # be drawn by another number of ranks, or after an interruption.
            borrowed.put(self._weights(borrowed, arm.weights))
            parts = []
            for chunk in self.share.chunks(self.ranks.rank):
                part = part_of(pull, chunk, self.rows.chunk_size)
                given = (part.seed, part.conditions, samples.append)
                parts.append(self.rows.rows(self.store.trainer, borrowed.module, arm.variant, *given))
                conditions.append(part.conditions)
            mine = torch.cat(parts)
        except Exception as error:  # whatever a sampler raises: training continues without this arm
            mine, reason = error, reason_of(error)
            if reason not in self._logged:  # eight arms that fail for one reason are one traceback
                self._logged.add(reason)
                warn_of_failure(f"The arm {pull.arm!r} could not be sampled: {reason}", error)
        try:
            rows = self.share.merge(self.ranks.gather(mine))
        except BanditError as error:
            return None, [], reason_of(error)
        own = self.share.own(self.ranks.rank, sum(map(len, samples)))
        self.companions.add(pull.arm, samples, own, conditions)
        return rows, samples, None

    def _weights(self, borrowed: Borrowed, name: str) -> Fitted:
        # Files are mapped into memory, so holding all arms of one validation takes no memory that is not given back.
        if name not in self._fitted:
            self._fitted[name] = borrowed.fit(self.store.read(name))
        return self._fitted[name]
