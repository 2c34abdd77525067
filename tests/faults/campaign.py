"""Kills training runs at many moments, resumes them, and compares them with runs that were not killed.

Usage: python -m tests.faults.campaign (alone|ddp) (short|all) FOLDER. It writes FOLDER/rows.json.

Each training is forked from this process, which has imported everything and has one thread. In ``ddp``, Lightning then
starts rank 1 as it does for a user.
"""

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import matplotlib.pyplot as plt  # noqa: F401 - imported here so that no fork has to
import torch

from tests.faults import killed_run
from tests.faults.killed_run import VARIANTS, plain, start
from tm_bandit._weights_file import content_tag

LIMIT = 180  # seconds, for a training that takes a few

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass
class Row:
    """What became of one training.

    Args:
        variant: which of the trainings.
        moment: when it was killed.
        disk: what was there then.
        anew: whether there was no checkpoint to resume from.
        deviations: in what it differs from the undisturbed one in the end.
    """

    variant: str
    moment: str
    disk: str
    anew: bool
    deviations: list[str] = field(default_factory=list)


# ---- what is in a folder ----------------------------------------------------------------------------------------


def run_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of arms by the run that they belong to."""
    found = {}
    for path in (folder / "arms").rglob("run.json"):
        with contextlib.suppress(ValueError):  # killed while it wrote this: the folder is nobody's
            found[json.loads(path.read_text())["run"]] = path.parent
    return found


def bandit_state(checkpoint: dict) -> dict:
    """Return what the callback put into a checkpoint of Lightning's."""
    return next(state for key, state in checkpoint["callbacks"].items() if key.startswith("BanditCheckpoint"))


def on_disk(folder: Path) -> str:
    """Describe what a killed training left."""
    arms = folder / "arms"
    names = sorted(path.name for path in arms.rglob("*") if path.is_file()) if arms.exists() else []
    models = sorted((name[:-5] for name in names if name.endswith(".ckpt")), key=lambda name: (len(name), name))
    sidecars = sum(name.startswith("stats-") for name in names)
    hidden = [f"`{plain(name)}`" for name in names if name.startswith(".")]
    last = folder / "last" / "last.ckpt"
    step = torch.load(last, weights_only=True)["global_step"] if last.exists() else None
    parts = [" ".join(models) or "no arms", f"{sidecars} sidecars", *hidden]
    return ", ".join([*parts, "no checkpoint" if step is None else f"checkpoint of step {step}"])


def contents(folder: Path) -> dict[str, str]:
    """Return name and content of every file below a folder; of a file of weights, the tag of the weights."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = plain(path.relative_to(folder).as_posix())
            tagged = path.suffix == ".ckpt"
            found[name] = content_tag(torch.load(path, weights_only=True)["state_dict"]) if tagged else ""
    return found


def outcome(folder: Path) -> dict:
    """Return what must not depend on whether a training was killed."""
    last = torch.load(folder / "last" / "last.ckpt", weights_only=True)
    arms = run_folders(folder)[bandit_state(last)["run"]]
    selection = json.loads((arms / "selection.json").read_text())
    fields = {name: json.dumps(selection[name]) for name in ("history", "best", "arms", "retired", "status")}
    files = {name: tag for name, tag in contents(arms).items() if "/" not in name}
    best = f"{selection['best']}.ckpt"
    trained = {"step": str(last["global_step"]), "weights": content_tag(last["state_dict"])}
    return {"fields": fields, "files": files, "best": best, "trained": trained, "folder": arms.name}


def deviations(whole: dict, resumed: dict, variant: str) -> list[str]:
    """Say in what two outcomes differ; a store in memory loses arms in a kill, but not the best one's file."""
    found = []
    if not resumed["files"].get(resumed["best"]):
        found.append(f"the file of the best arm, {resumed['best']}, is missing")
    # Nothing hidden may stay, whatever the undisturbed training left.
    found += [f"left over: {name}" for name in hidden(resumed)]
    if variant == "memory":
        return found
    if resumed["files"].get(resumed["best"]) != whole["files"][whole["best"]]:
        found.append("the best model has other weights")
    for group in ("fields", "trained"):
        for name, value in whole[group].items():
            if resumed[group][name] != value:
                found.append(f"{name} differs{_how(value, resumed[group][name]) if group == 'fields' else ''}")
    mine, theirs = ({n: tag for n, tag in side["files"].items() if n not in hidden(side)} for side in (resumed, whole))
    found += [f"missing: {name}" for name in theirs.keys() - mine.keys()]
    found += [f"left over: {name}" for name in mine.keys() - theirs.keys()]
    found += [f"other weights: {name}" for name in mine.keys() & theirs.keys() if mine[name] != theirs[name]]
    return found


