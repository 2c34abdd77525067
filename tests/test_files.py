"""Atomic outputs: whole or absent, and refused before the work if they cannot be written."""

import os

import numpy as np
import pytest

from tm_bandit._files import atomic_write, check_writable
from tm_bandit.errors import InputError


def test_new_content_replaces_old_and_leaves_no_temporary(tmp_path):
    target = tmp_path / "a.json"
    target.write_text("old")
    with atomic_write(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failing_block_keeps_the_old_file(tmp_path, error):
    target = tmp_path / "a.json"
    target.write_text("old")

    def write_half():
        with atomic_write(target) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_suffix_survives_for_writers_that_look_at_it(tmp_path):
    with atomic_write(tmp_path / "ref.npz") as temporary:
        np.savez(temporary, mu=np.zeros(2))
    assert np.load(tmp_path / "ref.npz")["mu"].shape == (2,)


def test_a_writer_that_wrote_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "a.json"):
        pass
    assert os.listdir(tmp_path) == []


def test_unwritable_places_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"create .*missing first"):
        check_writable(tmp_path / "missing" / "a.json")
    with pytest.raises(InputError, match="name of a file"):
        check_writable(tmp_path)
    assert check_writable(str(tmp_path / "a.json")) == tmp_path / "a.json"


def test_an_old_file_that_is_read_only_is_refused_before_the_work(tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    target.write_text("old")
    target.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda place, _: os.stat(place).st_mode & 0o200)  # root may do anything
    with pytest.raises(InputError, match="read-only"):
        check_writable(target)
    assert target.read_text() == "old"


def test_a_name_may_be_as_long_as_a_name_can_be(tmp_path):
    target = tmp_path / f"{'a' * 250}.json"
    with atomic_write(target) as temporary:
        temporary.write_text("{}")
    assert os.listdir(tmp_path) == [target.name]


def test_devices_and_inputs_are_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="regular file"), atomic_write(tmp_path / "pipe"):
        pass
    assert os.listdir(tmp_path) == ["pipe"]
    (tmp_path / "a.npy").write_text("data")
    (tmp_path / "link").symlink_to(tmp_path / "a.npy")
    with pytest.raises(InputError, match="one of the inputs"):
        check_writable(tmp_path / "a.npy", [tmp_path / "link"])
    check_writable(tmp_path / "a.npy", [tmp_path / "pipe", "my.module:function"])


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Else a power cut leaves an empty file under the name of the old one."""
    synced, target = [], tmp_path / "a.json"
    target.write_text("old")
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (synced.append(target.read_text()), sync(number))[1])
    with atomic_write(target) as temporary:
        temporary.write_text("new")
    assert synced == ["old"]
    assert target.read_text() == "new"
