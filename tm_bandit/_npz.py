"""Arrays in ``.npz`` files: no more memory is allocated than the file has content for."""

from __future__ import annotations

import math
import zipfile
from typing import IO, Any

import numpy as np

#: How many times packed numbers may grow, and the bytes up to which they may grow more. Measured files grow tenfold;
#: the format allows a thousandfold.
_GROWTH, _HARMLESS = 100, 2**28


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the beginning of a ``.npy`` file: shape, whether columns come first, and dtype.

    Args:
        file: open for reading at its start.

    Raises:
        ValueError: if it is not such a file, or holds Python objects.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return shape, fortran, dtype


def _check_growth(member: zipfile.ZipInfo) -> None:
    if member.file_size > max(_HARMLESS, _GROWTH * member.compress_size):
        raise ValueError(
            f"{member.filename} grows from {member.compress_size} to {member.file_size} bytes when it is unpacked; if "
            "that is intended, store it without packing, as numpy.savez does"
        )


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    """Read one array of an archive.

    numpy allocates whatever a header claims, even 10^12 entries in a file of a few bytes, and a few megabytes of packed
    zeros fill the memory of a machine.

    Args:
        archive: the opened file.
        member: the array.

    Raises:
        ValueError: if the header claims more than the member holds, or that grows suspiciously.
    """
    _check_growth(member)
    with archive.open(member) as file:
        shape, _, dtype = read_header(file)
        if math.prod(shape) * dtype.itemsize > member.file_size:
            raise ValueError(f"{member.filename} claims shape {shape}, but holds {member.file_size} bytes")
    with archive.open(member) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
