"""Every example runs in its short mode, is short, and is a page of the gallery or listed in the README."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"
README = EXAMPLES.parent / "README.md"
# What Lightning thinks of zero loader workers, and torch of Lightning, is no concern of an example.
pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
]


def run(script, monkeypatch, tmp_path, *args):
    """Run a script in this process (importing torch once more would take longer than most examples).

    Its networks are small: it must take one thread, however many there are.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), *args])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        runpy.run_path(str(script), run_name="__main__")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("standalone_metric.py", "better by FID: one per class"),
        ("callback_in_trainer.py", "weights from its own file"),
        ("tune_sampler.py", "samples for 12 arms"),
        ("saved_checkpoints.py", "best: epoch="),
        ("gan.py", "best: step"),
        ("text_embeddings.py", "texts written. It writes:"),
        ("audio_embeddings.py", "right (likely), "),
        ("own_policy.py", "EveryThird   recommends 'shift 0.3'"),
    ],
)
def test_example(script, says, monkeypatch, tmp_path, capsys):
    run(EXAMPLES / script, monkeypatch, tmp_path, "--fast")
    assert says in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers' schedulers
def test_variants_of_a_pipeline_and_what_pairing_is_worth(monkeypatch, tmp_path, capsys):
    script = EXAMPLES / "diffusers_variants.py"
    assert len(script.read_text().splitlines()) <= 60
    run(script, monkeypatch, tmp_path, "--fast")
    said = capsys.readouterr().out
    assert "OptimisticMean: guidance_scale" in said
    assert "OptimisticFID: guidance_scale" in said
    assert float(said.split("differences in CLIPScore ")[1].split()[0]) >= 3


def test_paper_experiments_draws_its_figures(monkeypatch, tmp_path, capsys):
    run(EXAMPLES / "paper_experiments.py", monkeypatch, tmp_path, "--fast", "--out", str(tmp_path))
    written = capsys.readouterr().out
    figures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert figures == ["ablations.png", "algorithms.png", "new_models.png"]
    assert all(name in written for name in figures)


def test_two_processes_agree(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "two_processes.py"), "--fast", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    said = {line.split(": ", 1)[0]: line.split(": ", 1)[1] for line in done.stdout.splitlines() if "rank " in line[:5]}
    assert said["rank 0"] == said["rank 1"]
    assert said["rank 0"].startswith("best step")


@pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning")  # to LightningCLI
def test_lightning_cli_builds_everything_from_yaml(monkeypatch, tmp_path, capsys):
    folder = EXAMPLES / "lightning_cli"
    short = ["--trainer.max_epochs=2", "--trainer.check_val_every_n_epoch=1"]
    run(folder / "main.py", monkeypatch, tmp_path, "fit", "--config", str(folder / "config.yaml"), *short)
    assert "best: step" in capsys.readouterr().out
    assert list((tmp_path / "arms").glob("step*.ckpt"))


@pytest.mark.parametrize("script", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_example_is_short_and_listed(script):
    title, underline, *rest = script.read_text().splitlines()
    assert len(rest) < 118
    if script.parent == EXAMPLES:  # a page of the gallery
        assert title.endswith("?")
        assert set(underline) == {"="}
    else:
        assert f"examples/{script.relative_to(EXAMPLES).as_posix()}" in README.read_text()
