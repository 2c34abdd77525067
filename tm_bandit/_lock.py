"""One process at a time: a file lock that ends with the process, however that ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Files that this process has locked.
_locked: set[IO[str]] = set()


def _leave_locks_to_the_parent() -> None:
    # A worker of a data loader may outlive the process that it was forked from, and the lock with it.
    for file in _locked:
        file.close()
    _locked.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks_to_the_parent)


class FileLock:
    """A lock on an existing file. File systems and platforms without locks let everybody in.

    Args:
        path: the file; its content is not touched.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def acquire(self) -> bool:
        """Return whether this process has the lock now."""
        if self._file is not None or fcntl is None:
            return True
        file = self._path.open("r+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            return not isinstance(error, BlockingIOError)
        self._file = file
        _locked.add(file)
        return True

    def release(self) -> None:
        """Let others have it."""
        if self._file is not None:
            _locked.discard(self._file)
            self._file.close()
            self._file = None
