"""kill -9 at many moments: what is resumed ends as if it had not been killed, byte for byte.

A few moments here; all of them with ``make test-faults``, which also writes ``results.md``.
"""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.campaign import deviations
from tests.faults.killed_run import VARIANTS
from tests.faults.killed_selections import KINDS
from tests.faults.selections import differences

ROOT = Path(__file__).resolve().parents[2]
ALL = os.environ.get("TM_BANDIT_FAULTS") == "all"
TABLE = Path(__file__).with_name("results.md")

TITLES = {
    "alone": "## One process",
    "ddp": "## Two processes under DDP",
    "watch": "## Watchers",
    "workers": "## Runs with workers",
}

#: The program of each campaign, and how many kills there are at least: a few, and all.
PROGRAMS = {
    "alone": ("campaign", 12, 60),
    "ddp": ("campaign", 1, 6),
    "watch": ("selections", 3, 20),
    "workers": ("selections", 3, 20),
}

INTRODUCTION = """# Trainings and selections that were killed and resumed

`make test-faults` writes this. Each training is killed with SIGKILL and resumed from Lightning's `last.ckpt`; then
history, scores, verdicts, models and names of files are compared with those of a training that nobody killed. A
training that had no checkpoint yet starts anew.

A watcher and a run with two workers go on from the state that they keep on disk; all that they wrote is compared. When
a run is killed, its workers must end by themselves. When a worker is killed, the run must go on as if nothing happened.

"""


def run(kind: str, folder: Path) -> dict[str, list[dict]]:
    """Run a campaign in a process of its own: a process with threads must not fork."""
    program = f"tests.faults.{PROGRAMS[kind][0]}"
    command = [sys.executable, "-m", program, kind, "all" if ALL else "short", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads((folder / "rows.json").read_text())


def record(kind: str, rows: dict[str, list[dict]]) -> None:
    """Write the section of a campaign, and leave those of the others as they are."""
    known = TABLE.read_text().split("\n## ")[1:] if TABLE.exists() else []
    sections = {title: f"## {text.strip()}\n" for text in known for title in TITLES.values() if title[3:] in text[:40]}
    killed, equal = len(rows["killed"]), sum(not row["deviations"] for row in rows["killed"])
    lines = [f"{TITLES[kind]}\n", f"{killed} kills, {equal} with an equal end.\n"]
    lines += ["| what | killed at | what was on disk | end |", "|---|---|---|---|"]
    for row in (*rows["undisturbed"], *rows["killed"]):
        end = "; ".join(row["deviations"]) or ("equal, started anew" if row["anew"] else "equal")
        lines.append(f"| {row['variant']} | {row['moment']} | {row['disk']} | {end} |")
    sections[TITLES[kind]] = "\n".join(lines) + "\n"
    kinds = "\n".join(f"- `{name}`: {text}" for name, text in {**VARIANTS, **KINDS}.items())
    body = "\n".join(sections[title] for title in TITLES.values() if title in sections)
    TABLE.write_text(f"{INTRODUCTION}{kinds}\n\n{body}")


@pytest.mark.parametrize("kind", PROGRAMS)
def test_what_is_killed_ends_as_if_nobody_had(tmp_path, kind):
    rows = run(kind, tmp_path)
    if ALL:
        record(kind, rows)
    assert len(rows["killed"]) >= PROGRAMS[kind][2 if ALL else 1]
    assert [row for row in (*rows["undisturbed"], *rows["killed"]) if row["deviations"]] == []


OUTCOME = {
    "fields": {"history": '{"lower": [1.0, 2.0]}', "best": '"step8"'},
    "files": {"step8.ckpt": "a", "step16.ckpt": "b", "selection.json": ""},
    "best": "step8.ckpt",
    "trained": {"step": "40", "weights": "c"},
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda o: o["fields"].update(history='{"lower": [1.0, 2.0000000000000004]}'), "history differs in the last"),
        (lambda o: o["fields"].update(history='{"lower": [1.0, 2.1]}'), "history differs"),
        (lambda o: o["trained"].update(weights="d"), "weights differs"),
        (lambda o: o["files"].pop("step16.ckpt"), "missing: step16.ckpt"),
        (lambda o: o["files"].update({".step24.RUN.part": ""}), "left over: .step24.RUN.part"),
        (lambda o: o["files"].update({"step16.ckpt": "d"}), "other weights: step16.ckpt"),
        (lambda o: o["files"].pop("step8.ckpt"), "the file of the best arm, step8.ckpt, is missing"),
    ],
)
def test_the_comparison_sees_what_differs(change, said):
    other = copy.deepcopy(OUTCOME)
    assert deviations(OUTCOME, other, "after") == []
    change(other)
    found = deviations(OUTCOME, other, "after")
    assert any(text.startswith(said) for text in found), found


def test_the_comparison_of_selections_sees_what_differs():
    whole = {"selection.json": b"1", "best.pt": "a.pt"}
    assert differences(whole, dict(whole)) == []
    assert differences(whole, {"selection.json": b"2", ".best.tmp": "a.pt"}) == [
        "missing: best.pt",
        "left over: .best.tmp",
        "selection.json differs",
    ]
