"""Arrays of images or features in ``.npy`` and ``.npz`` files, read from disk only as needed."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tm_bandit._arguments import check_count, check_name, check_path
from tm_bandit._files import check_regular
from tm_bandit._npz import read_header, read_member
from tm_bandit.data.images import resize_pixels
from tm_bandit.data.source import SampleSource
from tm_bandit.errors import InputError

#: Names under which samples are found in an ``.npz`` file, in this order: ``numpy.savez`` and guided-diffusion write
#: ``arr_0``, clean-fid writes ``feats``.
SAMPLE_KEYS = ("arr_0", "images", "samples", "features", "feats", "probs")

_LOCAL_HEADER = 30  # bytes of a zip member's fixed local header; its last four hold the lengths of name and extra field


class ArraySource(SampleSource):
    """Samples in one array: images ``(N, H, W, 3)``, ``(N, 3, H, W)`` or ``(N, H, W)``, or features ``(N, d)``.

    Args:
        array: the samples; only the indexed parts of a memory map are read.
        path: the file that they come from.
        resize: the width and height to bring images to; ``None`` leaves them as they are.

    Raises:
        InputError: if the array's shape or type is none of the above.

    Example:
        >>> source = ArraySource(np.zeros((10, 8, 8, 3), dtype=np.uint8), "samples.npz")
        >>> len(source), source.is_features, tuple(source[0].shape)
        (10, False, (3, 8, 8))
    """

    def __init__(self, array: np.ndarray[Any, Any], path: str | os.PathLike[str], resize: int | None = None) -> None:
        super().__init__(path)
        if not isinstance(array, np.ndarray):
            raise InputError(f"Expected an array of samples, but got a {type(array).__name__}; use `numpy.asarray`.")
        self._channels_last = _check_samples(array, self.path)
        self._array = array
        self.resize = None if resize is None else check_count("resize", resize, 1)
        # What torch can hold: numbers in this machine's byte order, of at most 64 bits.
        self._dtype = np.dtype(np.float64) if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")

    @classmethod
    def open(cls, path: str | os.PathLike[str], key: str | None = None, resize: int | None = None) -> ArraySource:
        """Open a ``.npy`` or ``.npz`` file.

        Args:
            path: the file.
            key: the array's name inside an ``.npz`` file.
            resize: the width and height to bring images to.

        Raises:
            InputError: if the file cannot be read, or holds no array of samples.
        """
        path = check_path("path", path)
        return cls(open_array(path, _sample_key(array_names(path), Path(path), key)), path, resize)

    @property
    def is_features(self) -> bool:
        """Whether the rows are already features."""
        return self._array.ndim == 2

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._array)

    def __getitem__(self, index: int) -> Tensor:
        """Copy one sample out of the file."""
        sample = np.array(self._array[index], dtype=self._dtype)
        if self.is_features:
            return torch.from_numpy(sample)
        if sample.ndim == 2:
            sample = sample[None]
        elif self._channels_last:
            sample = sample.transpose(2, 0, 1)
        if self.resize is not None:
            sample = resize_pixels(sample, self.resize)
        return torch.from_numpy(sample).expand(3, -1, -1).contiguous()


def is_statistics_file(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file holds a mean and a covariance rather than samples."""
    known = Path(path).suffix.lower() == ".npz" and os.path.isfile(path) and zipfile.is_zipfile(path)
    return known and {"mu", "sigma"} <= {*array_names(path)}


def array_names(path: str | os.PathLike[str]) -> list[str]:
    """List the arrays in a file.

    Args:
        path: the file. A ``.npy`` file holds one array named ``arr_0``.

    Raises:
        InputError: if the file is missing or damaged.
    """
    if Path(path).suffix.lower() == ".npy":
        return ["arr_0"]
    with _reading(path), zipfile.ZipFile(path) as archive:
        return [name[: -len(".npy")] for name in archive.namelist() if name.endswith(".npy")]


