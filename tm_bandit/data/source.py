"""What every finite source of samples can do, and how one is opened from a path."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from tm_bandit._arguments import check_path
from tm_bandit.errors import InputError


class SampleSource(ABC):
    """Samples that already exist: counted without being read, and read one by one on demand.

    Args:
        path: the folder or file that the samples come from; error messages name it. ``unreadable`` lists the files
            in it that were left out when it was opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(check_path("path", path))
        self.unreadable: list[Path] = []

    @property
    @abstractmethod
    def is_features(self) -> bool:
        """Whether the samples are rows of features (or class probabilities), which need no feature network."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many samples there are."""

    @abstractmethod
    def __getitem__(self, index: int) -> Tensor:
        """Read one sample: a ``uint8`` or floating image ``(3, H, W)``, or one row of features ``(d,)``.

        Raises:
            InputError: if the sample cannot be read; the message names its file.
        """

    def describe(self, index: int) -> str:
        """Name the place that sample ``index`` comes from, for messages."""
        return f"{self.path}[{index}]"


def open_source(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    resize: int | None = None,
    skip_unreadable: bool = False,
    suffixes: Sequence[str] | None = None,
    max_pixels: int | None = None,
) -> SampleSource:
    """Open a folder of images, or a ``.npy`` / ``.npz`` file of images or features.

    Args:
        path: the folder or file.
        key: the name of the array inside an ``.npz`` file; needed only if the usual names leave a choice.
        resize: bring every image to this many pixels in both directions; without it, a folder whose images differ in
            size is refused.
        skip_unreadable: leave out the image files whose header cannot be read, instead of refusing the folder.
        suffixes: file name endings that count as images, instead of the usual ones.
        max_pixels: images with more pixels count as unreadable; ``None`` means
            :data:`~tm_bandit.data.images.MAX_PIXELS`.

    Raises:
        InputError: if there is nothing at ``path`` or nothing in it that can be used.
    """
    from tm_bandit.data.arrays import ArraySource
    from tm_bandit.data.images import MAX_PIXELS, ImageFolder

    target = Path(check_path("path", path))
    if os.path.isdir(target):  # unlike `is_dir`, it takes names that are too long
        most = MAX_PIXELS if max_pixels is None else max_pixels
        return ImageFolder(target, resize=resize, skip_unreadable=skip_unreadable, suffixes=suffixes, max_pixels=most)
    if not os.path.isfile(target):
        what = "is not a regular file" if os.path.exists(target) else "does not exist"
        raise InputError(f"Expected a folder of images or a .npy/.npz file, but got {target}, which {what}.")
    if target.suffix.lower() in (".npy", ".npz"):
        return ArraySource.open(target, key=key, resize=resize)
    raise InputError(f"Expected a folder of images or a .npy/.npz file, but got {target}; convert it to one of these.")
