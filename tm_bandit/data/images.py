"""Folders of images: found and checked by their headers, decoded one at a time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from tm_bandit._arguments import check_count, check_path
from tm_bandit._files import check_regular
from tm_bandit.data.source import SampleSource
from tm_bandit.errors import InputError

#: File name endings that count as images; everything else in a folder is ignored.
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")

#: Default limit on the pixels of an image: what the largest cameras make. Each takes fifteen
#: bytes of memory (measured), so a small file of one colour could fill any machine.
MAX_PIXELS = 64_000_000

#: Kinds of images that are decoded, whatever a file's name says. Pillow knows thirty more: for one of them it starts
#: another program (PostScript), and some hold an image that is larger than their header says (icons).
_KINDS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM", "GIF", "JPEG2000", "AVIF")

_AT_ONCE = 64  # headers that a thread reads in one go: handing them out one by one took longer than reading them


class _Header(NamedTuple):
    """What the first bytes of an image file say: its size, or why it cannot be opened."""

    path: Path
    size: tuple[int, int] | None
    reason: str = ""


def list_images(folder: str | os.PathLike[str], suffixes: Sequence[str] | None = None) -> list[Path]:
    """List the image files below a folder, sorted by name, sub-folders included, each folder once.

    Args:
        folder: where to look. Hidden files and folders are left out.
        suffixes: file name endings that count as images, instead of :data:`IMAGE_SUFFIXES`.

    Raises:
        InputError: if the folder holds no image.
    """
    root = Path(check_path("folder", folder))
    known = IMAGE_SUFFIXES if suffixes is None else suffixes
    if isinstance(known, str) or not isinstance(known, Sequence) or not all(isinstance(item, str) for item in known):
        raise InputError(f"Expected `suffixes` to be a list of endings such as '.png', but got {suffixes!r}.")
    endings = tuple(suffix.lower() for suffix in known)
    found, seen = [], set()
    for parent, folders, files in os.walk(root, followlinks=True):
        # A link to a parent or sibling folder would let its images count twice, or without end.
        if (place := os.path.realpath(parent)) in seen:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in files if name.lower().endswith(endings) and not name.startswith(".")]
    if not found:
        raise InputError(f"Expected images ({', '.join(endings)}) in the folder, but got none in {root}.")
    return sorted(found)


def decode_image(path: str | os.PathLike[str], resize: int | None = None, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Decode one image file to ``uint8`` RGB of shape ``(3, H, W)``.

    Grey images become three equal channels, transparency is dropped, palettes are resolved and 16-bit images keep
    their upper byte. A resize is bicubic with antialiasing, as clean-fid does it.

    Args:
        path: the file.
        resize: the width and height to bring the image to; ``None`` leaves it as it is.
        max_pixels: an image with more pixels is not decoded.

    Raises:
        InputError: if the file cannot be decoded, for example because it was cut off, or is too large.
    """
    try:
        check_regular(path)  # opening a pipe would wait forever
        with Image.open(path, formats=_kinds()) as image:
            _check_pixels(image, max_pixels)
            pixels = np.array(_to_rgb(image), dtype=np.uint8).transpose(2, 0, 1)
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error and more
        raise InputError(
            f"Expected a readable image, but got {path} ({_reason(error)}); remove or repair it."
        ) from error
    return torch.from_numpy(pixels if resize is None else resize_pixels(pixels, resize)).contiguous()


def resize_pixels(image: np.ndarray[Any, Any], side: int) -> np.ndarray[Any, Any]:
    """Bring an image to ``side`` pixels in both directions: bicubic with antialiasing, channel by channel.

    Args:
        image: shape ``(channels, H, W)``; floats come back as float32, within their original range.
        side: the new width and height.

    Example:
        >>> resize_pixels(np.full((3, 8, 6), 7, dtype=np.uint8), 4).shape
        (3, 4, 4)
    """
    if image.shape[1:] == (side, side):
        return image
    pixels: np.ndarray[Any, Any] = image if image.dtype == np.uint8 else image.astype(np.float32)
    channels = [Image.fromarray(channel).resize((side, side), Image.Resampling.BICUBIC) for channel in pixels]
    resized = np.stack([np.asarray(channel) for channel in channels])
    return resized if image.dtype == np.uint8 else resized.clip(pixels.min(), pixels.max())


