"""The folder of a run: one run, one folder; what lies outside of it is never touched."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from tm_bandit._files import check_regular, is_temporary, temporary_name
from tm_bandit._lock import FileLock
from tm_bandit.errors import InputError

OWNER = "run.json"

#: What identifies the run of a folder: our marker, or what version 0.1 left there.
_MARKERS = (OWNER, "files.json", "stats.pt")

#: A file that a run writes: no separators, and no leading dot but that of a file under way.
_NAME = re.compile(r"\.?[A-Za-z0-9_][A-Za-z0-9_.-]*")

#: What our files under way are called.
_STEMS = "(stats|selection|reference|run)[A-Za-z0-9-]*"


class RunFolder:
    """Turns names into paths inside the folder of one run.

    Args:
        root: the folder, which belongs to the run.
        run: identity of the run.
    """

    def __init__(self, root: Path, run: str) -> None:
        self.root = root
        self.run = run
        self._lock = FileLock(root / OWNER)

    def lock(self) -> None:
        """Keep other processes from training in this folder until :meth:`unlock`, or until this process ends.

        Raises:
            InputError: if another process already does so.
        """
        if not self._lock.acquire():
            raise InputError(
                f"Expected a folder that no other process trains in, but {self.root} is in use; wait until that one "
                "ends, or give another dirpath=."
            )

    def unlock(self) -> None:
        """Let others train in this folder."""
        self._lock.release()

    def path(self, name: str) -> Path:
        """Return the path of a file of the run.

        This is the only way from a name to a path, and no name leads out of the folder, whatever a state file says.

        Args:
            name: the bare name of the file.

        Raises:
            InputError: if it is not a bare name, or names a link or a folder.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError(f"Expected the bare name of a file in {self.root}, but got {name!r}; it is not used.")
        path = self.root / name
        if path.is_symlink() or path.is_dir():
            raise InputError(f"Expected {path} to be a plain file, but it is a link or a folder; it is not used.")
        return path

    def has(self, name: str) -> bool:
        """Whether there is a plain file of that name."""
        try:
            return self.path(name).is_file()
        except InputError:
            return False

    def delete(self, name: str) -> bool:
        """Delete a file of the run, and return whether it is gone.

        Args:
            name: its bare name.
        """
        if self.has(name):
            with suppress(OSError):  # some systems refuse while the file is open somewhere
                self.path(name).unlink(missing_ok=True)
        return not self.has(name)

    def names(self, pattern: str) -> list[str]:
        """Return the names of the plain files that match a pattern.

        Args:
            pattern: as in ``Path.glob``.
        """
        return sorted(path.name for path in self.root.glob(pattern) if self.has(path.name))

    def part(self, stem: str) -> str:
        """Return the name of a file under way: hidden, marked with the run, and not a ``.ckpt``.

        Args:
            stem: what the file will be called, without its ending.
        """
        return f".{stem}.{self.run}.part"

    def parts(self) -> list[str]:
        """Return the files of this run that were under way when it was killed."""
        return self.names(f".*.{self.run}.part")

    def sweep(self) -> None:
        """Delete the temporary files that a killed process left behind."""
        for name in self.names(".*.tmp.*"):
            if is_temporary(name, _STEMS):
                self.delete(name)


def default_root(trainer: Trainer, key: str) -> Path:
    """Return where a run writes by default: ``save_dir/name/version``, like ModelCheckpoint.

    The logger's own ``log_dir`` would not do. Some loggers (Weights & Biases, MLflow) have one folder for all runs.

    Args:
        trainer: the running Trainer.
        key: name of the callback.
    """
    if not trainer.loggers:
        return home(trainer) / key
    logger = trainer.loggers[0]
    version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
    return home(trainer) / str(logger.name) / version / key


def home(trainer: Trainer) -> Path:
    """Return the folder that all runs of this Trainer's settings share.

    Args:
        trainer: the running Trainer.

    Raises:
        InputError: if it is not a folder on a mounted file system.
    """
    save_dir = trainer.loggers[0].save_dir if trainer.loggers else None
    base = str(trainer.default_root_dir if save_dir is None else save_dir)
    if "://" in base:
        raise InputError(
            f"Expected a folder on a mounted file system for the arms, but the logger writes to {base}; give dirpath=."
        )
    return Path(base).expanduser().absolute()


