"""Words and files that make no sense on the command line end in one line, and in no traceback."""

import json
import os

import numpy as np
import pytest

from tests.cli.parts import Outcome
from tests.report.results import make_result
from tm_bandit.cli import main
from tm_bandit.errors import BanditError, InputError

SCORE = "class Score:\n    def __init__(self):\n        raise ValueError('not today')\n"


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command in a folder with features, images and a feature function that raises."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, shift in (("real", 0), ("near", 0.1), ("far", 1)):
        np.save(f"{name}.npy", rng.normal(size=(120, 3)) + shift)
    np.save("images.npy", rng.integers(0, 255, (20, 8, 8, 3), dtype=np.uint8))
    (tmp_path / "raising.py").write_text("def feature(images):\n    raise LookupError('no such layer')\n" + SCORE)
    assert main(["stats", "real.npy", "-o", "ref.npz", "--quiet"]) == 0
    capsys.readouterr()

    def call(*words):
        try:
            code = main(list(words))
        except SystemExit as leave:
            code = leave.code
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


SELECT = ("select", "--reference", "ref.npz", "--arm", "near=near.npy", "--budget", "200", "--quiet")


@pytest.mark.parametrize(
    "words",
    [
        ("report", "deep.json"),
        ("report", "a\0b"),
        ("stats", "a\0b", "-o", "r.npz"),
        ("stats", "real.npy", "-o", "r\0.npz"),
        ("stats", "images.npy", "-o", "r.npz", "--feature", "raising:feature"),
        ("stats", "images.npy", "-o", "r.npz", "--feature", "raising:feature", "--batch-size", str(10**21)),
        ("stats", "real.npy", "-o", "r.npz", "--batch-size", str(10**21)),
        ("stats", "real.npy", "-o", "r.npz", "--workers", str(10**30)),
        ("stats", "images.npy", "-o", "r.npz", "--resize", str(10**30)),
        (*SELECT, "--arm", "far=far.npy", "--batch-size", str(10**21)),
        (*SELECT, "--arm", "far=far.npy", "--burn-in", str(10**21)),
        (*SELECT, "--arm", "far=far.npy", "--budget", str(10**30), "--batch-size", str(10**29)),
        (*SELECT, "--arm", "far=images.npy", "--feature", "raising:feature"),
        (*SELECT, "--arm", "far=far.npy", "--delta", "nan"),
        (*SELECT, "--arm", "far=far.npy", "--epsilon", "nan"),
        (*SELECT, "--arm", "far=a\0b"),
        (*SELECT, "--arm", os.fsdecode(b"\xff\xfe=far.npy")),
        (*SELECT, "--arm", os.fsdecode(b"far=\xff\xfe.npy")),
        (*SELECT, "--arm", f"{'a' * 100_000}=far.npy"),
        ("report", "lost.json"),
        ("demo", "--seed", "x"),
        ("demo", "--nonsense"),
        ("x" * 100_000,),
        (*SELECT, "--arm", "far=far.npy", "--device", "meta"),
        ("select", "--metric", "raising:Score", "--arm", "a=images.npy", "--budget", "50"),
        ("select", "--metric", "raising:feature", "--arm", "a=images.npy", "--budget", "20", "--batch-size", "5"),
    ],
)
def test_bad_words_end_in_one_line(command, tmp_path, words):
    (tmp_path / "deep.json").write_text('{"a":' * 100_000)
    (tmp_path / "lost.json").write_text(json.dumps(json.loads(make_result().to_json()) | {"best": "nobody"}))
    before = sorted(os.listdir(tmp_path))
    done = command(*words)
    assert done.code == 2, done
    assert len(done.err.strip().splitlines()) == 1
    assert "Traceback" not in done.err
    assert len(done.err) < 2000
    assert [name for name in sorted(os.listdir(tmp_path)) if name != "__pycache__"] == before


@pytest.mark.parametrize("seconds", ["often", "nan", "-1", ""])
def test_a_wrong_interval_of_progress_lines(command, monkeypatch, seconds):
    monkeypatch.setenv("TM_BANDIT_PROGRESS_SECONDS", seconds)
    done = command("stats", "real.npy", "-o", "r.npz")
    assert done.code == 2
    assert "TM_BANDIT_PROGRESS_SECONDS" in done.err
    assert issubclass(InputError, BanditError)
