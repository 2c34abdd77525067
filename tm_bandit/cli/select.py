"""``tm-bandit select``: which of these models is the best?"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tm_bandit import ModelSelector, Pull
from tm_bandit._failures import trace_of
from tm_bandit.cli.console import Progress, note
from tm_bandit.cli.embedding import Sample, embed, make_cache, read_sample
from tm_bandit.cli.inputs import check_supply, open_arms, pairing_of, report_unreadable
from tm_bandit.cli.metric import load_reference, make_metric
from tm_bandit.cli.outputs import Outputs
from tm_bandit.cli.specs import parse_arms, parse_costs
from tm_bandit.data import ImageFolder, SourceExhaustedError, SourceSampler
from tm_bandit.data.feature_cache import FeatureCache
from tm_bandit.errors import ArmError, BanditError, InputError
from tm_bandit.execution import takes_generator
from tm_bandit.execution.draw import scored
from tm_bandit.execution.loop import run_to_the_end
from tm_bandit.execution.ranks import Ranks, default_chunk_size, joined_ranks
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.metrics.feature_metric import FeatureMetric
from tm_bandit.report.result import SelectionResult
from tm_bandit.selection.running import finish, kit_of, prepare


def run(arguments: argparse.Namespace) -> int:
    """Pull arms until the budget is spent or the verdict is in, then show and write the result.

    Under torchrun all processes draw, and only the first one writes and prints.
    """
    with joined_ranks() as ranks:
        if ranks.world_size > 1 and arguments.device == "cuda":
            arguments.device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        error: Exception | None = None
        try:
            selector, arms, outputs = _prepare(arguments, ranks)
        except BanditError as refusal:  # the other processes must learn of it before they wait for this one
            error = refusal
        reason_of_all = ranks.first_error(error)
        if reason_of_all is not None:
            if ranks.is_zero:
                raise error or InputError(f"Another process failed ({reason_of_all}).")
            return 2
        try:
            result = _pull(selector, arguments)
        except ArmError as failure:
            if arguments.on_error == "raise" and ranks.is_zero:
                print(trace_of(failure), end="", file=sys.stderr)
            raise
        if not ranks.is_zero:
            return 0
    report_unreadable(arms)
    for name, reason in result.retired.items():
        note(f"arm {name} was retired: {' '.join(reason.split())}")
    outputs.write(result)
    if result.stopped_by == "interrupt":
        note("interrupted; this is what is known so far")
        return 1
    return 0


def _prepare(arguments: argparse.Namespace, ranks: Ranks) -> tuple[_Selector, dict[str, Any], Outputs]:
    """Open everything and refuse what would fail later."""
    printed = arguments.json == "-"
    file = None if printed or arguments.json is None else Path(arguments.json)
    outputs = Outputs(arguments.plot, arguments.html, file, "json" if printed else "table")
    if arguments.patterns and file is not None and file.exists() and file.suffix.lower() != ".json":
        # `--json *.ckpt` would otherwise replace the first of them.
        raise InputError(
            f"Expected a new file or a .json file for --json beside PATTERN, but got {file}, which exists; write "
            "--json=FILE, or give the patterns before --json."
        )
    specs = parse_arms(arguments.arm, arguments.patterns)
    outputs.check([*(spec.place for spec in specs), *([arguments.reference] if arguments.reference else [])])
    if len(specs) * max(1, len(arguments.variant)) < 2:
        raise InputError(f"Expected at least two arms to choose from, but got {specs[0].name!r} alone; add --arm.")
    reference = load_reference(arguments)
    arms = open_arms(arguments, specs)
    arguments.quiet = arguments.quiet or not ranks.is_zero
    metric = make_metric(arguments, list(arms.values()), reference).to(arguments.device)
    cache = _cache(arguments, arms, metric)
    workers = arguments.workers is not None or arguments.ray is not None
    if ranks.world_size > 1 and workers:
        raise InputError(
            "Expected either several processes of torchrun or --workers and --ray, but got both: each process would "
            "select by itself; leave one out."
        )
    several = ranks.world_size > 1 or workers
    if several and arguments.skip_unreadable and any(isinstance(arm, SourceSampler) for arm in arms.values()):
        raise InputError(
            "Expected folders and files whose samples can all be read for several processes, but got "
            "--skip-unreadable: none of them would know where the others are; remove what cannot be read."
        )
    options = ("policy", "batch_size", "budget", "burn_in", "seed", "stop", "goal", "epsilon", "on_error")
    selector = _Selector(
        metric,
        {name: _Embedded(arm, metric, cache) for name, arm in arms.items()},
        **{name: getattr(arguments, name) for name in options},
        cost=parse_costs(arguments.cost),
        pairing=pairing_of(arguments, arms),
        samples="features",
    )
    selector.take_stock(arms, several)
    check_supply(arms, int(selector.budget) if selector.unit == "samples" else 0, selector.burn_in, arguments.quiet)
    if not arguments.quiet:  # successive halving has a plan: its table of rungs
        prepare(selector)
        for line in selector.policy.describe().splitlines():
            note(line)
    return selector, arms, outputs


class _Embedded:
    """An arm as a sampler of rows: what it draws goes through the feature network, unless it draws features.

    Args:
        arm: a sampler of images or features.
        metric: holds the feature network.
        cache: rows of image files that are already known.
    """

    def __init__(self, arm: Any, metric: OptimisticMetric, cache: FeatureCache | None = None) -> None:
        self._arm = arm
        self._cache = cache
        self._metric = metric
        self._with_generator = takes_generator(arm)
        if hasattr(arm, "seek"):
            self.seek = arm.seek

    def __call__(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw samples and embed them, a part at a time so that a large batch fits into memory."""
        if isinstance(self._arm, SourceSampler) and not self._arm.source.is_features:
            read = partial(read_sample, self._arm.source, self._cache)
            return embed(self._arm.take(num_samples, read, generator), partial(scored, self._metric), self._cache)
        samples: Tensor
        samples = self._arm(num_samples, generator=generator) if self._with_generator else self._arm(num_samples)
        ready = isinstance(samples, Tensor) and samples.ndim == 2 and isinstance(self._metric, FeatureMetric)
        if ready or not isinstance(samples, Tensor):
            return samples  # features; the caller refuses anything but a tensor
        return embed([Sample(sample) for sample in samples], partial(scored, self._metric), None)


