"""Small pictures of samples, for the page of a result: PNG files, and how a page holds them."""

from __future__ import annotations

import base64
import io
import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image as Picture
    from torch import Tensor

#: Pixels of the longer side, and pictures per arm: two arms take about 200 kB of a page.
SIZE, MOST = 64, 12

_PREFIX = "data:image/png;base64,"

#: Pixels between the pictures of a sheet, and how many are in a line.
_GAP, _COLUMNS = 2, 6


def thumbnails(images: Tensor) -> list[bytes]:
    """Return the first images as small PNG files; none if these are not images.

    Integers go up to 255; floats go from 0 to 1, or from -1 to 1 if some are negative. Small images keep their size.

    Args:
        images: a batch of shape ``(N, C, H, W)`` with one, three or four channels.

    Example:
        >>> import torch
        >>> [file[1:4] for file in thumbnails(torch.zeros(2, 3, 8, 8))]
        [b'PNG', b'PNG']
        >>> thumbnails(torch.zeros(2, 512))
        []
    """
    if images.ndim != 4 or images.shape[1] not in (1, 3, 4) or min(images.shape[2:]) < 2:
        return []
    from PIL import Image

    kept = images[:MOST].detach().cpu()
    low, scale = 0.0, 1.0
    if kept.dtype.is_floating_point:
        low = -1.0 if bool((kept < 0.0).any()) else 0.0
        scale = 255.0 / (1.0 - low)
    files = []
    for image in kept:
        pixels = scale * (np.nan_to_num(image.float().numpy(), posinf=255.0, neginf=-1.0).transpose(1, 2, 0) - low)
        array = pixels.clip(0, 255).round().astype(np.uint8)
        picture = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array[..., :3])
        picture.thumbnail((SIZE, SIZE))
        file = io.BytesIO()
        picture.save(file, "PNG", optimize=True)
        files.append(file.getvalue())
    return files


def is_early(before: int) -> bool:
    """Whether the next samples of an arm are among the first ones, which are shown.

    Args:
        before: samples that the arm has drawn.
    """
    return before < MOST


def sheet(uris: Sequence[str]) -> Picture:
    """Join pictures into one, side by side.

    Args:
        uris: PNG files as :func:`data_uri` returns them, at least one.

    Example:
        >>> import torch
        >>> sheet([data_uri(file) for file in thumbnails(torch.zeros(8, 3, 10, 10))]).size
        (70, 22)
    """
    from PIL import Image

    files = (io.BytesIO(png_file(uri)) for uri in uris)
    pictures = [Image.open(file, formats=["PNG"]).convert("RGB") for file in files]
    columns = min(_COLUMNS, len(pictures))
    width, height = (max(sides) + _GAP for sides in zip(*(picture.size for picture in pictures), strict=True))
    lines = -(-len(pictures) // columns)
    whole = Image.new("RGB", (columns * width - _GAP, lines * height - _GAP), "white")
    for at, picture in enumerate(pictures):
        whole.paste(picture, (at % columns * width, at // columns * height))
    return whole


def data_uri(file: bytes) -> str:
    """Return a PNG file as a data URI.

    Args:
        file: the file's content.
    """
    return _PREFIX + base64.b64encode(file).decode("ascii")


def png_file(uri: str) -> bytes:
    """Return the file that :func:`data_uri` was given.

    Args:
        uri: the data URI.

    Raises:
        ValueError: if it is not one.

    Example:
        >>> png_file(data_uri(b"PNG"))
        b'PNG'
    """
    if not is_data_uri(uri):
        raise ValueError(f"{str(uri)[:40]!r} is not a picture")
    return base64.b64decode(uri.removeprefix(_PREFIX))


def is_data_uri(text: object) -> bool:
    """Whether a string is what :func:`data_uri` returns: results are read from files that anyone may have written.

    Example:
        >>> is_data_uri(data_uri(b"PNG")), is_data_uri("https://example.org/spy.png")
        (True, False)
    """
    return isinstance(text, str) and re.fullmatch(re.escape(_PREFIX) + "[A-Za-z0-9+/]+={0,2}", text) is not None
