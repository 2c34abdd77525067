"""The options that describe the score."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import Any

from tm_bandit import OptimisticFID, OptimisticIS, OptimisticKID, OptimisticMean, ReferenceStatistics
from tm_bandit.cli.console import note, note_left_out, plural
from tm_bandit.cli.inputs import open_samples
from tm_bandit.cli.network import make_extractor
from tm_bandit.cli.specs import import_reference, is_python_reference, make_object
from tm_bandit.cli.stats import note_subset, statistics_of
from tm_bandit.data import SourceSampler
from tm_bandit.errors import InputError
from tm_bandit.extractors import NO_EXTRACTOR, Extractor
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.reference_rows import MOST_ROWS

#: The named scores: how each is made, its usual network, and whether it compares with real samples.
_METRICS: dict[str, tuple[Any, str, bool]] = {
    "fid": (OptimisticFID, "2048", True),
    "kid": (OptimisticKID, "2048", True),
    "cmmd": (OptimisticKID.cmmd, "clip-vit-l-14-336px", True),
    "is": (OptimisticIS, "logits_unbiased", False),
}


def load_reference(arguments: argparse.Namespace) -> ReferenceStatistics | None:
    """Read the statistics of the real data, if the score needs them and they are in a file.

    For a folder of images they are computed by :func:`make_metric`, which has the network.

    Args:
        arguments: the parsed command line.

    Raises:
        InputError: if they are missing, or given but not needed.
    """
    name = arguments.metric
    needed = name in _METRICS and _METRICS[name][2]
    if not needed and arguments.reference is not None:
        kind = "the Inception Score" if name == "is" else "a score of single samples"
        raise InputError(f"Expected no --reference for --metric {name}, but got one; {kind} needs none.")
    if needed and arguments.reference is None:
        rows = "" if name == "fid" else " --rows"
        raise InputError(
            f"Expected --reference FILE|DIR for --metric {name}, but got none; give a folder of images, or a file that "
            f"`tm-bandit stats{rows}` made."
        )
    if not needed or os.path.isdir(arguments.reference):
        return None
    return ReferenceStatistics.load(arguments.reference)


def _computed(arguments: argparse.Namespace, extractor: Extractor) -> ReferenceStatistics:
    """Return the statistics of a folder of real images, computed now with the network of the score, and say so."""
    source = open_samples(arguments, arguments.reference)
    left_out: list[str] = []
    rows = 0 if arguments.metric == "fid" else MOST_ROWS
    reference = statistics_of(source, extractor, arguments, rows, left_out)
    note_left_out(left_out)
    if not arguments.quiet:
        note(
            f"the reference is computed from {plural(reference.num_samples or 0, 'image')} in {source.path} with "
            f"{extractor.name}; `tm-bandit stats` keeps it in a file"
        )
        note_subset(reference, arguments.seed)
    return reference


def make_metric(
    arguments: argparse.Namespace, arms: Iterable[Any], reference: ReferenceStatistics | None
) -> OptimisticMetric:
    """Build the metric; ``--feature`` defaults to its usual network, unless every arm consists of features.

    Args:
        arguments: the parsed command line.
        arms: the arms' samplers.
        reference: what :func:`load_reference` returned.

    Raises:
        InputError: if the options do not fit each other, the arms or the reference.
    """
    shared: dict[str, Any] = {"delta": arguments.delta}
    if is_python_reference(arguments.metric):
        metric = _make_mean(arguments, shared)
        if metric.needs_conditions:
            raise InputError(
                f"Expected --metric {arguments.metric} to score samples alone, but it takes conditions (prompts, "
                "labels), which the command line does not have; use ModelSelector(conditions=) in Python."
            )
        return metric
    if arguments.bounded is not None or arguments.lower_is_better:
        raise InputError(
            f"Expected --bounded and --lower-is-better only for a function as --metric, but got {arguments.metric}."
        )
    make, usual, _ = _METRICS[arguments.metric]
    sources = [arm.source for arm in arms if isinstance(arm, SourceSampler)]
    needs_network = len(sources) < len(list(arms)) or any(not source.is_features for source in sources)
    extractor = make_extractor(arguments, usual if needs_network else NO_EXTRACTOR)
    if extractor.name == NO_EXTRACTOR:
        images = next((source for source in sources if not source.is_features), None)
        if images is not None:
            raise InputError(f"Expected features for --feature none, but got images in {images.path}.")
    if arguments.bound is not None:
        shared["bound"] = arguments.bound
    if not _METRICS[arguments.metric][2]:
        return make(extractor, **shared)  # type: ignore[no-any-return]
    if reference is None:
        reference = _computed(arguments, extractor)
    try:
        return make(extractor, reference=reference, **shared)  # type: ignore[no-any-return]
    except InputError as error:
        raise InputError(f"{error} (the reference is {arguments.reference})") from error


def _make_mean(arguments: argparse.Namespace, shared: dict[str, Any]) -> OptimisticMetric:
    """Build the mean of a score that the user wrote, or take a metric as it is."""
    name = arguments.metric
    if arguments.bound is not None or arguments.feature is not None:
        raise InputError(f"Expected no --bound and no --feature for --metric {name}, which scores samples itself.")
    score = import_reference(name)
    if isinstance(score, OptimisticMetric):
        if arguments.bounded is not None or arguments.lower_is_better:
            raise InputError(
                f"Expected no --bounded and no --lower-is-better for --metric {name}, a metric that says so itself."
            )
        return score
    if isinstance(score, type):
        score = make_object(score, name)
    if not callable(score):
        kind = type(score).__name__
        raise InputError(f"Expected --metric {name} to be a function or module from samples to scores, but got {kind}.")
    bounded = None if arguments.bounded is None else tuple(arguments.bounded)
    return OptimisticMean(score, False if arguments.lower_is_better else None, bounded, **shared)
