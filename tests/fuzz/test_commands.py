"""Any words on the command line: an exit code, at most one line of complaint, and no traceback."""

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.junk import rounds, soon
from tests.report.results import make_result
from tm_bandit.cli import main
from tm_bandit.cli.parser import build_parser

PLACES = ["real.npy", "near.npy", "ref.npz", "result.json", "folder", "nowhere.npz", "module.py", "..", ".",
          "/dev/null", "", "a\0b", "\udcff", "parts:good", "parts:raising", "parts:number", "no:thing"]  # fmt: skip
VALUES = [*PLACES, "0", "1", "20", "-3", str(10**21), "nan", "inf", "1e400", "0.05", "ucb", "witness", "likely", "auto"]
#: Every option of every sub-command but two: one goes on for ever, and one starts a cluster.
OPTIONS = sorted(
    {
        option
        for action in build_parser()._actions
        for parser in (action.choices or {}).values()
        for option in parser._option_string_actions
    }
    - {"--idle", "--ray"}
    | {"--version", "--nonsense"}
)
PARTS = """
import torch
def good(num_samples, generator): return torch.randn(num_samples, 3, generator=generator)
def raising(*args, **kwargs): raise LookupError('no such layer')
number = 3
"""


@st.composite
def commands(draw):
    """A sub-command with arms, options and places, some of which fit together."""
    words = [draw(st.sampled_from(["stats", "select", "report", "watch", "cache", "demo", "nonsense", ""]))]
    words += ["--idle", "0"] if words[0] == "watch" else []  # lest it go on for ever
    for _ in range(draw(st.integers(0, 3))):
        words += ["--arm", draw(st.sampled_from(["a", "b", "", "a=b", "\udcff"])) + "=" + draw(st.sampled_from(PLACES))]
    for _ in range(draw(st.integers(0, 4))):
        words.append(draw(st.sampled_from([*OPTIONS, *VALUES])))
        if draw(st.booleans()):
            words.append(draw(st.sampled_from(VALUES)))
    return words + (["--out", "real.npy"] if words[0] == "demo" else [])  # a file, so it does not begin


@pytest.mark.filterwarnings("ignore")
def test_any_words_end_in_an_exit_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    (tmp_path / "folder").mkdir()
    (tmp_path / "parts.py").write_text(PARTS)

    def lay_out():
        np.save("real.npy", rng.normal(size=(60, 3)))
        np.save("near.npy", rng.normal(size=(60, 3)))
        np.savez("ref.npz", mu=np.zeros(3), sigma=np.eye(3))
        make_result(pulls=8).to_json("result.json")

    @rounds(2.0)
    @given(commands())
    def check(words):
        lay_out()
        out, err = io.StringIO(), io.StringIO()
        with soon(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(words)
            except SystemExit as leave:
                code = leave.code
        assert code in (0, 1, 2), words
        assert "Traceback" not in err.getvalue(), words
        if code == 2:
            assert len(err.getvalue().strip().splitlines()) <= 3, (words, err.getvalue())

    check()
