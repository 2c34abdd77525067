"""Running a selector to its end: what comes before the first pull, and what comes after the last."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tm_bandit._arguments import check_count, check_flag
from tm_bandit.execution.kit import Kit
from tm_bandit.execution.loop import run_to_the_end, show
from tm_bandit.report.thumbnails import MOST
from tm_bandit.selection.costs import BudgetLike, budget_in, budget_in_samples

if TYPE_CHECKING:
    from tm_bandit.execution.workers import WorkersLike
    from tm_bandit.report.result import SelectionResult
    from tm_bandit.selection.selector import ModelSelector


def run_selector(
    selector: ModelSelector,
    progress: bool,
    budget: BudgetLike | None,
    workers: WorkersLike,
    timeout: float | None,
    chunk_size: int | None,
) -> SelectionResult:
    """Pull until there is nothing left to do; see :meth:`tm_bandit.ModelSelector.run`, also for the errors.

    Args:
        selector: the selector.
        progress: show a progress bar.
        budget: spend this much more.
        workers: who draws.
        timeout: seconds that a worker may take for a pull.
        chunk_size: samples per call of a sampler.
    """
    progress = check_flag("progress", progress)
    size = None if chunk_size is None else check_count("chunk_size", chunk_size, 1)
    if budget is not None:
        selector.budget = selector.used + budget_in(selector.unit, budget)
    selector._arms.warn_of_a_small_budget(selector.burn_in, selector.budget)
    plan = ""
    if not selector._prepared:
        prepare(selector)
        plan = selector.policy.describe()
    watch = partial(show, selector, progress=progress, plan=plan)
    return run_to_the_end(selector, partial(finish, selector), kit_of(selector, size), watch, workers, timeout)


def prepare(selector: ModelSelector) -> None:
    """Tell the policy, once, what there is to spend.

    Args:
        selector: the selector.
    """
    samples = budget_in_samples(selector.budget, selector._costs, selector.policy)
    selector.policy.prepare(num_arms=len(selector.arms), budget=samples, batch_size=selector.batch_size)
    selector._prepared = True


def kit_of(selector: ModelSelector, chunk_size: int | None = None) -> Kit:
    """Return what carries out the pulls of a selector, here or elsewhere.

    Args:
        selector: the selector.
        chunk_size: samples per call of a sampler.
    """
    return Kit(selector._arms.samplers, selector.metric, selector.samples, chunk_size, selector.illustrate, MOST)


def finish(selector: ModelSelector, interrupted: bool) -> SelectionResult:
    """Return the result of a run.

    Args:
        selector: the selector.
        interrupted: whether Ctrl-C ended it.
    """
    if interrupted:
        selector._stopped_by = "interrupt"
    return selector.result()
