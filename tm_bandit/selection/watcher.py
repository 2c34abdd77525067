"""While training runs: new checkpoints are raced against the best so far as they appear."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tm_bandit._arguments import check_count, check_number, check_options, check_path
from tm_bandit._files import Stamp, atomic_write, check_regular, is_temporary, stamp_of, temporary_name
from tm_bandit._lock import FileLock
from tm_bandit._weights_file import read_weights
from tm_bandit.errors import ArmError, BanditError, InputError, brief, one_line, printable
from tm_bandit.execution.ranks import default_chunk_size
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.pull import BATCH_SIZE
from tm_bandit.selection.checkpoints import CheckpointSampler, Shelf, check_stamp
from tm_bandit.selection.modules import SamplerLike, bind_sampler, make_module, match_weights

if TYPE_CHECKING:
    from tm_bandit.report.result import SelectionResult

#: Seconds that are slept at most: systems refuse to sleep for ages.
_DAY = 86_400.0

#: Endings of files that may be checkpoints.
SUFFIXES = (".ckpt", ".pt", ".safetensors")

#: Files in the watcher's own folder.
LOCK, STATE, RESULT, PAGE = "watch.lock", "watch.pt", "selection.json", "selection.html"

#: The link to the best checkpoint, with the same ending.
BEST = tuple(f"best{suffix}" for suffix in SUFFIXES)

#: What our files under way are called.
_STEMS = "watch|selection|best"


class Watcher:
    """Watches a folder, and keeps what it finds in its own folder.

    A file is admitted when its size and time have not changed for ``settle`` seconds and it can be read. Files are
    admitted one by one in the order of their times, and each is raced at once, so the selection depends on that order
    alone. A rewritten file is a new arm. The state is on disk after every race, so a watcher that was killed
    continues where it stopped; an unfinished race is run again, with the same seeds.

    Args:
        folder: where checkpoints appear, sub-folders included.
        module_class: a LightningModule class, a function that returns a module, or a module.
        metric: as in :class:`~tm_bandit.ModelSelector`.
        sampler: see :meth:`~tm_bandit.ModelSelector.from_checkpoints`.
        budget: samples of each race.
        batch_size: samples per pull.
        out: the watcher's own folder; ``folder/tm_bandit`` by default.
        settle: seconds without change after which a file counts as complete.
        max_arms: arms that are kept in the race.
        checkpoint_key: where a file has its weights.
        module_kwargs: arguments of ``module_class`` that are not stored in the files.
        say: called with messages about files that are not checkpoints, and about each new best.
        kwargs: further arguments of :class:`~tm_bandit.ModelSelector`.

    Raises:
        InputError: if there is no such folder, another watcher is at work, or an argument cannot be used.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        module_class: Any,
        metric: OptimisticMetric,
        sampler: SamplerLike = None,
        *,
        budget: int = 1000,
        batch_size: int = BATCH_SIZE,
        out: str | os.PathLike[str] | None = None,
        settle: float = 2.0,
        max_arms: int = 8,
        checkpoint_key: str = "state_dict",
        module_kwargs: dict[str, Any] | None = None,
        say: Callable[[str], None] = print,
        **kwargs: Any,
    ) -> None:
        from tm_bandit.selection.selector import ModelSelector

        self.folder = Path(check_path("folder", folder))
        if not self.folder.is_dir():
            raise InputError(f"Expected a folder to watch, but there is none at {self.folder}; check the path.")
        self.out = self.folder / "tm_bandit" if out is None else Path(check_path("out", out))
        if self.out.exists() and self.out.samefile(self.folder):
            raise InputError(f"Expected the watcher's own folder, but got out={self.out}, which it watches.")
        self._module_class, self._module_kwargs = module_class, check_options("module_kwargs", module_kwargs)
        self._key, self._sampler = checkpoint_key, sampler
        self._say: Callable[[str], None] = lambda text: say(one_line(printable(text)))  # names may have any bytes
        if kwargs.get("cost") is not None:
            raise InputError(
                "Expected no cost= to watch a folder, whose budget is in samples, but got one; leave it out."
            )
        self._budget = check_count("budget", budget, check_count("batch_size", batch_size, 1))
        self._settle = check_number("settle", settle, least=0)
        self._max_arms = check_count("max_arms", max_arms, 2)
        self.selector = ModelSelector(metric, batch_size=batch_size, budget=0, **kwargs)
        self._shelf: Shelf | None = None
        self._paths: dict[str, str] = {}
        self._stamps: dict[str, Stamp] = {}
        self._seen: dict[str, tuple[Stamp, float]] = {}
        self._open()

    def _open(self) -> None:
        strangers = [name for name in (RESULT, PAGE, *BEST) if os.path.lexists(self.out / name)]
        if strangers and not (self.out / LOCK).exists():
            raise InputError(
                f"Expected the watcher's own folder, but got out={self.out} with someone else's {strangers[0]}; "
                "give another one."
            )
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / LOCK).touch()
        except (OSError, ValueError) as error:
            raise InputError(
                f"Expected a folder that can be written to, but got out={self.out} ({brief(error)}); give another one."
            ) from error
        self._lock = FileLock(self.out / LOCK)
        if not self._lock.acquire():
            raise InputError(
                f"Expected one watcher at a time, but another one writes to {self.out}; wait until it ends, or give "
                "another out=."
            )
        try:
            for name in os.listdir(self.out):
                if is_temporary(name, _STEMS):  # left by a watcher that was killed
                    (self.out / name).unlink()
            if (self.out / STATE).exists():
                self._resume(*self._state())
        except BaseException:
            self.close()
            raise

    def _state(self) -> tuple[dict[str, Any], dict[str, str], dict[str, Stamp]]:
        """Return what an earlier watcher left: its selector's state, the files of its arms, and the files it saw."""
        try:
            state = torch.load(check_regular(self.out / STATE), map_location="cpu", weights_only=True)
            paths = {name: os.fspath(path) for name, path in state["paths"].items()}
            stamps = {path: Stamp(*stamp) for path, stamp in state["stamps"].items()}
            known = {saved["name"]: saved["retired"] for saved in state["selector"]["arms"]}
            if not all(paths[name] in stamps for name in known):
                raise KeyError("an arm has no file")
        except Exception as error:  # torch raises many kinds for files that are not its own
            raise InputError(
                f"Expected what a watcher left in {self.out / STATE}, but got {brief(error)}; remove it, or give "
                "another out=."
            ) from error
        return state["selector"], paths, stamps

    def _resume(self, state: dict[str, Any], paths: dict[str, str], stamps: dict[str, Stamp]) -> None:
        files = {name: self.folder / path for name, path in paths.items()}
        there = {name: file for name, file in files.items() if stamp_of(file) == stamps.get(paths[name])}
        self._stamps = stamps
        for saved in state["arms"]:
            name = saved["name"]
            active = saved["retired"] is None and name in there
            self.selector.add_arm(name, self._sampler_of(there[name]) if active else None)
        self.selector.load_state_dict(state)
        self._paths = paths
        for name in [name for name in self.selector.arms if name not in there]:
            self.selector.retire_arm(name, "its file is gone, or was rewritten")
        self._publish(self.selector.result())

    def close(self) -> None:
        """Let others watch the folder."""
        self._lock.release()

    def run(self, every: float = 5.0, idle: float | None = None) -> SelectionResult:
        """Watch until Ctrl-C, or until nothing new has come for a while; return what is known then.

        Args:
            every: seconds between two looks.
            idle: seconds without a new checkpoint after which watching ends; ``None`` continues forever.

        Raises:
            InputError: if these are not numbers of seconds.
        """
        last = time.monotonic()
        try:
            every = check_number("every", every, least=0)
            idle = math.inf if idle is None else check_number("idle", idle, least=0)
            while True:
                if self.look():
                    last = time.monotonic()
                elif time.monotonic() - last >= idle:
                    break
                else:
                    time.sleep(max(0.0, min(every, last + idle - time.monotonic(), _DAY)))
        except KeyboardInterrupt:
            pass
        finally:
            self.close()
        return self.selector.result()

    def look(self) -> bool:
        """Race the next checkpoint that is complete and new; return whether there was one."""
        for path, stamp in self._settled():
            name = str(path.relative_to(self.folder))
            self._stamps[name] = stamp
            try:
                self._admit(path, name)
            except BanditError as error:
                if stamp_of(path) == stamp:  # else it is being written again, and comes back when it has settled
                    self._say(f"{name} is left out: {error}")
                continue
            self._race()
            return True
        return False

    def _settled(self) -> Iterator[tuple[Path, Stamp]]:
        """Yield new files that have not changed for long enough, the oldest first; none of them is opened."""
        now, found = time.monotonic(), []
        for path in self._files():
            name, stamp = str(path.relative_to(self.folder)), stamp_of(path)
            if stamp is None or self._stamps.get(name) == stamp:
                continue
            if self._seen.get(name, (None,))[0] != stamp:
                self._seen[name] = stamp, now
            if now - self._seen[name][1] >= self._settle:
                found.append((stamp.mtime, name, path, stamp))
        for _, name, path, stamp in sorted(found):
            if stamp_of(path) == stamp:
                del self._seen[name]
                yield path, stamp

    def _files(self) -> Iterator[Path]:
        for root, folders, names in os.walk(self.folder):
            folders[:] = sorted(name for name in folders if not (Path(root) / name / LOCK).exists())
            for name in names:
                path = Path(root, name)
                if name.endswith(SUFFIXES) and not name.startswith(".") and path.is_file() and not path.is_symlink():
                    yield path

    def _admit(self, path: Path, name: str) -> None:
        """Make an arm of a file.

        Raises:
            BanditError: if it is not a checkpoint, or one of another module.
        """
        weights = read_weights(path, self._key)
        check_stamp(path, self._stamps[name])
        match_weights(self._module_for(path).module, weights)
        stem = name[: -len(path.suffix)]
        taken = {*self.selector.arms, *self.selector.retired}
        arm = next(new for new in _versions(stem) if new not in taken)
        for other in self.selector.arms:
            if self._paths[other] == name:
                self.selector.retire_arm(other, f"its file was rewritten, see {arm}")
        self.selector.add_arm(arm, self._sampler_of(path))
        self._paths[arm] = name

    def _sampler_of(self, path: Path) -> CheckpointSampler:
        shelf = self._module_for(path)
        stamp = self._stamps[str(path.relative_to(self.folder))]
        return CheckpointSampler(shelf, path, self._key, bind_sampler(shelf.module, self._sampler, {}), stamp)

    def _module_for(self, path: Path) -> Shelf:
        """Return the one module in memory; the first file makes it."""
        if self._shelf is None:
            module = make_module(self._module_class, [path], self._module_kwargs)
            self._shelf = Shelf(module.to(self.selector.metric.device).eval())
        return self._shelf

    def _race(self) -> None:
        for other in self.selector.arms:
            if stamp_of(self.folder / self._paths[other]) != self._stamps[self._paths[other]]:
                self.selector.retire_arm(other, "its file is gone, or was rewritten")
        before = self.selector.best
        with suppress(ArmError):  # every arm has failed; the reasons are in the result
            self.selector.run(
                progress=False,
                budget=self._budget,
                workers=0,
                chunk_size=default_chunk_size(self.selector.batch_size),
            )
        self._drop_surplus()
        # All numbers are derived from the samples again, as after an interruption: the result must not depend on one.
        self.selector.load_state_dict(self.selector.state_dict())
        result = self.selector.result()
        self._save()
        self._publish(result)
        if result.best is not None and result.best != before:
            self._say(f"best so far: {result.best} ({result.outcome()})")

    def _drop_surplus(self) -> None:
        # As the table has them: the best one first, the others by how far they are behind it on the same draws.
        order = [row["arm"] for row in self.selector.result().table() if row["arm"] in self.selector.arms]
        for name in order[self._max_arms :]:
            self.selector.retire_arm(name, "dropped to make room for better arms")

    def _save(self) -> None:
        stamps = {name: (stamp.size, stamp.mtime) for name, stamp in self._stamps.items()}
        state = {"selector": self.selector.state_dict(), "paths": self._paths, "stamps": stamps}
        with atomic_write(self.out / STATE) as temporary:
            torch.save(state, temporary)

    def _publish(self, result: SelectionResult) -> None:
        """Write what others read; whatever is lost here is written again from the state."""
        result.to_json(self.out / RESULT, indent=1)
        result.to_html(self.out / PAGE, refresh=30)
        if result.best is None:
            return
        path = (self.folder / self._paths[result.best]).absolute()
        link = self.out / f"best{path.suffix}"
        if not link.exists() or link.is_symlink():
            temporary = self.out / temporary_name("best")
            temporary.symlink_to(os.path.relpath(path, self.out.absolute()))
            temporary.replace(link)
        for name in BEST:
            if name != link.name and (self.out / name).is_symlink():
                (self.out / name).unlink()


def _versions(stem: str) -> Iterator[str]:
    yield stem
    yield from (f"{stem}~{version}" for version in itertools.count(2))


def watch(
    folder: str | os.PathLike[str],
    module_class: Any,
    metric: OptimisticMetric,
    *,
    every: float = 5.0,
    idle: float | None = None,
    **kwargs: Any,
) -> SelectionResult:
    """Watch a folder while training runs, and race new checkpoints against the best so far, until Ctrl-C.

    Args:
        folder: where checkpoints appear.
        module_class: the class they belong to.
        metric: an optimistic metric, without samples.
        every: seconds between two looks.
        idle: seconds without a new checkpoint after which watching ends.
        kwargs: see :class:`Watcher`.

    Raises:
        InputError: if there is no such folder, another watcher is at work, or an argument cannot be used.
    """
    return Watcher(folder, module_class, metric, **kwargs).run(every, idle)
