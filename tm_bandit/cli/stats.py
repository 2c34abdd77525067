"""``tm-bandit stats``: reference statistics from images or features, in a file that every FID tool reads."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tm_bandit._files import check_writable
from tm_bandit.cli.console import Progress, note, note_left_out
from tm_bandit.cli.embedding import EMBEDDED_AT_ONCE, Sample, embed, make_cache, read_sample
from tm_bandit.cli.inputs import open_samples
from tm_bandit.cli.network import make_extractor
from tm_bandit.cli.parser import DECODERS
from tm_bandit.data import ImageFolder, SampleSource, is_statistics_file
from tm_bandit.data.feature_cache import FeatureCache
from tm_bandit.errors import BanditError, InputError, brief, printable
from tm_bandit.execution.workers import looking_elsewhere
from tm_bandit.extractors import NO_EXTRACTOR, Extractor
from tm_bandit.reference import ReferenceStatistics

#: The layer that FID is defined by.
_DEFAULT_FEATURE = 2048


def run(arguments: argparse.Namespace) -> int:
    """Make the reference file and say what is in it."""
    check_writable(arguments.output, [arguments.source])
    if arguments.output.suffix.lower() not in (".npz", ".pt"):
        raise InputError(f"Expected an output that ends in .npz or .pt, but got {arguments.output}; change its ending.")
    unreadable: list[str] = []
    if is_statistics_file(arguments.source) or Path(arguments.source).suffix.lower() == ".pt":
        reference = ReferenceStatistics.load(arguments.source)
        if arguments.rows and reference.rows is None:
            raise InputError(f"Expected samples for --rows, but got statistics without rows in {arguments.source}.")
    else:
        reference = _compute(arguments, unreadable)
    reference.save(arguments.output)
    _report(arguments, reference, unreadable)
    return 0


def _compute(arguments: argparse.Namespace, unreadable: list[str]) -> ReferenceStatistics:
    """Read everything once and accumulate its moments; ``unreadable`` collects what was left out."""
    source = open_samples(arguments, arguments.source)
    if source.is_features and arguments.feature not in (None, NO_EXTRACTOR):
        raise InputError(
            f"Expected images for --feature {arguments.feature}, but got features in {source.path}; use --feature none."
        )
    extractor = make_extractor(arguments, NO_EXTRACTOR if source.is_features else _DEFAULT_FEATURE)
    return statistics_of(source, extractor, arguments, arguments.rows or 0, unreadable, arguments.batch_size)


def statistics_of(
    source: SampleSource,
    extractor: Extractor,
    arguments: argparse.Namespace,
    rows: int,
    unreadable: list[str],
    batch_size: int = EMBEDDED_AT_ONCE,
) -> ReferenceStatistics:
    """Return the statistics of all samples of a source.

    Args:
        source: the real samples.
        extractor: the network; features are taken as they are.
        arguments: the parsed command line.
        rows: how many rows to keep.
        unreadable: collects what was left out.
        batch_size: images per step.

    Raises:
        InputError: if the samples cannot be used.
    """
    if not source.is_features and extractor.name == NO_EXTRACTOR:
        raise InputError(f"Expected features for --feature none, but got images in {source.path}; name a network.")
    unreadable += map(str, source.unreadable)
    batches = _rows(source, extractor, arguments, batch_size, unreadable)
    name = NO_EXTRACTOR if source.is_features else extractor.name
    try:
        return ReferenceStatistics.from_features(batches, name, rows, arguments.seed)
    except InputError as error:
        where = "" if str(source.path) in str(error) else f" (while reading {source.path})"
        raise InputError(f"{error}{where}") from error


def _rows(
    source: SampleSource, extractor: Extractor, arguments: argparse.Namespace, batch_size: int, unreadable: list[str]
) -> Iterator[Tensor]:
    """Yield features batch by batch, while other processes decode the next images."""
    cache, workers = make_cache(arguments, extractor), getattr(arguments, "workers", None)
    # An array needs no decoding, and a memory map would be copied into every process.
    decoders = (DECODERS if workers is None else int(workers)) if isinstance(source, ImageFolder) else 0
    samples = _Samples(source, cache)
    loader: DataLoader[Any] = DataLoader(samples, batch_size, num_workers=decoders, collate_fn=list)
    label = f"reading {source.path}"
    with Progress(len(source), label, "samples", quiet=arguments.quiet) as progress:
        with looking_elsewhere():  # where processes are not forked
            decoded = iter(loader)
        for batch in decoded:
            complaints = [item for item in batch if isinstance(item, str)]
            if complaints and not arguments.skip_unreadable:
                raise InputError(complaints[0])
            unreadable += complaints
            if readable := [item for item in batch if isinstance(item, Sample)]:
                yield _embedded(extractor, readable, source.is_features, cache)
            progress.advance(len(batch))


def _embedded(extractor: Extractor, samples: list[Sample], ready: bool, cache: FeatureCache | None) -> Tensor:
    if ready:
        return torch.stack([sample.value for sample in samples])
    try:
        return embed(samples, extractor, cache)
    except BanditError:
        raise
    except Exception as error:  # whatever a network of the user's raises
        raise InputError(f"Expected --feature {extractor.name} to take the samples, but got {brief(error)}") from error


def note_subset(reference: ReferenceStatistics, seed: int) -> None:
    """Say so if only some of the rows were kept.

    Args:
        reference: the statistics, with rows or without.
        seed: of the choice.
    """
    kept, count = None if reference.rows is None else len(reference.rows), reference.num_samples
    if kept is not None and count is not None and kept < count:
        note(f"kept a random {kept:,} of {count:,} rows (seed {seed})")


class _Samples(Dataset[Any]):
    """The source for worker processes: an unreadable sample becomes a string, which crosses processes unharmed."""

    def __init__(self, source: SampleSource, cache: FeatureCache | None) -> None:
        self._source = source
        self._cache = cache

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Sample | str:
        try:
            return read_sample(self._source, self._cache, index)
        except InputError as error:
            return str(error)


def _report(arguments: argparse.Namespace, reference: ReferenceStatistics, unreadable: list[str]) -> None:
    """Say what was written, and what is doubtful about it."""
    count, size = reference.num_samples, reference.num_features
    note_left_out(unreadable)
    if count is not None and count <= size:
        note(f"{count:,} samples of {size:,} features: the covariance is singular, take more than {size:,} if you can")
    summary = {
        "output": str(arguments.output),
        "num_samples": count,
        "num_features": size,
        "extractor": reference.extractor or NO_EXTRACTOR,
        "unreadable": len(unreadable),
    }
    if reference.rows is not None:
        summary["rows"] = len(reference.rows)
        note_subset(reference, arguments.seed)
    if arguments.json:
        print(json.dumps(summary))
    else:
        lines = (f"{key}: {'unknown' if value is None else value}" for key, value in summary.items())
        print(printable("\n".join(lines)))
