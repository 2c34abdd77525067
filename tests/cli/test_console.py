"""What is printed while a command works."""

import pytest

from tm_bandit.cli.console import Progress, note, plural


def test_notes_go_to_standard_error(capsys):
    note("hello")
    assert capsys.readouterr() == ("", "tm-bandit: hello\n")


def test_one_is_not_many():
    assert [plural(count, "file") for count in (0, 1, 2, 12_345)] == ["0 files", "1 file", "2 files", "12,345 files"]


def test_lines_come_when_they_are_due_and_at_the_end(capsys):
    with Progress(30, "drawing", "samples", every=0.0) as progress:
        progress.advance(10, "best a")
        progress.advance(20)
    assert capsys.readouterr().err.splitlines() == [
        "tm-bandit: drawing: 10 of 30 samples, best a",
        "tm-bandit: drawing: 30 of 30 samples",
        "tm-bandit: drawing: 30 of 30 samples",
    ]
    with Progress(30, "drawing", "samples", every=1e6) as progress:
        progress.advance(30)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_environment_overrules_the_pace(capsys, monkeypatch):
    monkeypatch.setenv("TM_BANDIT_PROGRESS_SECONDS", "0")
    with Progress(2, "reading", "files", every=1e6) as progress:
        progress.advance(1)
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_quiet_is_quiet_and_a_failure_has_no_last_line(capsys):
    with Progress(2, "reading", "files", quiet=True, every=0.0) as progress:
        progress.advance(2)
    with pytest.raises(OSError, match="gone"), Progress(2, "reading", "files"):
        raise OSError("gone")
    assert capsys.readouterr().err == ""
