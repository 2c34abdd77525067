"""``torchrun --nproc_per_node=2``: the command line in two real processes gives what one gives, and speaks once."""

import contextlib
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.cli.conftest import MODULE
from tm_bandit.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchrun")
    (folder / "cli_parts.py").write_text(MODULE)
    random = np.random.default_rng(0)
    np.save(folder / "real.npy", random.normal(size=(400, 4)))
    for name, shift in (("near", 0.05), ("far", 1.0)):
        np.save(folder / f"{name}.npy", shift + random.normal(size=(335, 4)))
    assert main(["stats", str(folder / "real.npy"), "-o", str(folder / "ref.npz")]) == 0
    return folder


#: The second group of the same processes must not look for the first one.
SCRIPT = """
import sys
from tm_bandit.cli import main
sys.exit(max(main([*sys.argv[1:], "--json", f"both{time}.json"]) for time in range(3)))
"""


def command(*words, folder, processes):
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    (folder / "script.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, *launch, "script.py", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=300,
    )


FILES = "--reference ref.npz --arm near=near.npy --arm far=far.npy --budget 600 --stop budget --goal regret"
FUNCTIONS = "--metric is --feature cli_parts:classes --arm a=cli_parts:good --arm b=cli_parts:bad --budget 400"


def alone(place, words, monkeypatch):
    monkeypatch.chdir(place)
    assert main(["select", *words.split(), "--json", "alone.json"]) == 0
    return json.loads((place / "alone.json").read_text())


def test_torchrun_gives_what_one_process_gives(place, monkeypatch, capsys):
    expected = alone(place, FILES, monkeypatch)
    done = command("select", *FILES.split(), folder=place, processes=2)
    assert done.returncode == 0, done.stderr[-2000:]
    for time in range(3):
        both = json.loads((place / f"both{time}.json").read_text())
        assert both["history"] == expected["history"]
        assert both["best"] == "near"
    assert {row["arm"]: row["n"] for row in both["arms"]}["near"] == 330, "it was held when it ran out"
    shown = [line for line in done.stdout.splitlines(keepends=True) if not line.startswith("[Gloo]")]  # of some torches
    assert "".join(shown) == 3 * capsys.readouterr().out, "the first process alone shows the table"


def select(rank, world_size, folder, words):
    os.chdir(folder)
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        return main(["select", *words.split()]), err.getvalue()


def test_functions_too(place, monkeypatch, ranks):
    expected = alone(place, FUNCTIONS, monkeypatch)
    outcomes = ranks.run(select, place, f"{FUNCTIONS} --json both.json")
    assert [code for code, _ in outcomes] == [0, 0], outcomes
    assert json.loads((place / "both.json").read_text())["history"] == expected["history"]


@pytest.mark.parametrize(
    ("words", "names"),
    [("--reference ref.npz --arm a=none.npy --arm b=near.npy", "none.npy"), (f"{FILES} --workers 2", "--workers")],
)
def test_a_refusal_is_one_line(place, ranks, words, names):
    (code, said), (other, silence) = ranks.run(select, place, words)
    assert (code, other) == (2, 2)
    assert said.startswith("tm-bandit: error:")
    assert said.count("\n") == 1
    assert names in said
    assert silence == ""


def test_workers_from_the_command_line(place, monkeypatch):
    """One process is enough to see that files are drawn from by number: the pulls are those of no worker at all."""
    monkeypatch.chdir(place)
    monkeypatch.setattr("tm_bandit.execution.hand_out.PER_WORKER", 1)
    expected = alone(place, FILES, monkeypatch)
    assert main(["select", *FILES.split(), "--workers", "1", "--timeout", "60", "--json", "worker.json"]) == 0
    assert json.loads((place / "worker.json").read_text())["history"] == expected["history"]