def hidden(outcome: dict) -> list[str]:
    """Return the files that were under way, or temporary, and were never cleaned up."""
    return [name for name in outcome["files"] if name.startswith(".")]


def _how(one: str, two: str) -> str:
    """Say whether two JSON texts differ in the last bits of numbers alone."""
    largest = 0.0

    def alike(first, second) -> bool:
        nonlocal largest
        if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
            return all(alike(first[key], second[key]) for key in first)
        if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
            return all(map(alike, first, second))
        if isinstance(first, float) and isinstance(second, float) and first != second:
            largest = max(largest, abs(first - second) / max(abs(first), abs(second)))
            return largest < 1e-9
        return first == second

    return " in the last bits of its numbers alone" if alike(json.loads(one), json.loads(two)) else ""


# ---- trainings --------------------------------------------------------------------------------------------------


def forked(action: Callable[[], None], output: Path) -> int:
    """Start an action in a process that is forked from this one, with a session of its own; return its id.

    Args:
        action: what it does; an error ends it with code 1.
        output: where all that it says goes.
    """
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            signal.alarm(LIMIT)
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1)
            os.dup2(file, 2)
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def fork(folder: Path, variant: str, moment: str = "never", seconds: float | None = None) -> int:
    """Train in a process that is forked from this one, and return how it ended.

    Args:
        folder: of the training.
        variant: which of the trainings.
        moment: when it kills itself.
        seconds: when it is killed from here.
    """
    pid = forked(lambda: start(folder, variant, moment), Path(f"{folder}.out"))
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)  # it is not reaped yet, so this is no other process
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def launch(folder: Path, variant: str, moment: str = "never", seconds: float | None = None) -> int:
    """Train in two ranks, and return how rank 0 ended; no rank survives this call.

    Args:
        folder: of the training.
        variant: which of the trainings.
        moment: when a rank kills itself.
        seconds: how long after the first validation both are killed from here.
    """
    leader = forked(lambda: _rank_zero(folder, variant, moment), Path(f"{folder}.out"))
    try:
        if seconds is not None:
            deadline = time.monotonic() + LIMIT
            while not list((folder / "arms").glob("stats-*.pt")) and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(seconds)
            os.killpg(leader, signal.SIGKILL)
        # A rank whose partner was killed finds out by itself; it is given the time to do whatever it does then.
        return os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1])
    finally:
        end_group(leader)


def _rank_zero(folder: Path, variant: str, moment: str) -> None:
    """Be what ``python -m tests.faults.killed_run`` is, which is what Lightning starts for rank 1."""
    sys.modules["__main__"], sys.argv[1:] = killed_run, [str(folder), variant, moment, "2"]
    for name in [name for name in os.environ if name.startswith("PL_")]:
        del os.environ[name]
    start(folder, variant, moment, 2)


