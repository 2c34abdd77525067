"""``tm-bandit watch``."""

import json
import os

import pytest

from tests.cli.parts import assert_refused, save_checkpoint

OPTIONS = "--module cli_parts:Painter --reference ref.npz --feature cli_parts:pool --budget 100 --batch-size 10"


@pytest.fixture
def runs(here):
    (here / "runs").mkdir()
    for at, (name, level) in enumerate({"one": 60.0, "two": 127.0, "three": 220.0}.items()):
        save_checkpoint(here / "runs" / f"{name}.ckpt", level)
        os.utime(here / "runs" / f"{name}.ckpt", (1000 + at, 1000 + at))
    return here / "runs"


def test_it_finds_the_best_checkpoint_and_goes_on(run, reference, runs):
    (runs / "notes.pt").write_text("no checkpoint")
    outcome = run(f"watch runs {OPTIONS} --settle 0 --idle 0 --every 0.01")
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[1].startswith("two ")
    assert "notes.pt is left out: Expected a checkpoint file" in outcome.err
    found = json.loads((runs / "tm_bandit" / "selection.json").read_text())
    assert found["best"] == "two"
    assert (runs / "tm_bandit" / "best.ckpt").resolve() == (runs / "two.ckpt").resolve()
    save_checkpoint(runs / "four.ckpt", 200.0)
    again = run(f"watch runs {OPTIONS} --settle 0 --idle 0 --every 0.01 --quiet")
    assert again.code == 0, again.err
    assert len(json.loads((runs / "tm_bandit" / "selection.json").read_text())["arms"]) == 4


def test_bad_input(run, reference, runs):
    assert_refused(run(f"watch nowhere {OPTIONS}"), "nowhere")
    assert_refused(run(f"watch runs {OPTIONS} --device cuda:7"), "cuda:7")
    assert_refused(run("watch runs --module cli_parts:number --reference ref.npz"), "cli_parts:number", "class")
    assert_refused(run("watch runs --module cli_parts:Painter"), "--reference")
    assert_refused(run(f"watch runs {OPTIONS} --budget 5"), "budget")
