"""Rows that were computed before come back, and never for another file, network or content."""

import os
import pickle
import sqlite3
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch

from tm_bandit.data import feature_cache
from tm_bandit.data.feature_cache import FILE, FeatureCache, clear, contents, default_folder
from tm_bandit.execution.workers import process_context


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Files of a test are new; how new a file may be has a test of its own."""
    monkeypatch.setattr(feature_cache, "_SETTLED_NS", 0)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    return path


@pytest.fixture
def cache(tmp_path):
    return FeatureCache(tmp_path / "cache", "network 1")


ROW = torch.tensor([0.1, -2.0, 3e-20])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_row_comes_back_bit_by_bit(cache, file, dtype):
    key = cache.stamp(file)
    assert cache.find(key) is None
    cache.keep([(key, ROW.to(dtype))])
    again = pickle.loads(pickle.dumps(cache)).find(cache.stamp(file))
    assert again.dtype == dtype
    assert torch.equal(again, ROW.to(dtype))


def test_it_belongs_to_the_network_and_the_file(cache, file, tmp_path):
    other = tmp_path / "b.png"
    os.link(file, other)  # the same inode, size and times
    keys = {cache.stamp(file), cache.stamp(other), FeatureCache(tmp_path / "cache", "network 2").stamp(file)}
    assert len(keys) == 3


def test_another_content_of_the_same_size_and_time_is_another_file(cache, file):
    before, status = cache.stamp(file), file.stat()
    time.sleep(0.02)  # longer than a tick of the file system's clock
    file.write_bytes(b"two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert cache.stamp(file) != before


def test_a_file_that_may_change_within_a_tick_has_no_key(cache, file, monkeypatch):
    monkeypatch.setattr(feature_cache, "_SETTLED_NS", 2_000_000_000)
    assert cache.stamp(file) is None
    changed = file.stat().st_ctime_ns
    monkeypatch.setattr(feature_cache.time, "time_ns", lambda: changed + 2_000_000_001)
    assert cache.stamp(file) is not None


def test_a_file_that_is_gone_has_no_key(cache, tmp_path):
    assert cache.stamp(tmp_path / "nowhere.png") is None


def test_a_damaged_row_is_none(cache, file):
    key = cache.stamp(file)
    cache.keep([(key, ROW)])
    with closing(sqlite3.connect(cache.path)) as database, database:
        database.execute("UPDATE rows SET data = ?", (bytes(len(ROW) * 4),))
    assert cache.find(key) is None
    with closing(sqlite3.connect(cache.path)) as database, database:
        database.execute("UPDATE rows SET dtype = 'O'")
    assert cache.find(key) is None


@pytest.mark.parametrize("content", [b"no database" * 100, b""])
def test_a_damaged_file_is_no_cache_and_no_error(cache, file, content):
    cache.path.parent.mkdir()
    cache.path.write_bytes(content)
    key = cache.stamp(file)
    cache.keep([(key, ROW)])
    assert cache.find(key) is None or torch.equal(cache.find(key), ROW)
    assert contents(cache.path.parent)[0] in (0, 1)


def test_a_folder_that_cannot_be_made_is_no_error(file):
    cache = FeatureCache(file / "below", "network")
    cache.keep([(cache.stamp(file), ROW)])
    assert cache.find(cache.stamp(file)) is None


def test_of_too_many_rows_the_older_half_goes(cache, monkeypatch):
    monkeypatch.setattr(feature_cache, "_LARGEST", 200_000)
    for at in range(100):
        cache.keep([(bytes([at]) * 20, torch.full((1000,), float(at)))])
    count, size = contents(cache.path.parent)
    assert 10 < count < 60
    assert size < 250_000
    assert cache.find(bytes([99]) * 20)[0] == 99
    assert cache.find(bytes([0]) * 20) is None


def test_clearing_deletes_the_rows_and_nothing_else(cache, file):
    cache.keep([(cache.stamp(file), ROW)])
    (cache.path.parent / "mine.txt").write_text("mine")
    assert contents(cache.path.parent)[0] == 1
    clear(cache.path.parent)
    assert contents(cache.path.parent) == (0, 0)
    assert os.listdir(cache.path.parent) == ["mine.txt"]
    clear(cache.path.parent)


def _fill(folder, first):
    cache = FeatureCache(folder, "network")
    for at in range(first, first + 20):
        cache.keep([(bytes([at]) * 20, torch.full((8,), float(at)))])


def test_two_processes_write_at_the_same_time(tmp_path):
    with ProcessPoolExecutor(2, mp_context=process_context()) as pool:
        list(pool.map(_fill, [tmp_path] * 2, [0, 20]))
    cache = FeatureCache(tmp_path, "network")
    assert [float(cache.find(bytes([at]) * 20)[0]) for at in range(40)] == list(range(40))
    assert os.listdir(tmp_path) == [FILE]


@pytest.mark.parametrize(
    ("environment", "platform", "place"),
    [
        ({"XDG_CACHE_HOME": "/x"}, "linux", "/x/tm-bandit"),
        ({"XDG_CACHE_HOME": "relative"}, "linux", "~/.cache/tm-bandit"),
        ({}, "linux", "~/.cache/tm-bandit"),
        ({}, "darwin", "~/Library/Caches/tm-bandit"),
        ({"LOCALAPPDATA": "/local"}, "win32", "/local/tm-bandit/cache"),
    ],
)
def test_the_place_is_where_caches_are(environment, platform, place):
    assert default_folder(environment, platform) == Path(place).expanduser()
