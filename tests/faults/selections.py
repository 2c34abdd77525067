"""Kills watchers and runs with workers at many moments, continues, and compares them with runs that were not killed.

Usage: python -m tests.faults.selections (watch|workers) (short|all) FOLDER. It writes FOLDER/rows.json.

Every process is forked from this one, which has imported everything and has one thread. Orphans become children of
this one, so that none is overlooked.
"""

import ctypes
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from tests.faults.campaign import LIMIT, Row, forked, in_words, notes
from tests.faults.killed_run import plain
from tests.faults.killed_selections import (
    BUDGET,
    PLACES,
    WORKERS,
    checkpoints,
    done,
    let_go,
    stop_at,
    stopped,
    watch,
    work,
)
from tests.selection.watched import save

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER

#: Seconds in which the workers of a process that was killed must be gone; one that imports torch notices afterwards.
GRACE = 120


def ended(pid: int) -> int:
    """Wait for a child, and return how it ended."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it did not come so far"
        time.sleep(0.002)


def to_the_end(action: Callable[[Path], None], folder: Path) -> None:
    """Carry out an action in a process that nobody kills."""
    output = Path(f"{folder}.out")
    code = ended(forked(partial(action, folder), output))
    assert code == 0, output.read_text()[-3000:]


def differences(whole: dict[str, object], resumed: dict[str, object]) -> list[str]:
    """Say in what two outcomes differ."""
    found = [f"missing: {name}" for name in whole.keys() - resumed.keys()]
    found += [f"left over: {name}" for name in resumed.keys() - whole.keys()]
    return found + [f"{name} differs" for name in whole.keys() & resumed.keys() if whole[name] != resumed[name]]


# ---- watchers ---------------------------------------------------------------------------------------------------


def watched(folder: Path) -> dict[str, object]:
    """Return what a watcher has left, its state aside, and what the training has left, with the times of writing."""
    found: dict[str, object] = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("*.pt")}
    for path in sorted((folder / "tm_bandit").iterdir()):
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.suffix != ".pt" else None
        found[f"tm_bandit/{path.name}"] = content
    return found


def with_a_newcomer(folder: Path) -> dict[str, object]:
    """Let a watcher go on after one more checkpoint: what it does then depends on all of its state."""
    save(folder / "late.pt", 0.15, mtime=2000)
    to_the_end(watch, folder)
    return watched(folder)


def left_by_watcher(folder: Path) -> str:
    """Describe what a killed watcher left."""
    own = folder / "tm_bandit"
    names = sorted(os.listdir(own)) if own.exists() else []
    state = own / "watch.pt"
    arms = len(torch.load(state, weights_only=True)["paths"]) if state.exists() else 0
    hidden = [f"`{plain(name)}`" for name in names if name.startswith(".")]
    return ", ".join([f"{arms} of {len(PLACES)} checkpoints in the state", *hidden])


def _noted(folder: Path, count: int) -> bool:
    return len(notes(folder)) >= count


def watchers(root: Path, kills: int) -> tuple[list[Row], list[Row]]:
    """Kill watchers, every other one before an operation on files, the others at any moment."""
    dice, folder = random.Random(22), root / "whole"
    checkpoints(folder)
    begin = time.monotonic()
    to_the_end(watch, folder)
    seconds, operations = time.monotonic() - begin, len(notes(folder))
    whole, rows = (watched(folder), with_a_newcomer(folder)), []
    assert json.loads(whole[1]["tm_bandit/selection.json"])["best"] == "late"
    for at in range(kills):
        folder = root / f"killed{at}"
        checkpoints(folder)
        moment = f"op:{dice.randint(1, operations)}" if at % 2 == 0 else "never"
        pid = forked(partial(watch, folder, moment), Path(f"{folder}.out"))
        if moment == "never":
            wait_until(partial(_noted, folder, dice.randint(0, operations * 9 // 10)))
            time.sleep(seconds / operations * dice.random())
            os.kill(pid, signal.SIGKILL)  # it is not reaped yet, so this is no other process
        code = ended(pid)
        row = Row("watcher", in_words(moment, notes(folder)), left_by_watcher(folder), anew=False)
        row.anew = not (folder / "tm_bandit" / "watch.pt").exists()
        if code != -signal.SIGKILL:
            row.deviations.append(f"not killed, but ended with {code}")
        to_the_end(watch, folder)
        row.deviations += differences(whole[0], watched(folder))
        row.deviations += [f"with a newcomer, {text}" for text in differences(whole[1], with_a_newcomer(folder))]
        rows.append(row)
        print(f"{row.moment}: {row.disk}: {row.deviations or 'equal'}", flush=True)
    return [Row("watcher", "never", "", anew=False)], rows


# ---- runs with workers ------------------------------------------------------------------------------------------


def group(leader: int) -> dict[int, int]:
    """Return the processes of a session that live, each with its parent."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it ended just now
            continue
        if int(session) == leader and state not in "ZX":
            found[int(path.parent.name)] = int(parent)
    return found


