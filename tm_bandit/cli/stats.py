"""``tm-bandit stats``: reference statistics from images or features, in a file that every FID tool reads."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tm_bandit._files import check_writable
from tm_bandit.cli.console import Progress, note, plural
from tm_bandit.cli.network import make_extractor
from tm_bandit.data import ImageFolder, SampleSource, is_statistics_file, open_source
from tm_bandit.errors import InputError
from tm_bandit.extractors import NO_EXTRACTOR, Extractor
from tm_bandit.reference import ReferenceStatistics

_DEFAULT_FEATURE = 2048


class _Batch(NamedTuple):
    """The samples of a batch that could be read, and why the others could not."""

    samples: Tensor | None
    complaints: list[str]


def run(arguments: argparse.Namespace) -> int:
    """Make the reference file and say what is in it."""
    check_writable(arguments.output, [arguments.source])
    if arguments.output.suffix.lower() not in (".npz", ".pt"):
        raise InputError(f"Expected an output that ends in .npz or .pt, but got {arguments.output}; change its ending.")
    unreadable: list[str] = []
    if is_statistics_file(arguments.source) or Path(arguments.source).suffix.lower() == ".pt":
        reference = ReferenceStatistics.load(arguments.source)
    else:
        reference = _compute(arguments, unreadable)
    reference.save(arguments.output)
    _report(arguments, reference, unreadable)
    return 0


def _compute(arguments: argparse.Namespace, unreadable: list[str]) -> ReferenceStatistics:
    """Read everything once and accumulate its moments; ``unreadable`` collects what was left out."""
    source = open_source(
        arguments.source, key=arguments.key, resize=arguments.resize, skip_unreadable=arguments.skip_unreadable
    )
    if source.is_features and arguments.feature not in (None, NO_EXTRACTOR):
        raise InputError(
            f"Expected images for --feature {arguments.feature}, but got features in {source.path}; use --feature none."
        )
    if not source.is_features and arguments.feature == NO_EXTRACTOR:
        raise InputError(f"Expected features for --feature none, but got images in {source.path}; name a network.")
    extractor = make_extractor(arguments, NO_EXTRACTOR if source.is_features else _DEFAULT_FEATURE)
    unreadable += map(str, source.unreadable)
    rows = _rows(source, extractor, arguments, unreadable)
    try:
        return ReferenceStatistics.from_features(rows, extractor.name)
    except InputError as error:
        where = "" if str(source.path) in str(error) else f" (while reading {source.path})"
        raise InputError(f"{error}{where}") from error


def _rows(
    source: SampleSource, extractor: Extractor, arguments: argparse.Namespace, unreadable: list[str]
) -> Iterator[Tensor]:
    """Yield features batch by batch, while other processes decode the next images."""
    loader: DataLoader[Any] = DataLoader(
        _Samples(source),
        batch_size=arguments.batch_size,
        # An array needs no decoding, and a memory map would be copied into every process.
        num_workers=arguments.workers if isinstance(source, ImageFolder) else 0,
        collate_fn=_collate,
    )
    label = f"reading {source.path}"
    with Progress(len(source), label, "samples", quiet=arguments.quiet) as progress:
        for batch in loader:
            if batch.complaints and not arguments.skip_unreadable:
                raise InputError(batch.complaints[0])
            unreadable += batch.complaints
            if batch.samples is not None:
                yield extractor(batch.samples)
            progress.advance(len(batch.complaints) + (0 if batch.samples is None else len(batch.samples)))


class _Samples(Dataset[Any]):
    """The source for worker processes: an unreadable sample becomes a text, which crosses processes unharmed."""

    def __init__(self, source: SampleSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Tensor | str:
        try:
            return self._source[index]
        except InputError as error:
            return str(error)


def _collate(items: list[Tensor | str]) -> _Batch:
    samples = [item for item in items if isinstance(item, Tensor)]
    return _Batch(torch.stack(samples) if samples else None, [item for item in items if isinstance(item, str)])


def _report(arguments: argparse.Namespace, reference: ReferenceStatistics, unreadable: list[str]) -> None:
    """Say what was written, and what is doubtful about it."""
    count, size = reference.num_samples, reference.num_features
    if unreadable:
        note(f"left out {plural(len(unreadable), 'unreadable file')}, the first: {unreadable[0]}")
    if count is not None and count <= size:
        note(f"{count:,} samples of {size:,} features: the covariance is singular, take more than {size:,} if you can")
    summary = {
        "output": str(arguments.output),
        "num_samples": count,
        "num_features": size,
        "extractor": reference.extractor or NO_EXTRACTOR,
        "unreadable": len(unreadable),
    }
    if arguments.json:
        print(json.dumps(summary))
    else:
        print("\n".join(f"{key}: {'unknown' if value is None else value}" for key, value in summary.items()))