def _cache(arguments: argparse.Namespace, arms: dict[str, Any], metric: OptimisticMetric) -> FeatureCache | None:
    """Return the cache, unless no arm is a folder of images or the score has no network."""
    folders = any(isinstance(arm, SourceSampler) and isinstance(arm.source, ImageFolder) for arm in arms.values())
    if not folders or not isinstance(metric, FeatureMetric):
        return None
    # The rows of the Inception Score are probabilities; those of the others are what the network returns.
    kind = "features" if type(metric).extract is FeatureMetric.extract else type(metric).__name__
    return make_cache(arguments, metric.extractor, kind)


def _pull(selector: _Selector, arguments: argparse.Namespace) -> SelectionResult:
    """Pull until the selector is done; Ctrl-C ends the run with what is known."""
    kit = kit_of(selector, _chunk_size(arguments))

    def watch(names: Iterator[str | None]) -> bool:
        try:
            with Progress(selector.budget, "drawing", selector.unit, quiet=arguments.quiet) as progress:
                before = selector.used
                for _ in names:
                    progress.advance(selector.used - before, f"best so far: {selector.best or '-'}")
                    before = selector.used
        except KeyboardInterrupt:
            return True
        return False

    return run_to_the_end(selector, partial(finish, selector), kit, watch, *_workers(arguments))


def _workers(arguments: argparse.Namespace) -> tuple[Any, float | None]:
    workers = arguments.workers
    if arguments.ray is not None:
        from tm_bandit.execution.ray_workers import RayWorkers

        workers = RayWorkers(workers or 1, address=arguments.ray)
    return workers, arguments.timeout


def _chunk_size(arguments: argparse.Namespace) -> int:
    size: int = arguments.chunk_size or default_chunk_size(arguments.batch_size)
    if arguments.batch_size % size:
        raise InputError(
            f"Expected --chunk-size to divide the --batch-size of {arguments.batch_size}, but got {size}; change one."
        )
    return size


class _Selector(ModelSelector):
    """A selector whose arms may be files: these run out, and an error in them is an input error."""

    def take_stock(self, arms: dict[str, Any], several: bool) -> None:
        """Learn what the arms are.

        Args:
            arms: the arms by name.
            several: whether other processes draw, so that only the number of draws shows how much is left.
        """
        self._files = {name: arm for name, arm in arms.items() if isinstance(arm, SourceSampler)}
        self._stock = {name: arm.remaining for name, arm in self._files.items()} if several else {}

    def ask(self, pulls: int = 1) -> list[Pull]:
        """Ask one by one, because an arm whose last samples are under way must not be asked again."""
        asked: list[Pull] = []
        while len(asked) < pulls and (new := super().ask()):
            asked += new
            name = new[0].arm
            stock = self._stock.get(name)
            if stock is not None and (self.draws(name) + 1) * self.batch_size > stock:
                self.hold_arm(name)
        return asked

    def tell(self, pull: Pull, rows: Tensor | Exception, cost: float | None = None) -> None:
        """Book a pull; an arm whose files are used up is held.

        Raises:
            InputError: if a sample of a file cannot be read or used, or if a file has too few of them.
        """
        arm = self._files.get(pull.arm)
        try:
            if arm is not None and isinstance(rows, ArmError):
                raise rows
            super().tell(pull, rows, cost)
        except ArmError as error:
            if arm is None:
                raise
            ended = error.__cause__ is None or isinstance(error.__cause__, SourceExhaustedError)
            if pull.arm in self._stock or not (ended and _used_up(arm, pull.size)):
                cause = error.__cause__ or error
                reason = cause if isinstance(cause, BanditError) else error
                raise InputError(f"{reason} (arm {pull.arm}, {arm.source.path})") from error
            self.give_back(pull)
        if arm is not None and pull.arm not in self._stock and _used_up(arm, pull.size):
            if self.stats(pull.arm).num_samples < self.burn_in:
                raise InputError(
                    f"Expected at least {self.burn_in} readable samples in {arm.source.path}, but got fewer; "
                    "add samples, lower --burn-in or --batch-size, or pass --replacement."
                )
            self.hold_arm(pull.arm)


def _used_up(arm: SourceSampler, size: int) -> bool:
    return arm.remaining is not None and arm.remaining < size