def owner(folder: Path) -> str | None:
    """Return the run that a folder belongs to; empty if its marker cannot be read, ``None`` if it has none.

    Args:
        folder: any folder.
    """
    marker = next((folder / name for name in _MARKERS if os.path.lexists(folder / name)), None)
    return None if marker is None else _text(marker)


def _text(path: Path) -> str:
    try:
        if path.suffix == ".pt":
            content: Any = torch.load(check_regular(path), map_location="cpu", weights_only=True, mmap=True)
        else:
            content = json.loads(check_regular(path).read_text(encoding="utf-8"))
        return content["run"] if isinstance(content["run"], str) else ""
    except Exception:  # cut off, not JSON, of another shape: the folder has an unknown owner
        return ""


def claim(root: Path, run: str) -> Path:
    """Make a folder the run's own, and return it.

    If it belongs to another run, the first free one of ``v1``, ``v2`` and so on inside it is taken. Two runs that start
    at once cannot both get the same folder.

    Args:
        root: the requested folder.
        run: identity of the run.

    Raises:
        InputError: if nothing can be written there.
    """
    for folder in _versions(root):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if owner(folder) not in (None, run):
                continue
            _try_out(folder)
            _mark(folder, run)
            RunFolder(folder, run).sweep()
        except FileExistsError:
            if folder.is_dir():
                continue  # another run was faster
            raise InputError(f"Expected a folder for the arms at {folder}, but it is a file; give dirpath=.") from None
        except OSError as error:
            raise InputError(
                f"Expected a folder for the arms at {folder}, but it cannot be written to ({error}); give dirpath=."
            ) from error
        return folder
    raise AssertionError("the versions of a folder never end")


def _versions(root: Path) -> Iterator[Path]:
    yield root
    yield from (root / f"v{version}" for version in itertools.count(1))


def _try_out(folder: Path) -> None:
    probe = folder / temporary_name("run", ".json")
    try:
        probe.write_text("{}", encoding="utf-8")
    finally:
        probe.unlink(missing_ok=True)


def _mark(folder: Path, run: str) -> None:
    if not (folder / OWNER).exists() or owner(folder) != run:
        with (folder / OWNER).open("x", encoding="utf-8") as file:  # "x": fails if another run was faster
            json.dump({"run": run}, file)


def disown(folder: Path, run: str) -> None:
    """Give a folder back in which nothing was written but the marker.

    Args:
        folder: what :func:`claim` returned.
        run: identity of the run.
    """
    if owner(folder) == run and [entry.name for entry in folder.iterdir()] == [OWNER]:
        (folder / OWNER).unlink()


def find(root: Path, run: str, hint: str, checkpoint: str | os.PathLike[str] | None, trusted: bool) -> Path | None:
    """Return the folder of a resumed run, or ``None``.

    It is the requested folder, if that belongs to the run. Otherwise it is looked for next to the resumed checkpoint: a
    run that was copied, moved or renamed continues in its own copy and leaves the original alone.

    Args:
        root: the folder that is requested now.
        run: identity of the run.
        hint: where the folder was when the checkpoint was written.
        checkpoint: the resumed checkpoint.
        trusted: whether the user's present settings make the place in ``hint`` the run's: the checkpoint is where it
            was written, or the place is where this Trainer's runs go. A copy elsewhere has no right to it.
    """
    for folder in (root, *sorted(root.glob("v[0-9]*"))):
        if owner(folder) == run:
            return folder
    if checkpoint is None or not hint:
        return None
    before = Path(hint)
    for ancestor in Path(checkpoint).absolute().parents:
        for length in range(1, len(before.parts)):
            folder = ancestor.joinpath(*before.parts[-length:])
            mine = trusted or folder != before or ancestor == before.parent
            if mine and ".." not in before.parts and owner(folder) == run:
                return folder
    return None
