"""The default policy on unseen seeds, with two versions of the package side by side.

Run ``python -m benchmarks.constants measure FILE.json`` in a checkout of each version (0.1 needs a copy of this file),
then ``python -m benchmarks.constants compare OLD.json NEW.json``, which prints ``benchmarks/results/constants.md``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.scenarios import SCENARIOS
from benchmarks.selection import BLIND, SHORT, regret_task

FIRST_SEED, TRIALS, PULLS = 91_000, 6, 1000


def measure(file: Path, trials: int, pulls: int) -> None:
    """Run the trials and write the average regrets one by one; a run that was cut short continues where it stopped."""
    torch.set_num_threads(1)
    plan = replace(
        SHORT, pulls=pulls, large_pulls=pulls, refresh=0.05, large_refresh=0.1, contestants=("default",),
        first_seed=FIRST_SEED,
    )  # fmt: skip
    known = json.loads(file.read_text()) if file.is_file() else {"pulls": pulls, "regrets": {}}
    if known["pulls"] != pulls:
        raise SystemExit(f"{file} is of a run with {known['pulls']} pulls, not {pulls}")
    regrets: dict[str, list[float]] = known["regrets"]
    for trial in range(trials):
        for name in SCENARIOS:
            if len(regrets.get(name, [])) > trial:
                continue
            found = regret_task(name, trial, plan)
            if found is not None:
                regrets.setdefault(name, []).append(found["contestants"]["default"]["regret"][-1])
                file.write_text(json.dumps({"pulls": pulls, "regrets": regrets}))


def compare(old_file: Path, new_file: Path) -> str:
    """Return the table of both, over the trials that both have."""
    old, new = (json.loads(file.read_text()) for file in (old_file, new_file))
    lines = ["| scenario | trials | 0.1 | 0.2 | ratio |", "|---|---|---|---|---|"]
    ratios = {}
    for name, theirs in old["regrets"].items():
        mine = new["regrets"].get(name, [])
        count = min(len(theirs), len(mine))
        if not count:
            continue
        before, after = statistics.fmean(theirs[:count]), statistics.fmean(mine[:count])
        ratios[name] = after / before
        lines.append(f"| {name} | {count} | {before:.3g} | {after:.3g} | {after / before:.2f} |")
    table = [ratio for name, ratio in ratios.items() if name not in BLIND]
    mean = math.exp(statistics.fmean(map(math.log, table)))
    worse = ", ".join(f"{name} ({ratio:.2f})" for name, ratio in ratios.items() if ratio > 1.5) or "none"
    return "\n".join(
        [
            "# The default policy with two constants",
            "",
            f"Average regret after {old['pulls']} pulls of 5, seeds from {FIRST_SEED} on, which were not used to "
            "choose any constant (those of 0.2 were chosen on seeds from 71000 on).",
            "Each trial has the same samples for both versions.",
            "`python -m benchmarks.constants measure FILE.json` in a checkout of each version, then `compare OLD NEW`.",
            "",
            *lines,
            "",
            f"Geometric mean of the ratios: **{mean:.2f}**, without the two blind spots, which are not rows of the "
            "regret table.",
            f"Worse by more than half: {worse}.",
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure")
    one.add_argument("file", type=Path)
    one.add_argument("--trials", type=int, default=TRIALS)
    one.add_argument("--pulls", type=int, default=PULLS)
    both = commands.add_parser("compare")
    both.add_argument("old", type=Path)
    both.add_argument("new", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "measure":
        measure(arguments.file, arguments.trials, arguments.pulls)
    else:
        print(compare(arguments.old, arguments.new))
