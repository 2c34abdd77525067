"""Rows of image files that were computed before: reused as long as neither file, network nor options change."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")

#: Name of the file in a cache folder.
FILE = "features.sqlite"

#: A file that was changed less than this long ago may change again within the same tick of the file system's clock.
_SETTLED_NS = 2_000_000_000

#: Most bytes of rows that are kept: 250,000 rows of Inception. Beyond that, the older half is deleted.
_LARGEST = 2_000_000_000

#: Seconds to wait for another process that writes.
_PATIENCE = 10.0

#: The numbers that networks return, as this machine stores them.
_DTYPES = tuple(np.dtype(kind).str for kind in (np.float16, np.float32, np.float64))

_TABLE = (
    "CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, key BLOB UNIQUE, dtype TEXT, digest BLOB, data BLOB)"
)


def default_folder(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Return where a user's caches are: in ``XDG_CACHE_HOME``, or where the platform puts them.

    Args:
        environment: the environment variables.
        platform: as :data:`sys.platform`.
    """
    given = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given, "tm-bandit")
    if platform == "win32" and environment.get("LOCALAPPDATA"):
        return Path(environment["LOCALAPPDATA"], "tm-bandit", "cache")
    home = Path(os.path.expanduser("~"))
    return home / ("Library/Caches" if platform == "darwin" else ".cache") / "tm-bandit"


class FeatureCache:
    """Rows by file and network, in one SQLite file that any number of processes use at the same time.

    Nothing depends on it: a cache that is missing, damaged, locked or not writable has no rows and keeps none. Nothing
    in it is run. A row is found only under the same network and options, and only if its file has the same place, size,
    times and inode as when it was read.

    Args:
        folder: where the file is; made when the first row is kept.
        identity: the network, its weights, and all options that change rows.
    """

    def __init__(self, folder: str | os.PathLike[str], identity: str) -> None:
        self.path = Path(folder) / FILE
        self.identity = identity

    def stamp(self, file: Path) -> bytes | None:
        """Return the key of a file's row as it is now; ``None`` if it is gone, or so new that it may change again.

        Args:
            file: an image file.
        """
        try:
            status = file.stat()
            place = os.path.realpath(file)
        except OSError:
            return None
        changed = max(status.st_mtime_ns, status.st_ctime_ns)
        if time.time_ns() - changed < _SETTLED_NS:
            return None
        # The time of the last change of any kind cannot be set: it reveals a copy with the old file's time and size.
        parts = (self.identity, place, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        return hashlib.blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=20).digest()

    def find(self, key: bytes) -> Tensor | None:
        """Return the row that was kept under a key, if there is one.

        Args:
            key: what :meth:`stamp` returned.
        """
        if not self.path.is_file():
            return None
        query = "SELECT dtype, digest, data FROM rows WHERE key = ?"
        found = _ask(self.path, lambda database: database.execute(query, (key,)).fetchone())
        return None if found is None else _decoded(key, *found)

    def keep(self, rows: Iterable[tuple[bytes, Tensor]]) -> None:
        """Keep rows: all of them or none.

        Args:
            rows: keys and rows.
        """
        entries = [(key, *_encoded(key, row)) for key, row in rows]
        if entries:
            with suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            _ask(self.path, lambda database: _insert(database, entries, self.path))


def contents(folder: str | os.PathLike[str]) -> tuple[int, int]:
    """Return how many rows a cache has, and its size in bytes.

    Args:
        folder: the cache folder.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        return 0, 0
    found = _ask(path, lambda database: database.execute("SELECT COUNT(*) FROM rows").fetchone())
    return 0 if found is None else int(found[0]), path.stat().st_size


def clear(folder: str | os.PathLike[str]) -> None:
    """Delete the rows of a cache, and nothing else.

    Args:
        folder: the cache folder.
    """
    for ending in ("", "-journal", "-wal", "-shm"):
        Path(folder, FILE + ending).unlink(missing_ok=True)


def _ask(path: Path, work: Callable[[sqlite3.Connection], T]) -> T | None:
    """Open the file for one moment, because what is not held open can be sent to other processes."""
    try:
        with closing(sqlite3.connect(path, timeout=_PATIENCE)) as database:
            return work(database)
    except (sqlite3.Error, OSError):  # damaged, locked for long, a full disk: then there is no cache
        return None


def _insert(database: sqlite3.Connection, entries: list[tuple[bytes, str, bytes, bytes]], path: Path) -> None:
    with database:
        database.execute(_TABLE)
        database.executemany("INSERT OR REPLACE INTO rows (key, dtype, digest, data) VALUES (?, ?, ?, ?)", entries)
    if path.stat().st_size > _LARGEST:
        with database:
            database.execute("DELETE FROM rows WHERE number <= (SELECT (MIN(number) + MAX(number)) / 2 FROM rows)")
        database.execute("VACUUM")


def _encoded(key: bytes, row: Tensor) -> tuple[str, bytes, bytes]:
    values = row.detach().cpu().contiguous().numpy()
    data = values.tobytes()
    return values.dtype.str, _digest(key, data), data


def _decoded(key: bytes, dtype: object, digest: object, data: object) -> Tensor | None:
    if not isinstance(data, bytes) or dtype not in _DTYPES or _digest(key, data) != digest:
        return None
    return torch.from_numpy(np.frombuffer(data, dtype=str(dtype)).copy())


def _digest(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=16).digest()
