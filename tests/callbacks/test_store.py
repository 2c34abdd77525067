"""Where weights live: files under way, files with a name, files that may be deleted, and what no file could hold."""

import os

import pytest
import torch

from tests.callbacks.models import DIM, Failing, Gen, idle
from tm_bandit._weights_file import content_tag
from tm_bandit.callbacks import _store
from tm_bandit.callbacks._folder import RunFolder, claim
from tm_bandit.callbacks._store import ArmStore
from tm_bandit.callbacks._weights import BorrowedModule, persistent_tensors
from tm_bandit.errors import ArmError
from tm_bandit.execution.ranks import Ranks

RUN = "0123456789abcdef"


class Parts:
    """A store, and what it takes weights in with."""

    def __init__(self, tmp_path, kind="disk", module=Gen):
        self.folder = RunFolder(claim(tmp_path / "arms", RUN), RUN)
        self.module = module()
        self.trainer = idle(tmp_path, self.module)
        self.store = ArmStore(self.folder, kind, self.trainer, Ranks())

    def weights(self, level):
        live = {name: value.clone() for name, value in persistent_tensors(self.module).items()}
        return {**live, "net.bias": torch.full((DIM,), float(level))}

    def add(self, name, level, number=1):
        with torch.no_grad(), BorrowedModule(self.module) as borrowed:
            self.store.add(name, self.weights(level), number, borrowed)

    def rehearse(self):
        with torch.no_grad(), BorrowedModule(self.module) as borrowed:
            self.store.rehearse(borrowed)

    def commit(self):
        self.store.commit(self.store.planned())

    def files(self):
        return self.folder.names("*.ckpt")


@pytest.fixture
def parts(tmp_path):
    return Parts(tmp_path)


def test_a_file_gets_its_name_at_the_end_of_the_validation(parts):
    parts.add("step8", 1.0)
    assert (parts.files(), parts.store.unnamed(), parts.store.has_file("step8")) == ([], ["step8"], True)
    parts.commit()
    assert (parts.files(), parts.store.unnamed(), parts.folder.parts()) == (["step8.ckpt"], [], [])
    assert parts.store.in_both() == [], "what is in a file leaves the memory"
    assert parts.store.read("step8")["net.bias"].tolist() == [1.0] * DIM
    assert Gen.load_from_checkpoint(parts.store.path("step8")).net.bias.tolist() == [1.0] * DIM
    assert parts.store.tags["step8"] == content_tag(parts.weights(1.0))


def test_a_model_is_on_the_disk_before_its_file_has_its_name(parts, monkeypatch):
    """Else a power cut leaves an empty file where the statistics promise a model."""
    synced, sync = [], os.fsync

    def watched(number):
        synced.append((os.fstat(number).st_ino, parts.files()))
        sync(number)

    monkeypatch.setattr(os, "fsync", watched)
    parts.add("step8", 1.0)
    parts.commit()
    assert (os.stat(parts.store.path("step8")).st_ino, []) in synced


def test_files_of_others_are_not_written_over(parts):
    (parts.folder.root / "step8.ckpt").write_bytes(b"somebody's")
    parts.add("step8", 1.0)
    parts.commit()
    assert parts.files() == ["step8-v1.ckpt", "step8.ckpt"]
    assert (parts.folder.root / "step8.ckpt").read_bytes() == b"somebody's"


def test_a_file_goes_only_when_no_checkpoint_can_ask_for_it(parts):
    parts.add("step8", 1.0, number=1)
    parts.commit()
    parts.store.drop("step8", since=3)
    parts.store.purge(newest=2, confirmed=2)
    assert parts.files() == ["step8.ckpt"], "a checkpoint of the second validation knows the arm"
    parts.store.purge(newest=3, confirmed=3)
    assert (parts.files(), parts.store.dropped) == ([], [])


def test_other_weights_under_the_name_of_a_dropped_file_stay(parts):
    parts.add("step8", 1.0)
    parts.commit()
    parts.store.drop("step8", since=1)
    other = ArmStore(parts.folder, "disk", parts.trainer, Ranks())
    (parts.folder.root / "step8.ckpt").unlink()
    parts.store, dropping = other, parts.store
    parts.add("step8", 2.0)
    parts.commit()
    dropping.purge(newest=None, confirmed=None)
    assert parts.files() == ["step8.ckpt"]


def test_forgotten_weights_leave_their_file_and_lost_ones_are_missing(parts):
    parts.add("step8", 1.0)
    parts.add("step16", 2.0)
    parts.commit()
    parts.store.forget("step8")
    assert parts.files() == ["step16.ckpt", "step8.ckpt"]
    (parts.folder.root / "step16.ckpt").unlink()
    assert parts.store.missing(["step16"]) == ["step16"]
    with pytest.raises(ArmError, match="is gone"):
        parts.store.read("step16")


def test_what_cannot_be_written_stays_in_memory_and_that_is_said_once(parts, monkeypatch):
    def full(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr(_store, "write", full)
    with pytest.warns(UserWarning, match=r"No space left.*kept in memory"):
        parts.add("step8", 1.0)
    parts.add("step16", 2.0)  # warnings are errors: nothing is said twice
    parts.commit()
    assert (parts.files(), parts.store.unwritten()) == ([], ["step8", "step16"])
    assert parts.store.read("step8")["net.bias"].tolist() == [1.0] * DIM


def test_a_rehearsal_chooses_a_form_that_can_be_written(tmp_path):
    parts = Parts(tmp_path, module=Failing)
    with pytest.warns(UserWarning, match="not today.*the weights alone"):
        parts.rehearse()
    assert (parts.store.form, parts.store.kind) == ("bare", "disk")
    assert parts.folder.parts() == []
    parts.add("step8", 1.0)
    parts.commit()
    assert parts.store.read("step8")["net.bias"].tolist() == [1.0] * DIM


def test_memory_writes_nothing_until_it_is_asked_to(tmp_path):
    parts = Parts(tmp_path, kind="memory")
    parts.add("step8", 1.0)
    parts.commit()
    assert (parts.files(), parts.store.path("step8")) == ([], "")
    with torch.no_grad(), BorrowedModule(parts.module) as borrowed:
        parts.store.write("step8", borrowed)
    parts.commit()
    assert (parts.files(), parts.store.in_both()) == (["step8.ckpt"], ["step8"])


def test_a_resumed_run_finds_its_files_by_their_content(parts):
    parts.add("step8", 1.0)
    parts.commit()
    planned = parts.store.planned()
    parts.add("step16", 2.0)
    cut_off = parts.store.tags["step16"]
    (parts.folder.root / "step8.ckpt").rename(parts.folder.root / "renamed.ckpt")
    again = ArmStore(parts.folder, "disk", parts.trainer, Ranks())
    assert again.promote({filed["tag"]: filed["file"] for filed in planned.values()}) == {cut_off}
    assert parts.folder.parts() == []
    again.recover({"files": planned, "born": {"step8": 1}, "dropped": []})
    assert again.files == {"step8": "renamed.ckpt"}
    assert again.read("step8")["net.bias"].tolist() == [1.0] * DIM
