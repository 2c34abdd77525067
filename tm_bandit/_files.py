"""Outputs that are either there in full or not there at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tm_bandit._arguments import check_path
from tm_bandit.errors import InputError


class Stamp(NamedTuple):
    """What distinguishes one version of a file from the next.

    Args:
        size: in bytes.
        mtime: when it was written, in nanoseconds.
    """

    size: int
    mtime: int


def stamp_of(path: Path) -> Stamp | None:
    """Return the stamp of a file, or ``None`` if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return Stamp(status.st_size, status.st_mtime_ns)


def check_regular(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that is to be read, or that is missing.

    Args:
        path: the file.

    Raises:
        OSError: if it is a folder, a pipe or a device: opening a pipe would wait forever, and some devices never end.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return Path(path)


def check_writable(path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]] = ()) -> Path:
    """Return ``path`` if a file can be written there, so that a long run does not fail at its last line.

    Args:
        path: the file that will be written later.
        inputs: what is read before that, and must not be lost.

    Returns:
        The path, or its target if it is a link.

    Raises:
        InputError: if the folder is missing, if it or an older file is read-only, or if ``path`` is a folder, a device
            or one of the inputs.
    """
    path = check_path("path", path)
    target = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    folder = target.parent
    try:
        os.lstat(target)
    except FileNotFoundError:
        pass
    except OSError as error:  # a name that is too long, a file where a folder should be
        raise InputError(f"Expected the name of a file, but got {target} ({error.strerror}); choose one.") from error
    if not folder.is_dir():
        raise InputError(f"Expected a file in an existing folder, but got {target}; create {folder} first.")
    if target.is_dir():
        raise InputError(f"Expected the name of a file, but got the folder {target}; add a file name.")
    if target.exists() and not target.is_file():
        # Renaming a file over a device such as /dev/null would take it away from the whole machine.
        raise InputError(f"Expected the name of a regular file, but got {target}; choose another place.")
    if target.exists() and any(os.path.exists(source) and target.samefile(source) for source in inputs):
        raise InputError(f"Expected an output that is not one of the inputs, but got {target}; choose another name.")
    if target.exists() and not os.access(target, os.W_OK):
        raise InputError(f"Expected a file that may be replaced, but got {target}, which is read-only; choose another.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"Expected a writable folder, but got {folder}; choose another place for {target.name}.")
    return target


def temporary_name(stem: str, suffix: str = "") -> str:
    """Return the name of a file under way: hidden, and another one each time."""
    return f".{stem}.{secrets.token_hex(4)}.tmp{suffix}"


def is_temporary(name: str, stems: str) -> bool:
    """Whether a name is one of :func:`temporary_name`, so that the file may go if nobody is at work.

    Args:
        name: the name.
        stems: pattern of the stems that it may have.

    Example:
        >>> is_temporary(temporary_name("watch", ".pt"), "watch|best"), is_temporary(".watch.tmp.pt", "watch|best")
        (True, False)
    """
    return re.fullmatch(rf"\.({stems})\.[0-9a-f]{{8}}\.tmp(\.\w+)?", name) is not None


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder and rename it to ``path`` once the block has succeeded.

    A reader sees the old file or the new one, never half of it; when the block raises (or is interrupted), the
    temporary file is removed and the old file stays as it was. The new file has the permissions of the old one, and a
    link stays a link. The temporary name keeps the suffix, because ``numpy.savez`` and ``matplotlib`` choose the format
    by it.

    Args:
        path: the file to write or replace.

    Raises:
        InputError: if no file can be written there.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_write(Path(folder) / "result.json") as temporary:
        ...         _ = temporary.write_text("{}")
        ...     sorted(entry.name for entry in Path(folder).iterdir())
        ['result.json']
    """
    target = check_writable(path)
    # A fresh name per call: two processes that write the same target must not share a temporary file. It may not be
    # longer than a name can be either.
    temporary = target.with_name(temporary_name(target.stem[:40], target.suffix))
    try:
        if target.exists():  # its permissions are given before there is anything to read
            temporary.touch(exist_ok=False)
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        yield temporary
        if temporary.stat().st_size == 0:
            raise FileNotFoundError(f"nothing was written to {temporary}")
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