def end_group(leader: int) -> None:
    """Kill what is left of a group of processes, and see that nothing is."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-leader, os.WNOHANG)  # rank 1 has become a child of this process
        try:
            os.killpg(leader, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError("a rank survives its training")


def notes(folder: Path, rank: int = 0) -> list[list[str]]:
    """Return what the watch of a training noted: kind, phase and text of each event."""
    log = Path(f"{folder}.rank{rank}.log")
    return [line.split("\t") for line in log.read_text().splitlines()] if log.exists() else []


class Campaign:
    """Kills and resumes trainings of all variants.

    Args:
        root: folder of the trainings.
        run: :func:`fork` or :func:`launch`.
    """

    def __init__(self, root: Path, run) -> None:
        self.root = root
        self.run = run
        self.rows: list[Row] = []
        self.undisturbed_rows: list[Row] = []
        self.whole: dict[str, dict] = {}
        self.events: dict[str, list[list[str]]] = {}
        self.seconds: dict[str, float] = {}

    def undisturbed(self, variant: str) -> list[list[str]]:
        """Train once without a kill, and return what the watch noted."""
        if variant not in self.whole:
            folder, begin = self.root / variant, time.monotonic()
            code = self.run(folder, variant)
            assert code == 0, Path(f"{folder}.out").read_text()[-3000:]
            self.seconds[variant] = time.monotonic() - begin
            self.whole[variant], self.events[variant] = outcome(folder), notes(folder)
            left = [f"left over: {name}" for name in hidden(self.whole[variant])]
            self.undisturbed_rows.append(Row(variant, "never", "", anew=False, deviations=left))
        return self.events[variant]

    def operations(self, variant: str, phase: str = "", text: str = "") -> list[int]:
        """Return the numbers of the operations on files, from 1, of a phase and with a text."""
        operations = [event for event in self.undisturbed(variant) if event[0] == "op"]
        return [n for n, (_, where, what) in enumerate(operations, 1) if phase in where and what.startswith(text)]

    def kill(self, variant: str, *moments: str, seconds: float | None = None) -> None:
        """Train, be killed at each of the moments in turn, train to the end, and compare.

        Args:
            variant: which of the trainings.
            moments: when each of the processes kills itself.
            seconds: when the process is killed from here, if there are no moments.
        """
        self.undisturbed(variant)
        folder = self.root / f"{variant}-{len(self.rows)}"
        row, said = Row(variant, "", "", anew=False), []
        for moment in moments or ("never",):
            rank = int(moment.partition("@")[2] or 0)
            code = self.run(folder, variant, moment, seconds)
            while code == 0 and seconds is not None:
                # It came to its end before its time, being faster than the undisturbed one.
                seconds, folder = seconds / 2, folder.with_name(f"{folder.name}-again")
                code = self.run(folder, variant, moment, seconds)
            events = notes(folder, rank)
            # Rank 0 ends with an error of its own if rank 1 was killed, whose log ends where it was.
            killed = code == -signal.SIGKILL if rank == 0 else code != 0 and _is_over(moment, events)
            if not killed:
                row.deviations.append(f"not killed at {moment}, but ended with {code}")
            said.append(in_words(moment, events))
            row.disk = on_disk(folder)
        row.moment = ", then ".join(said)
        row.anew = row.disk.endswith("no checkpoint")
        # A training that starts anew is another run, which leaves the folder of the killed one alone.
        before = {path: contents(path) for path in run_folders(folder).values()} if row.anew else {}
        code = self.run(folder, variant)
        if code == 0:
            row.deviations += deviations(self.whole[variant], outcome(folder), variant)
            row.deviations += [f"{path.name} was touched" for path, was in before.items() if not _same(path, was)]
            if not row.anew and len(run_folders(folder)) > 1:
                row.deviations.append("a second folder of arms")
        else:
            text = Path(f"{folder}.out").read_text().replace(str(folder), "FOLDER").strip().rpartition("\n")[2]
            row.deviations.append(f"the resumed training ended with {code}: {text}")
        self.rows.append(row)
        print(f"{len(self.rows)} {variant}, {row.moment}: {row.disk}: {row.deviations or 'equal'}", flush=True)


def _same(folder: Path, before: dict[str, str]) -> bool:
    now = contents(folder)
    return all(now.get(name) == tag for name, tag in before.items())


def _is_over(moment: str, events: list[list[str]]) -> bool:
    """Whether a log ends with the event that a moment names."""
    kind, _, count = moment.partition("@")[0].partition(":")
    return events[-1][0] == kind and sum(event[0] == kind for event in events) == int(count)


def in_words(moment: str, events: list[list[str]]) -> str:
    """Put a moment into words."""
    kind, phase, what = events[-1] if events else ("", "start", "nothing")
    count = sum(event[0] == kind for event in events)
    what = f"call {count} of the sampler" if kind == "call" else f"operation {count}, `{what}`"
    rank = f" of rank {moment.partition('@')[2]}" if "@" in moment else ""
    return f"{phase}: {'at random after' if moment == 'never' else 'before'} {what}{rank}"


# ---- the moments ------------------------------------------------------------------------------------------------


def spread(items: list[int], count: int) -> Iterator[int]:
    """Yield some items at equal distances."""
    yield from (items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count))


def alone(campaign: Campaign, everything: bool) -> None:
    """Kill one process: before each operation of a validation, before a spread of the others, and at random."""
    dice = random.Random(17)
    for variant in ("after", "before"):
        middle = campaign.operations(variant, "step 24")
        for number in middle if everything else spread(middle, 4):
            campaign.kill(variant, f"op:{number}")
    for variant in ("after", "before", "averaged") if everything else ("after",):
        # When there is nothing left to train, Lightning skips more than the training.
        for number in spread(campaign.operations(variant, "end"), 3 if everything else 1):
            campaign.kill(variant, f"op:{number}")
    result = campaign.operations("before", "step 40", "rename arms/.selection")[0]
    campaign.kill("before", f"op:{result}")
    if everything:
        campaign.kill("after", f"op:{campaign.operations('after', 'start', 'remove arms/.run')[0]}")
    counts = {"after": 6, "before": 6, "averaged": 10, "memory": 6} if everything else {"averaged": 1, "memory": 1}
    for variant, count in counts.items():
        for number in spread(campaign.operations(variant), count):
            campaign.kill(variant, f"op:{number}")
    for variant in VARIANTS if everything else ("before",):
        campaign.kill(variant, f"call:{dice.randint(2, 61)}")
        for _ in range(3 if everything else 1):
            campaign.kill(variant, seconds=campaign.seconds[variant] * dice.uniform(0.1, 0.9))
    for variant in ("after", "before", "averaged") if everything else ():
        # The second process is killed as well: while it takes up what the first one left, and later.
        for second in (1, 4, 9):
            campaign.kill(variant, f"op:{dice.choice(campaign.operations(variant, 'step 24'))}", f"op:{second}")


def ddp(campaign: Campaign, everything: bool) -> None:
    """Kill rank 0 before an operation, rank 1 in a pull, and both at once."""
    named = campaign.operations("before", "step 24", "rename arms/.step24")[0]
    campaign.kill("before", f"op:{named}@0")
    if not everything:
        return
    campaign.kill("before", "call:17@1")
    campaign.kill("before", seconds=0.5)
    half = campaign.operations("after", "step 32", "finish arms/.stats")[0]
    campaign.kill("after", f"op:{half}@0")
    campaign.kill("after", "call:12@1")
    campaign.kill("averaged", f"op:{campaign.operations('averaged', 'step 16', 'rename arms/.stats')[0]}@0")


def main(kind: str, size: str, root: Path) -> None:
    """Run a campaign, and write its rows."""
    torch.set_num_threads(1)
    if kind == "ddp":
        with contextlib.suppress(AttributeError):  # where there is no such call, orphans are somebody else's children
            ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    campaign = Campaign(root, fork if kind == "alone" else launch)
    (alone if kind == "alone" else ddp)(campaign, size == "all")
    rows = {"undisturbed": campaign.undisturbed_rows, "killed": campaign.rows}
    (root / "rows.json").write_text(json.dumps({kind: [asdict(row) for row in rows[kind]] for kind in rows}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
