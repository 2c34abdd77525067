"""``tm-bandit select``: which of these models is the best?"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tm_bandit import ModelSelector, OptimisticFID, OptimisticIS, Pull, ReferenceStatistics
from tm_bandit.cli.console import Progress, note
from tm_bandit.cli.inputs import check_supply, open_arms, report_unreadable
from tm_bandit.cli.network import make_extractor
from tm_bandit.cli.outputs import Outputs
from tm_bandit.cli.specs import parse_arms
from tm_bandit.data import SourceExhaustedError, SourceSampler
from tm_bandit.errors import ArmError, InputError
from tm_bandit.execution import carry_out, takes_generator
from tm_bandit.extractors import NO_EXTRACTOR
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.report.result import SelectionResult

_EMBED = 50  # samples that go through the network at once


def run(arguments: argparse.Namespace) -> int:
    """Pull arms until the budget is spent or the verdict is in, then show and write the result."""
    printed = arguments.json == "-"
    file = None if printed or arguments.json is None else Path(arguments.json)
    outputs = Outputs(arguments.plot, arguments.html, file, "json" if printed else "table")
    specs = parse_arms(arguments.arm)
    outputs.check([*(spec.place for spec in specs), *([arguments.reference] if arguments.reference else [])])
    if len(specs) < 2:
        raise InputError(f"Expected at least two arms to choose from, but got {specs[0].name!r} alone; add --arm.")
    reference = _load_reference(arguments)
    arms = open_arms(arguments, specs)
    metric = _make_metric(arguments, arms, reference).to(arguments.device)
    selector = ModelSelector(
        metric,
        {name: _Embedded(arm, metric) for name, arm in arms.items()},
        arguments.policy,
        batch_size=arguments.batch_size,
        budget=arguments.budget,
        burn_in=arguments.burn_in,
        seed=arguments.seed,
        stop=arguments.stop,
        goal=arguments.goal,
        epsilon=arguments.epsilon,
        samples="features",
    )
    check_supply(arms, arguments.budget, selector.burn_in, arguments.quiet)
    if not arguments.quiet:
        _print_plan(selector)
    result = _pull(selector, arms, arguments.quiet)
    report_unreadable(arms)
    for name, reason in result.retired.items():
        note(f"arm {name} was taken out: {' '.join(reason.split())}")
    outputs.write(result)
    if result.stopped_by == "interrupt":
        note("interrupted; this is what is known so far")
        return 1
    return 0


class _Embedded:
    """An arm as a sampler of rows: whatever it draws goes through the feature network, unless it is features already.

    Args:
        arm: a sampler of images or features.
        metric: holds the feature network.
    """

    def __init__(self, arm: Any, metric: OptimisticMetric) -> None:
        self._arm = arm
        self._metric = metric
        self._with_generator = takes_generator(arm)

    def __call__(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw samples and embed them, a part at a time so that a large batch fits into memory."""
        samples: Tensor
        samples = self._arm(num_samples, generator=generator) if self._with_generator else self._arm(num_samples)
        if not isinstance(samples, Tensor) or samples.ndim == 2:
            return samples  # features; anything but a tensor is refused by whoever called
        return torch.cat([self._metric.extract(part) for part in torch.split(samples, _EMBED)])


def _load_reference(arguments: argparse.Namespace) -> ReferenceStatistics | None:
    if arguments.metric == "is":
        if arguments.reference is not None:
            raise InputError("Expected no --reference for --metric is, but got one; the Inception Score needs none.")
        return None
    if arguments.reference is None:
        raise InputError("Expected --reference FILE for --metric fid, but got none; make one with `tm-bandit stats`.")
    return ReferenceStatistics.load(arguments.reference)


def _make_metric(
    arguments: argparse.Namespace, arms: dict[str, Any], reference: ReferenceStatistics | None
) -> OptimisticMetric:
    """Build the metric; without ``--feature`` the usual Inception layer, unless every arm consists of features."""
    needs_network = any(not (isinstance(arm, SourceSampler) and arm.source.is_features) for arm in arms.values())
    usual: str | int = 2048 if arguments.metric == "fid" else "logits_unbiased"
    extractor = make_extractor(arguments, usual if needs_network else NO_EXTRACTOR)
    if extractor.name == NO_EXTRACTOR:
        images = next((a for a in arms.values() if isinstance(a, SourceSampler) and not a.source.is_features), None)
        if images is not None:
            raise InputError(f"Expected features for --feature none, but got images in {images.source.path}.")
    shared: dict[str, Any] = {"bound": arguments.bound, "delta": arguments.delta}
    if arguments.metric == "is":
        return OptimisticIS(extractor, **shared)
    try:
        return OptimisticFID(extractor, reference=reference, **shared)
    except InputError as error:
        raise InputError(f"{error} (the reference is {arguments.reference})") from error


def _print_plan(selector: ModelSelector) -> None:
    """Show what the policy plans, if it has a plan: successive halving has its table of rungs."""
    selector.policy.prepare(num_arms=len(selector.arms), budget=selector.budget, batch_size=selector.batch_size)
    for line in selector.policy.describe().splitlines():
        note(line)


def _pull(selector: ModelSelector, arms: dict[str, Any], quiet: bool) -> SelectionResult:
    """Pull until the selector has had enough; Ctrl-C ends the run with what is known."""
    interrupted = False
    try:
        with Progress(selector.budget, "drawing", "samples", quiet=quiet) as progress:
            while pulls := selector.ask():
                before = selector.spent
                for pull in pulls:
                    _carry_out(selector, pull, arms[pull.arm])
                progress.advance(selector.spent - before, f"best so far: {selector.best or '-'}")
    except KeyboardInterrupt:
        interrupted = True
    result = selector.result()
    return dataclasses.replace(result, stopped_by="interrupt") if interrupted else result


def _carry_out(selector: ModelSelector, pull: Pull, arm: Any) -> None:
    """Carry out a pull. What is wrong with an arm that consists of files is wrong input, not a failure of a model.

    Raises:
        InputError: if a sample of a file cannot be read or used, or if a file has too few of them.
    """
    try:
        selector.tell(pull, carry_out(pull, _Embedded(arm, selector.metric), selector.metric, samples="features"))
    except ArmError as error:
        if not isinstance(arm, SourceSampler):
            selector.tell(pull, error)
            return
        ended = error.__cause__ is None or isinstance(error.__cause__, SourceExhaustedError)
        if not (ended and _used_up(arm, pull.size)):
            raise InputError(f"{error.__cause__ or error} (arm {pull.arm}, {arm.source.path})") from error
        selector.give_back(pull)
    if isinstance(arm, SourceSampler) and _used_up(arm, pull.size):
        if selector.stats(pull.arm).num_samples < selector.burn_in:
            raise InputError(
                f"Expected at least {selector.burn_in} readable samples in {arm.source.path}, but got fewer; "
                "add samples, lower --burn-in or --batch-size, or pass --replacement."
            )
        selector.hold_arm(pull.arm)


def _used_up(arm: SourceSampler, size: int) -> bool:
    return arm.remaining is not None and arm.remaining < size