def open_array(path: str | os.PathLike[str], name: str = "arr_0") -> np.ndarray[Any, Any]:
    """Open one array of a ``.npy`` or ``.npz`` file, as a memory map if the file is not compressed.

    ``numpy`` loads the members of an ``.npz`` file whole; 50,000 images of 256 pixels would take 10 GB. A stored
    (uncompressed) member is a plain ``.npy`` file at some offset, so it can be mapped just as well.

    Args:
        path: the file.
        name: one of :func:`array_names`.

    Raises:
        InputError: if the file is missing or damaged, or the array holds Python objects.
    """
    target = Path(path)
    with _reading(path):
        if target.suffix.lower() == ".npy":
            return np.asanyarray(np.load(target, mmap_mode="r", allow_pickle=False))
        with zipfile.ZipFile(target) as archive:
            return _open_member(archive, archive.getinfo(f"{name}.npy"), target)


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn any error in reading a file into one line that names it."""
    try:
        check_regular(path)
        yield
    except Exception as error:  # zipfile, zlib, numpy and the header's parser all raise their own errors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"Expected a readable .npy or .npz file, but got {os.fspath(path)} ({reason}); save it again."
        ) from error


def _open_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> np.ndarray[Any, Any]:
    """Map a stored member of an archive, or read a compressed one."""
    if member.compress_type != zipfile.ZIP_STORED:
        return read_member(archive, member)
    with path.open("rb") as file:
        file.seek(member.header_offset)
        header = file.read(_LOCAL_HEADER)
        name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        file.seek(name + extra, os.SEEK_CUR)
        shape, fortran, dtype = read_header(file)
        if 0 in shape or not shape:  # an empty range and a single number cannot be mapped
            return np.asarray(np.fromfile(file, dtype=dtype, count=int(np.prod(shape)))).reshape(shape)
        order: Literal["C", "F"] = "F" if fortran else "C"
        mapped: np.ndarray[Any, Any] = np.memmap(path, dtype, mode="r", offset=file.tell(), shape=shape, order=order)
        return mapped


def _sample_key(keys: Sequence[str], path: Path, key: str | None) -> str:
    """Choose the array that holds the samples."""
    names = ", ".join(keys) or "nothing"
    if key is not None:
        if check_name("an array", key) not in keys:
            raise InputError(f"Expected an array named {key} in {path}, but got {names}; pass one of these to --key.")
        return key
    usual = [name for name in SAMPLE_KEYS if name in keys]
    if usual:
        return usual[0]
    if {"mu", "sigma"} <= set(keys):
        raise InputError(f"Expected samples in {path}, but got statistics (mu, sigma); pass images or features.")
    if len(keys) == 1:
        return keys[0]
    raise InputError(f"Expected an array named {' or '.join(SAMPLE_KEYS)} in {path}, but got {names}; pass --key.")


def _check_samples(array: np.ndarray[Any, Any], path: Path) -> bool:
    """Refuse anything but images or features; return whether the channels of images come last."""
    numeric = array.dtype == np.uint8 or np.issubdtype(array.dtype, np.floating)
    shape = "x".join(map(str, array.shape)) or "a single number"
    if not array.shape or 0 in array.shape:
        raise InputError(f"Expected at least one sample in {path}, but got {shape}.")
    is_features = array.ndim == 2 and np.issubdtype(array.dtype, np.floating)
    is_grey = array.ndim == 3 and numeric
    channels_last = array.ndim == 4 and array.shape[3] in (1, 3)
    channels_first = array.ndim == 4 and array.shape[1] in (1, 3)
    if is_features or is_grey or (numeric and (channels_last or channels_first)):
        return channels_last
    raise InputError(
        f"Expected images (N,H,W,3), (N,3,H,W), (N,H,W) or floating features (N,d) in {path}, but got "
        f"{array.dtype} of shape {shape}; convert it."
    )
