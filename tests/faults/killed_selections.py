"""A watcher and a run with workers that write down how far they are, and can be continued from there."""

import os
import time
from contextlib import suppress
from pathlib import Path

import torch

from tests.execution.parts import Normal, selector_of
from tests.faults.killed_run import Watch
from tests.selection.watched import save, watcher
from tm_bandit._files import atomic_write

#: What is killed.
KINDS = {
    "watcher": "a watcher over a folder of ten checkpoints; one more comes after it was resumed",
    "run": "the process that selects, with two workers",
    "worker": "one of the two workers",
}

#: How far from the truth the checkpoints are, in the order of their times.
PLACES = (2.0, 0.5, 1.0, 3.0, 0.9, 0.2, 1.1, 1.4, 1.7, 2.1)

#: Samples of a run with workers, and of each of its parts; the state is on disk after every part.
BUDGET, PART = 320, 80

#: Processes that draw.
WORKERS = 2


def checkpoints(folder: Path) -> None:
    """Write what a training has left so far."""
    folder.mkdir()
    for at, place in enumerate(PLACES):
        save(folder / f"step{at}.pt", place, mtime=1000 + at)


def watch(folder: Path, moment: str = "never") -> None:
    """Watch until nothing is new."""
    notebook = Watch(folder, moment)
    notebook.phase = "watching"
    notebook.install()
    watcher(folder).run(every=0.01, idle=0.0)


class Noted(Normal):
    """Leaves a file with the name of its process as long as it draws, and a line when it is done.

    One worker stops at the pull that :func:`stop_at` names, until it is killed or :func:`let_go`: the run cannot end
    before, however busy the machine is.
    """

    def __init__(self, mean: float, folder: Path) -> None:
        super().__init__(mean)
        self.folder = folder

    def __call__(self, num_samples, generator):
        drawing = self.folder / "drawing" / str(os.getpid())
        drawing.touch()
        _stop(self.folder)
        rows = super().__call__(num_samples, generator)
        time.sleep(0.03)
        with (self.folder / "pulls.log").open("a") as log:
            log.write(".")
        drawing.unlink()
        return rows


def work(folder: Path) -> None:
    """Spend what is left of the budget part by part, by two workers, and write the result."""
    (folder / "drawing").mkdir(parents=True, exist_ok=True)
    arms = {"near": Noted(0.0, folder), "mid": Noted(0.4, folder), "far": Noted(2.0, folder)}
    selector, state = selector_of(arms), folder / "state.pt"
    if state.exists():
        selector.load_state_dict(torch.load(state, weights_only=True))
    while selector.spent < BUDGET:
        selector.run(progress=False, budget=PART, workers=WORKERS)
        with atomic_write(state) as temporary:
            torch.save(selector.state_dict(), temporary)
    selector.result().to_json(folder / "result.json")


def done(folder: Path) -> int:
    """Return how many pulls were drawn so far."""
    log = folder / "pulls.log"
    return log.stat().st_size if log.exists() else 0


def stop_at(folder: Path, pulls: int) -> None:
    """Let a worker of a run that begins later stop when so many pulls were drawn."""
    folder.mkdir()
    (folder / f"stop-{pulls}").touch()


def let_go(folder: Path) -> None:
    """Let the worker that stopped go on, and none stop from now on."""
    for path in (*folder.glob("stop-*"), *folder.glob("stopped-*")):
        path.unlink(missing_ok=True)


def stopped(folder: Path) -> int | None:
    """Return the process of the worker that stopped, if one has."""
    return next((int(path.name.partition("-")[2]) for path in folder.glob("stopped-*")), None)


def _stop(folder: Path) -> None:
    mine = folder / f"stopped-{os.getpid()}"
    for path in folder.glob("stop-*"):
        if done(folder) >= int(path.name.partition("-")[2]):
            with suppress(FileNotFoundError):  # another worker was faster
                path.rename(mine)
    while mine.exists():
        time.sleep(0.002)
