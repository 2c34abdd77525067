"""The end of a validation: nothing is deleted that what is on disk can still ask for."""

from types import SimpleNamespace

import pytest

from tm_bandit.callbacks import _commit
from tm_bandit.callbacks._books import Books
from tm_bandit.callbacks._commit import Commit
from tm_bandit.callbacks._report import Summary


@pytest.fixture
def parts():
    """A commit over a store that notes what is done to it, and what the user was told."""
    done, said = [], []
    folder = SimpleNamespace(run="r", root="arms", delete=lambda name: done.append(name))
    store = SimpleNamespace(
        active=True,
        folder=folder,
        files={"step8": "step8.ckpt"},
        born={},
        dropped=[],
        planned=dict,
        commit=lambda planned: done.append("commit"),
        purge=lambda *args: done.append("purge"),
        path=lambda weights: "",
        ranks=SimpleNamespace(is_zero=True, tell=lambda value: value),
    )
    commit = Commit(store, None, "key", lambda text, kind: said.append(text))
    return SimpleNamespace(commit=commit, done=done, said=said)


def write(parts):
    summary = Summary({}, SimpleNamespace(history={}), best_arm="", best_path="", arms=())
    selector = SimpleNamespace(state_dict=dict)
    parts.commit.write(summary, None, Books(), selector)


def full(*args):
    raise OSError("No space left on device")


def test_on_a_full_disk_nothing_is_deleted_until_the_statistics_are_written(parts, monkeypatch):
    monkeypatch.setattr(_commit.HistoryText, "read", lambda self, history: "")
    monkeypatch.setattr(_commit, "write_sidecar", full)
    write(parts)
    parts.commit.let_go(None, Books())
    assert "purge" not in parts.done
    assert "No space left" in parts.said[0]
    monkeypatch.setattr(_commit, "write_sidecar", lambda *args: None)
    write(parts)
    parts.commit.let_go(None, Books())
    assert parts.done[-1] == "purge"


def test_nothing_is_deleted_while_the_file_of_the_best_arm_is_not_there(parts):
    books = Books(arms={"new": SimpleNamespace(weights="step16"), "old": SimpleNamespace(weights="step8")})
    parts.commit.let_go(SimpleNamespace(best_arm="new"), books)
    assert parts.done == []
    parts.commit.let_go(SimpleNamespace(best_arm="old"), books)
    assert parts.done == ["purge"]