class ImageFolder(SampleSource):
    """The images below a folder, decoded only when they are read.

    Opening the folder reads the header of every file: a folder with files that are not images, or with images of
    different sizes, is refused at once and not after an hour of sampling.

    Args:
        path: the folder.
        resize: bring every image to this many pixels in both directions.
        skip_unreadable: leave out the files whose header cannot be read; they are listed in ``unreadable``.
        suffixes: file name endings that count as images, instead of :data:`IMAGE_SUFFIXES`.
        max_pixels: images with more pixels than this count as unreadable.

    Raises:
        InputError: if there is no (readable) image, or if the sizes differ and ``resize`` was not given.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        resize: int | None = None,
        skip_unreadable: bool = False,
        suffixes: Sequence[str] | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(path)
        self.resize = None if resize is None else check_count("resize", resize, 1)
        self.max_pixels = check_count("max_pixels", max_pixels, 1)
        files = list_images(self.path, suffixes)
        parts = [files[start : start + _AT_ONCE] for start in range(0, len(files), _AT_ONCE)]
        with ThreadPoolExecutor(min(16, len(parts))) as pool:  # waiting for the disk, not for the processor
            headers = [header for part in pool.map(_read_headers, parts, [max_pixels] * len(parts)) for header in part]
        self.unreadable = [header.path for header in headers if header.size is None]
        readable = [header for header in headers if header.size is not None]
        if self.unreadable and not (skip_unreadable and readable):
            first = next(header for header in headers if header.size is None)
            raise InputError(
                f"Expected readable images, but got {len(self.unreadable)} of {len(files)} that cannot be opened in "
                f"{self.path}, the first is {first.path} ({first.reason}); remove them or pass --skip-unreadable."
            )
        if resize is None:
            _check_one_size(readable, self.path)
        self.files = [header.path for header in readable]

    @property
    def is_features(self) -> bool:
        """Images need a feature network."""
        return False

    def __len__(self) -> int:
        """Return the number of files whose header could be read."""
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        """Decode one image."""
        return decode_image(self.files[index], self.resize, self.max_pixels)

    def describe(self, index: int) -> str:
        """Return the path of the image."""
        return str(self.files[index])


def _check_one_size(headers: Sequence[_Header], folder: Path) -> None:
    """Refuse a folder whose images cannot be stacked, naming one that differs from the most frequent size."""
    sizes = Counter(header.size for header in headers)
    if len(sizes) <= 1:
        return
    usual = sizes.most_common(1)[0][0]
    odd = next(header for header in headers if header.size != usual)
    raise InputError(
        f"Expected images of one size in {folder}, but got {_size(usual)} and {_size(odd.size)} ({odd.path}); "
        "bring them to one size or pass --resize."
    )


@cache
def _kinds() -> list[str]:
    """Return the kinds of images that this version of Pillow decodes."""
    Image.init()
    return [kind for kind in _KINDS if kind in Image.OPEN]


def _check_pixels(image: Image.Image, most: int) -> None:
    width, height = image.size
    if width * height > most:
        raise ValueError(f"{width * height:,} pixels, {most:,} are allowed: raise --max-pixels if you trust it")


def _read_header(path: Path, max_pixels: int) -> _Header:
    """Read an image's size without decoding its pixels."""
    try:
        check_regular(path)
        with Image.open(path, formats=_kinds()) as image:
            _check_pixels(image, max_pixels)
            return _Header(path, image.size)
    except Exception as error:  # see decode_image
        return _Header(path, None, _reason(error))


def _read_headers(paths: Sequence[Path], max_pixels: int) -> list[_Header]:
    return [_read_header(path, max_pixels) for path in paths]


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB the way people expect, even if Pillow's own conversion would clip or warn."""
    if image.mode.startswith("I"):  # 16-bit grey: Pillow clips it to 255, which turns nearly everything white
        image.load()
        return Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    # A palette with transparency warns unless it goes through RGBA.
    return (image.convert("RGBA") if image.mode == "P" else image).convert("RGB")


def _reason(error: Exception) -> str:
    """Say in a few words why a file could not be read; Pillow's own text repeats the whole path."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split()) or type(error).__name__


def _size(size: tuple[int, int] | None) -> str:
    return "unknown" if size is None else f"{size[0]}x{size[1]}"
