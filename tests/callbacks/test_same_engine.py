"""The callback, a selector, and two processes of accelerate make the same pulls, with the same numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.callbacks.models import Calm, bandit, calm_loaders, fid, fit
from tests.callbacks.same_script import SETTINGS, VARIANTS, select

SCRIPT = Path(__file__).with_name("same_script.py")


@pytest.fixture(scope="module")
def callback(tmp_path_factory):
    folder = tmp_path_factory.mktemp("same")
    callback = bandit(folder / "arms", fid("witness"), budget=512, variants=VARIANTS, **SETTINGS)
    fit(folder, callback, module=Calm, data=calm_loaders(), max_epochs=1)
    return callback


def test_callback_and_selector_have_one_history(callback):
    torch.manual_seed(99)
    result = select(Path(callback.best_model_path))
    assert set(result.history["arm"]) == {"step8", "step8/half", "step8/wide"}
    assert len(result.history["arm"]) == 16
    assert callback.result.history == result.history
    assert callback.best_arm == result.best


@pytest.mark.slow
def test_two_processes_of_accelerate_have_it_too(callback):
    """They are told to use GPUs, because only then accelerate starts more than one; the script uses the CPU."""
    launch = "--multi_gpu --num_processes=2 --num_machines=1 --mixed_precision=no --dynamo_backend=no"
    command = ["accelerate.commands.launch", *launch.split(), "--main_process_port=0", SCRIPT, callback.best_model_path]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        told = json.loads(Path(callback.best_model_path).with_name(f"rank{rank}.json").read_text())
        assert told == json.loads(json.dumps(callback.result.history))
