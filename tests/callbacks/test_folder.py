"""The folder of a run: who owns it, where it is found, and that no name leads out of it."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tm_bandit.callbacks._folder import RunFolder, claim, disown, find, owner
from tm_bandit.errors import InputError


@pytest.mark.parametrize(
    "name", ["../a", "/etc/passwd", "a/b", "..", ".", "", "a\\b", "a\0b", "~", 3, None, "a b", "-rf", "\ud800"]
)
def test_no_name_leads_out(tmp_path, name):
    folder = RunFolder(tmp_path / "run", "r")
    with pytest.raises(InputError, match="bare name"):
        folder.path(name)
    assert not folder.has(name)
    folder.delete(name)


def test_links_and_folders_are_not_files(tmp_path):
    root, outside = tmp_path / "run", tmp_path / "outside.ckpt"
    root.mkdir()
    outside.write_text("mine")
    (root / "link.ckpt").symlink_to(outside)
    (root / "folder.ckpt").mkdir()
    (root / "real.ckpt").write_text("ours")
    folder = RunFolder(root, "r")
    assert folder.names("*.ckpt") == ["real.ckpt"]
    for name in ("link.ckpt", "folder.ckpt"):
        folder.delete(name)
        assert (root / name).exists()
        with pytest.raises(InputError, match="link or a folder"):
            folder.path(name)
    folder.delete("real.ckpt")
    folder.delete("real.ckpt")
    assert outside.read_text() == "mine"


def test_one_run_gets_a_folder(tmp_path):
    assert claim(tmp_path / "a", "one") == tmp_path / "a"
    assert claim(tmp_path / "a", "one") == tmp_path / "a"
    assert claim(tmp_path / "a", "two") == tmp_path / "a" / "v1"
    assert claim(tmp_path / "a", "three") == tmp_path / "a" / "v2"
    assert [owner(tmp_path / "a" / part) for part in ("", "v1", "v2", "v3")] == ["one", "two", "three", None]
    disown(tmp_path / "a" / "v1", "three")
    disown(tmp_path / "a" / "v1", "two")
    assert claim(tmp_path / "a", "four") == tmp_path / "a" / "v1"


def test_runs_that_start_at_once(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda run: claim(tmp_path / "a", run), [f"run{i}" for i in range(16)]))
    assert len(set(folders)) == 16
    assert [owner(folder) for folder in folders] == [f"run{i}" for i in range(16)]


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"run": 3}', '{"other": "x"}'])
def test_a_marker_that_cannot_be_read_is_somebodys(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    assert owner(tmp_path) == ""
    assert claim(tmp_path, "mine") == tmp_path / "v1"
    assert (tmp_path / "run.json").read_text() == text


def test_a_folder_of_version_0_1_belongs_to_its_run(tmp_path):
    (tmp_path / "files.json").write_text('{"run": "old"}')
    assert claim(tmp_path, "new") == tmp_path / "v1"
    assert not (tmp_path / "run.json").exists()
    assert claim(tmp_path, "old") == tmp_path
    assert owner(tmp_path) == "old"


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "a").write_text("")
    for root in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(InputError, match="folder for the arms at"):
            claim(root, "r")


def own(folder, run="r"):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"run": run}))
    return folder


def test_where_a_resumed_run_goes_on(tmp_path):
    original = own(tmp_path / "x" / "run1" / "version_0" / "bandit")
    checkpoint = tmp_path / "x" / "run1" / "version_0" / "checkpoints" / "last.ckpt"
    new = tmp_path / "x" / "run1" / "version_1" / "bandit"
    assert find(new, "r", str(original), checkpoint, trusted=True) == original
    assert find(new, "r", str(original), checkpoint, trusted=False) == original, "it is beside the checkpoint"
    assert find(new, "other", str(original), checkpoint, trusted=True) is None
    # A copy has its own; without one, it has no right to the original's.
    copied = tmp_path / "x" / "run2" / "version_0" / "checkpoints" / "last.ckpt"
    assert find(new, "r", str(original), copied, trusted=False) is None
    copy = own(tmp_path / "x" / "run2" / "version_0" / "bandit")
    assert find(new, "r", str(original), copied, trusted=False) == copy
    # The folder that is asked for comes first, and so does a version of it.
    asked = own(tmp_path / "asked" / "v3")
    assert find(tmp_path / "asked", "r", str(original), checkpoint, trusted=True) == asked


@pytest.mark.parametrize("hint", ["", "/", "..", "../../..", "relative/bandit", "/a/../../b"])
def test_hints_that_lead_nowhere(tmp_path, hint):
    own(tmp_path / "b")
    assert find(tmp_path / "new", "r", hint, tmp_path / "b" / "c" / "last.ckpt", trusted=False) is None
    assert find(tmp_path / "new", "r", hint, None, trusted=True) is None


def test_only_our_own_temporary_files_are_swept(tmp_path):
    ours = [".stats-0123456789ab.0a1b2c3d.tmp.pt", ".selection.0a1b2c3d.tmp.json", ".reference.0a1b2c3d.tmp.npz"]
    theirs = [".hidden", ".notes.0a1b2c3d.tmp.json", "stats.tmp.pt", ".step8.other.part"]
    for name in (*ours, *theirs):
        (tmp_path / name).write_text("")
    RunFolder(tmp_path, "r").sweep()
    assert set(os.listdir(tmp_path)) == set(theirs)


def test_a_folder_is_trained_in_by_one_process(tmp_path):
    root = claim(tmp_path / "a", "one")
    first, second = RunFolder(root, "one"), RunFolder(root, "one")
    first.lock()
    first.lock()
    with pytest.raises(InputError, match="is in use; wait until that one ends, or give another dirpath="):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()
    assert os.listdir(root) == ["run.json"]