def workers_of(leader: int) -> list[int]:
    """Return the workers of a run: they are forked from a process that the run has started."""
    parents = group(leader)
    return [pid for pid, parent in parents.items() if parent != leader and parent in parents]


def orphans(leader: int) -> list[str]:
    """Wait until nothing is left of a session; return what stays."""
    deadline = time.monotonic() + GRACE
    while (left := group(leader)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    while True:  # what has ended is a child of this process now, and is reaped here
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    return [f"process {pid} survives" for pid in left]


def worked(folder: Path) -> dict[str, object]:
    """Return what a run has found."""
    return json.loads((folder / "result.json").read_text())


def start_and_stop(folder: Path, pulls: int) -> tuple[int, int]:
    """Start a run one of whose workers stops after so many pulls; return both processes."""
    stop_at(folder, pulls)
    pid = forked(partial(work, folder), Path(f"{folder}.out"))
    wait_until(lambda: stopped(folder) is not None)
    return pid, stopped(folder) or 0


def kill_a_worker(root: Path, at: int, pulls: int, dice: random.Random) -> Row:
    """Kill a worker, and let the run go on: the one that stopped in mid-pull, or the other one at any moment."""
    folder = root / f"worker{at}"
    pid, victim = start_and_stop(folder, pulls)
    if at % 4 == 2:
        wait_until(lambda: len(workers_of(pid)) == WORKERS)
        time.sleep(dice.uniform(0, 0.1))
        victim = next(worker for worker in workers_of(pid) if worker != victim)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: victim not in group(pid))
    where = "in mid-pull" if (folder / "drawing" / str(victim)).exists() else "between two pulls"
    row = Row("worker", f"{done(folder)} pulls were drawn, {where}", "the run goes on", anew=False)
    let_go(folder)
    code = ended(pid)
    row.deviations += orphans(pid) + [f"the run ended with {code}"] * (code != 0)
    return row


def kill_the_run(root: Path, at: int, pulls: int, end: int, dice: random.Random) -> Row:
    """Kill the process that selects, see that its workers end, and start it again."""
    folder = root / f"run{at}"
    stop_at(folder, end)
    pid = forked(partial(work, folder), Path(f"{folder}.out"))
    wait_until(lambda: done(folder) >= pulls)
    time.sleep(dice.uniform(0, 0.05) if pulls else dice.uniform(0, 5))  # before the first pull, workers are started
    alive = len(workers_of(pid))
    os.kill(pid, signal.SIGKILL)
    code = ended(pid)
    row = Row("run", f"{done(folder)} pulls were drawn, {alive} workers alive", "", anew=False)
    row.deviations += orphans(pid) + [f"not killed, but ended with {code}"] * (code != -signal.SIGKILL)
    state = folder / "state.pt"
    row.anew = not state.exists()
    row.disk = "no state" if row.anew else f"state of {_spent(state)} samples"
    let_go(folder)
    to_the_end(work, folder)
    return row


def _spent(state: Path) -> int:
    return torch.load(state, weights_only=True)["history"]["samples"][-1]


def runs(root: Path, kills: int) -> tuple[list[Row], list[Row]]:
    """Kill workers and runs in turn."""
    dice = random.Random(21)
    to_the_end(work, root / "whole")
    whole, rows = worked(root / "whole"), []
    pulls = done(root / "whole")
    end = pulls * 7 // 8  # a run that is to be killed gets no further, however late that comes
    assert whole["history"]["samples"][-1] == BUDGET
    for at in range(kills):
        moment = dice.randint(0, pulls * 3 // 4)
        row = kill_the_run(root, at, moment, end, dice) if at % 2 else kill_a_worker(root, at, moment, dice)
        row.deviations += differences(whole, worked(root / f"{row.variant}{at}"))
        rows.append(row)
        print(f"{row.variant}, {row.moment}: {row.disk}: {row.deviations or 'equal'}", flush=True)
    return [Row("run", "never", "", anew=False)], rows


def main(kind: str, size: str, root: Path) -> None:
    """Run a campaign, and write its rows."""
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    undisturbed, killed = (watchers if kind == "watch" else runs)(root, 20 if size == "all" else 3)
    rows = {"undisturbed": undisturbed, "killed": killed}
    (root / "rows.json").write_text(json.dumps({kind: [asdict(row) for row in rows[kind]] for kind in rows}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
