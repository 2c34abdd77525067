"""The command as users start it: in a process of its own, on a terminal or in a pipe, interrupted or not."""

import fcntl
import io
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli.parts import assert_refused
from tests.report.results import make_result
from tm_bandit.cli import main

COMMAND = [sys.executable, "-m", "tm_bandit"]

SLOW = """
import time, torch
def slow(num_samples, generator):
    time.sleep(0.05)
    return torch.randn(num_samples, 12, generator=generator)
def slower(num_samples, generator):
    time.sleep(0.05)
    return 1.0 + torch.randn(num_samples, 12, generator=generator)
"""


def test_the_installed_command_and_the_module_are_the_same():
    script = Path(sys.executable).with_name("tm-bandit")
    assert script.exists()
    outputs = {
        subprocess.run([*start, "--version"], capture_output=True, text=True, check=True).stdout
        for start in ([str(script)], COMMAND)
    }
    assert len(outputs) == 1
    assert outputs.pop().startswith("tm-bandit ")


def test_the_demo_gets_its_own_options(run):
    outcome = run("demo --help")
    assert outcome.code == 0
    assert "--fast" in outcome.out


def test_missing_weights_are_one_line_not_a_traceback(run, offline):
    outcome = run("stats real -o ref.npz --feature logits_unbiased")
    assert_refused(outcome, "inception-2015-12-05-6726825d.pth", "--weights")


def wait_for(process, text, seconds=240):
    """Read standard error until it says something."""
    seen, end = "", time.monotonic() + seconds
    while text not in seen:
        assert time.monotonic() < end, seen
        ready, _, _ = select.select([process.stderr], [], [], 1.0)
        if ready:
            part = os.read(process.stderr.fileno(), 4096).decode()
            assert part, seen
            seen += part
    return seen


def test_ctrl_c_prints_and_writes_what_is_known(here, run):
    assert run("stats real.npy -o ref.npz").code == 0
    (here / "slow_parts.py").write_text(SLOW)
    words = "select --reference ref.npz --feature none --arm a=slow_parts:slow --arm b=slow_parts:slower --json r.json"
    # Two arms cannot spend this budget within the test: only Ctrl-C ends the run.
    command = [*COMMAND, *words.split(), "--budget", "1000000", "--stop", "budget", "--batch-size", "10"]
    command += ["--html", "r.html"]
    environment = {**os.environ, "TM_BANDIT_PROGRESS_SECONDS": "0.2"}
    # A shell starts what it puts in the background with an ignored Ctrl-C, which the command would inherit.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    signal.signal(signal.SIGINT, before)
    with process:
        try:
            wait_for(process, " of 1,000,000 samples, best so far")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=240)
        finally:
            process.kill()
    said = out.decode() + err.decode()
    assert process.returncode == 1, said
    assert out.decode().splitlines()[0].split()[:2] == ["arm", "n"], said
    assert "interrupted" in err.decode(), said
    assert "Traceback" not in err.decode(), said
    assert (here / "r.json").exists()
    assert "interrupted" in (here / "r.html").read_text()


def read_terminal(controller):
    try:
        return os.read(controller, 4096)
    except OSError:  # Linux's way to say that the other end is closed
        return b""


def test_a_bar_on_a_terminal_while_other_processes_decode(here):
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = ["stats", "real", "-o", "ref.npz", "--feature", "cli_parts:Pool", "--batch-size", "7", "--workers", "2"]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=terminal) as process:
        os.close(terminal)
        seen = b""
        while part := read_terminal(controller):
            seen += part
        os.close(controller)
        out, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    assert b"300/300" in seen
    assert b"\r" in seen
    assert b"num_samples: 300" in out
    rows = np.load("real.npy")
    with np.load("ref.npz") as stored:
        np.testing.assert_allclose(stored["mu"], rows.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(stored["sigma"], np.cov(rows, rowvar=False), rtol=1e-9, atol=1e-15)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no shell to build a pipe with")
def test_a_reader_that_goes_away_is_no_traceback(here, run):
    assert run("stats real.npy -o ref.npz").code == 0
    python = " ".join(COMMAND)
    words = "select --reference ref.npz --arm a=near.npy --arm b=far.npy --budget 80 --batch-size 10 --quiet --json"
    done = subprocess.run(["bash", "-c", f"{python} {words} | true"], capture_output=True, text=True, timeout=240)
    assert done.stderr == ""


def test_letters_that_an_output_does_not_know_are_shown_by_their_codes(monkeypatch, here):
    make_result().to_json("plain.json")
    Path("german.json").write_text(Path("plain.json").read_text().replace("arm 2", "gr\u00f6\u00dfe"))
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    assert main(["report", "german.json"]) == 0
    assert b"gr\\xf6\\xdfe" in output.buffer.getvalue()


def test_a_warning_is_one_line_without_the_place_in_the_code(here, run):
    rng = np.random.default_rng(0)
    for name, rows in (("thin", 30), ("a", 60), ("b", 60)):  # far fewer real rows than ten for each feature
        np.save(f"{name}.npy", rng.normal(size=(rows, 12)))
    assert run("stats thin.npy -o thin.npz --feature none").code == 0
    words = "select --reference thin.npz [ab].npy"
    said = subprocess.run([*COMMAND, *words.split()], capture_output=True, text=True, check=True).stderr
    (line,) = [line for line in said.splitlines() if "30 images for 12 features" in line]
    assert line.startswith("tm-bandit: warning: The reference has")
    assert "functools" not in said
