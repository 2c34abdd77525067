"""The loop of a run: pulls are made here, by all ranks of a group, or by workers; a bar shows the progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from torch import Tensor

from tm_bandit.errors import warn
from tm_bandit.execution.kit import Kit
from tm_bandit.execution.ranks import Ranks, idle_ranks, joined_ranks, pulls_on_ranks

if TYPE_CHECKING:
    from tm_bandit.execution.workers import WorkersLike
    from tm_bandit.pull import Pull

T = TypeVar("T")


class Run(Protocol):
    """What the loop needs of a selector."""

    budget: float
    batch_size: int
    #: Whether pulls are told with their cost.
    measures: bool

    @property
    def used(self) -> float:
        """How much of the budget is spent."""

    @property
    def unit(self) -> str:
        """What the budget counts: ``"samples"``, ``"seconds"`` or ``"cost"``."""

    @property
    def best(self) -> str | None:
        """The arm that is recommended now."""

    @property
    def retired(self) -> dict[str, str]:
        """The arms that failed or were taken out, with the reason."""

    def ask(self, pulls: int = 1) -> list[Pull]:
        """Return the pulls to make next, and put them under way."""

    def tell(self, pull: Pull, rows: Tensor | Exception, cost: float | None = None) -> None:
        """Book the outcome of a pull."""

    def give_back(self, pull: Pull) -> None:
        """Take back a pull that will never be told."""

    def step(self) -> str | None:
        """Make one pull and return the arm's name, or ``None`` at the end."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""


def run_to_the_end(
    run: Run,
    finish: Callable[[bool], T],
    kit: Kit,
    watch: Callable[[Iterator[str | None]], bool],
    workers: WorkersLike,
    timeout: float | None,
) -> T:
    """Make pulls until there are none left; return what ``finish(interrupted)`` returns, the same on all ranks.

    Args:
        run: the selector.
        finish: makes the result; it is told whether Ctrl-C ended the run.
        kit: carries out pulls.
        watch: makes the pulls of an iterator, and returns whether Ctrl-C ended it; see :func:`show`.
        workers: see :meth:`tm_bandit.ModelSelector.run`.
        timeout: seconds that a worker may take for a pull.
    """
    alone = isinstance(workers, (int, np.integer)) and int(workers) == 0
    if workers is not None and not alone:
        from tm_bandit.execution.hand_out import pulls_by_workers
        from tm_bandit.execution.workers import make_workers

        with closing(pulls_by_workers(run, kit, make_workers(workers), timeout)) as pulls:
            interrupted = watch(pulls)
        return finish(interrupted)
    if alone:
        return _together(run, finish, kit, watch, Ranks())
    with joined_ranks() as ranks:
        return _together(run, finish, kit, watch, ranks)


def _together(
    run: Run, finish: Callable[[bool], T], kit: Kit, watch: Callable[[Iterator[str | None]], bool], ranks: Ranks
) -> T:
    if ranks.world_size == 1 and kit.chunk_size is None:
        return finish(watch(iter(run.step, None)))
    idle = idle_ranks(run.batch_size, kit.chunk_size or run.batch_size, ranks.world_size)
    if idle and ranks.is_zero:
        warn(idle[0].upper() + idle[1:])
    with closing(pulls_on_ranks(run, kit, ranks)) as pulls:
        interrupted = watch(pulls) if ranks.is_zero else any(pulls)
    if ranks.is_zero:
        return ranks.tell((finish(interrupted), run.state_dict() if ranks.world_size > 1 else {}))[0]
    told: Any = ranks.tell(None)
    run.load_state_dict(told[1])
    result: T = told[0]
    return result


def show(run: Run, names: Iterator[str | None], progress: bool, plan: str = "") -> bool:
    """Make the pulls of an iterator under a bar; return whether Ctrl-C ended it.

    Args:
        run: the selector.
        names: yields the arm of each pull that was made.
        progress: show a bar.
        plan: what to print before.
    """
    from tqdm.auto import tqdm

    if progress and plan:
        tqdm.write(plan)
    try:
        unit = {"samples": "sample", "seconds": "s"}.get(run.unit, run.unit)
        with tqdm(total=run.budget, initial=round(run.used, 1), unit=unit, disable=not progress, leave=False) as bar:
            for name in names:
                if not progress:
                    continue
                bar.set_postfix_str(f"{name} | best {run.best or '-'}", refresh=False)
                bar.update(round(run.used - bar.n, 1))
    except KeyboardInterrupt:
        return True
    return False
