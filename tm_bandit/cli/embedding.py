"""From images in files to rows: decoded and sent through the network, unless their rows are in the cache."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit._weights_file import content_tag
from tm_bandit.cli.specs import is_python_reference
from tm_bandit.data import ImageFolder, SampleSource
from tm_bandit.data.feature_cache import FeatureCache, default_folder
from tm_bandit.extractors import Extractor

#: Samples that go through the network at once.
EMBEDDED_AT_ONCE = 50

#: What decodes, resizes and embeds images: another version may do it differently.
_PACKAGES = ("tm-bandit", "torch", "torchvision", "torchmetrics", "torch-fidelity", "pillow", "numpy")


class Sample(NamedTuple):
    """What was read from a source.

    Args:
        value: an image, or its row.
        known: whether it is the row.
        file: where it comes from, if its row can be kept.
        key: the file's stamp before it was read; ``None`` if the row must not be kept.
    """

    value: Tensor
    known: bool = False
    file: Path | None = None
    key: bytes | None = None


def make_cache(arguments: argparse.Namespace, extractor: Extractor, rows: str = "features") -> FeatureCache | None:
    """Return the cache of a network's rows; ``None`` if none is wanted, or the network has no name.

    Named networks are identified by their weights. What a user's function or module computes can change without a
    trace in its weights, so its rows are not kept; nor are those of a network whose code is in a folder.

    Args:
        arguments: the parsed command line.
        extractor: the network.
        rows: what is made of its output.
    """
    module = None if extractor.network is None else extractor.network.module
    own = is_python_reference(arguments.feature or "") or Path(arguments.weights or "-").is_dir()
    if arguments.no_cache or module is None or own:
        return None
    state = module.state_dict()
    parts = (
        *(rows, extractor.name, extractor.layer, extractor.normalize, type(module).__qualname__, content_tag(state)),
        *(arguments.resize, torch.device(arguments.device).type, *map(_version, _PACKAGES)),
    )
    return FeatureCache(arguments.cache or default_folder(), repr(parts))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def read_sample(source: SampleSource, cache: FeatureCache | None, index: int) -> Sample:
    """Read a sample: its row if that is known, else decode it.

    Args:
        source: where it comes from.
        cache: rows that are known.
        index: which sample.

    Raises:
        InputError: if it cannot be read.
    """
    if cache is None or not isinstance(source, ImageFolder):
        return Sample(source[index])
    file = source.files[index]
    key = cache.stamp(file)
    known = None if key is None else cache.find(key)
    return Sample(source[index], False, file, key) if known is None else Sample(known, True)


def embed(samples: Sequence[Sample], extract: Callable[[Tensor], Tensor], cache: FeatureCache | None) -> Tensor:
    """Return the rows of samples in order, and keep those that are new.

    A large batch goes through the network in parts, so that it fits into memory.

    Args:
        samples: what :func:`read_sample` returned.
        extract: from a batch of images to rows.
        cache: where rows are kept.
    """
    fresh = [sample for sample in samples if not sample.known]
    made: list[Tensor] = []
    for start in range(0, len(fresh), EMBEDDED_AT_ONCE):
        made += extract(torch.stack([sample.value for sample in fresh[start : start + EMBEDDED_AT_ONCE]])).unbind()
    if cache is not None:
        pairs = zip(fresh, made, strict=True)
        # A file that has changed meanwhile has another stamp, and it is unknown which content was read.
        cache.keep((s.key, row) for s, row in pairs if s.key is not None and s.file and cache.stamp(s.file) == s.key)
    rows = iter(made)
    device = made[0].device if made else torch.device("cpu")
    return torch.stack([s.value.to(device) if s.known else next(rows) for s in samples])
