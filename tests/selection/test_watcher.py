"""A watcher during training: it admits complete files, loses nothing when killed, and leaves other files alone."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.selection.watched import Point, outcome, save, watcher
from tm_bandit import ModelSelector
from tm_bandit.errors import InputError

PLACES = {"a": 2.0, "b": 0.5, "c": 1.0, "d": 0.1, "e": 3.0}


@pytest.fixture
def folder(tmp_path):
    for at, (name, place) in enumerate(PLACES.items()):
        save(tmp_path / f"{name}.pt", place, mtime=1000 + at)
    return tmp_path


def contents(folder):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path(folder).glob("*.*")}


def test_it_races_the_files_in_the_order_of_their_times(folder):
    before = contents(folder)
    result = watcher(folder).run(every=0.01, idle=0.0)
    assert list(result.num_samples) == list(PLACES)
    assert result.best == "d"
    assert result.total_samples == 5 * 120
    assert outcome(folder)["best"] == "d"
    own = folder / "tm_bandit"
    assert (own / "best.pt").resolve() == (folder / "d.pt").resolve()
    assert torch.load(own / "best.pt")["at"][0] == pytest.approx(0.1)
    assert 'http-equiv="refresh"' in (own / "selection.html").read_text()
    assert contents(folder) == before
    assert sorted(os.listdir(own)) == ["best.pt", "selection.html", "selection.json", "watch.lock", "watch.pt"]


def test_it_goes_on_where_it_was(folder, tmp_path_factory):
    whole = watcher(folder, out=tmp_path_factory.mktemp("whole")).run(every=0.01, idle=0.0)
    for _ in range(5):
        one = watcher(folder)
        assert one.look()
        one.close()
    again = watcher(folder)
    assert not again.look()
    assert again.run(idle=0.0).to_json() == whole.to_json()


@pytest.mark.slow
def test_kill_9_at_twenty_moments_loses_nothing(folder, tmp_path_factory):
    for at in range(7):
        save(folder / f"more{at}.pt", 0.2 + 0.3 * at, mtime=2000 + at)
    before = contents(folder)
    whole = watcher(folder, out=tmp_path_factory.mktemp("whole")).run(every=0.01, idle=0.0)
    script = Path(__file__).with_name("watched.py")
    done = subprocess.run([sys.executable, str(script), str(folder), "20"], capture_output=True, text=True, timeout=200)
    assert done.stdout.strip() == "20", done.stderr
    final = watcher(folder).run(every=0.01, idle=0.0)
    assert final.history == whole.history
    assert final.to_json() == whole.to_json()
    assert contents(folder) == before
    own = folder / "tm_bandit"
    assert sorted(os.listdir(own)) == ["best.pt", "selection.html", "selection.json", "watch.lock", "watch.pt"]


def test_half_written_files_are_not_read(folder, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr("tm_bandit.selection.watcher.read_weights", lambda path, key: read.append(path) or {})
    (folder / "new.pt").write_bytes(b"half")
    one = watcher(folder, settle=0.2)
    for size in range(5):
        one.look()
        assert read == []
        with (folder / "new.pt").open("ab") as file:
            file.write(b"more" * size)
        for path in folder.glob("?.pt"):
            os.utime(path)
        time.sleep(0.05)
    one.close()


def test_a_file_that_is_written_again_during_its_race_is_not_read(folder, monkeypatch):
    """As ``last.ckpt`` is, again and again: what was drawn is of the old model, and nothing of the new one joins it."""
    said, drawn, sample = [], [], Point.sample

    def overtaken(self, num_samples, generator):
        drawn.append(self.at[0].item())
        if len(drawn) == 3:
            with (folder / "last.pt").open("r+b") as file:
                file.truncate(100)
        return sample(self, num_samples, generator)

    one = watcher(folder, say=said.append)
    while one.look():
        pass
    save(folder / "last.pt", 0.0)
    monkeypatch.setattr(Point, "sample", overtaken)
    assert one.look()
    assert drawn.count(0.0) < 12
    assert "was rewritten" in one.selector.retired["last"]
    assert one.selector.best == "d"
    monkeypatch.undo()
    save(folder / "last.pt", 0.0)
    assert one.look()
    assert one.selector.best == "last~2"
    one.close()


def test_a_file_that_is_written_while_it_is_read_waits(folder, monkeypatch):
    said = []

    def read(path, key):
        save(path, 1.0, mtime=5000)
        raise InputError("Expected a checkpoint file, but got half of one.")

    monkeypatch.setattr("tm_bandit.selection.watcher.read_weights", read)
    one = watcher(folder, say=said.append)
    assert not one.look()
    assert said == []
    monkeypatch.undo()
    assert one.look()
    one.close()


def test_a_file_that_is_no_checkpoint_is_left_out_once(folder):
    said = []
    (folder / "optimizer.pt").write_bytes(b"junk, and no checkpoint")
    torch.save({"other": torch.zeros(2)}, folder / "stranger.pt")
    one = watcher(folder, say=said.append)
    while one.look():
        pass
    one.look()
    left_out = [line for line in said if "left out" in line]
    assert len(left_out) == 2
    assert any(line.startswith("optimizer.pt is left out: Expected a checkpoint file") for line in left_out)
    assert any(re.search(r"optimizer.pt \(\w+Error: ", line) for line in left_out), "a key alone says nothing"
    assert any("stranger.pt is left out: Expected weights for every trainable parameter" in line for line in left_out)
    assert one.selector.best == "d"
    save(folder / "optimizer.pt", 0.0)  # now it is one
    assert one.look()
    assert "optimizer" in one.selector.arms
    one.close()


def test_files_that_are_written_anew_or_gone(folder):
    one = watcher(folder)
    while one.look():
        pass
    save(folder / "d.pt", 5.0, mtime=3000)
    (folder / "b.pt").unlink()
    assert one.look()
    assert one.selector.retired["d"] == "its file was rewritten, see d~2"
    assert one.selector.retired["b"] == "its file is gone, or was rewritten"
    assert one.selector.best == "c", one.selector.result().table()
    one.close()
    (folder / "c.pt").unlink()
    again = watcher(folder)
    assert again.selector.best == "a"
    assert outcome(folder)["best"] == "a"
    again.close()


def test_the_worst_make_room(folder):
    one = watcher(folder, max_arms=2)
    while one.look():
        pass
    assert one.selector.best == "d"
    assert len(one.selector.arms) == 2
    assert set(one.selector.retired.values()) == {"dropped to make room for better arms"}
    one.close()


def test_those_stay_that_are_the_least_behind_the_best(folder):
    one = watcher(folder, max_arms=5)
    while one.look():
        pass
    order = [row["arm"] for row in one.selector.result().table()]
    assert order[:3] == ["d", "b", "c"]
    one._max_arms = 3
    one._drop_surplus()
    assert sorted(one.selector.arms) == ["b", "c", "d"]
    one.close()


def test_safetensors_and_folders_of_their_own(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    for step, place in ((500, 0.1), (1000, 2.0)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        safetensors.save_file({"at": torch.full((3,), place)}, tmp_path / f"checkpoint-{step}" / "model.safetensors")
    result = watcher(tmp_path).run(every=0.01, idle=0.0)
    assert result.best == os.path.join("checkpoint-500", "model")
    assert (tmp_path / "tm_bandit" / "best.safetensors").exists()


def test_two_watchers_need_two_folders(folder, tmp_path_factory):
    first = watcher(folder)
    with pytest.raises(InputError, match="another one writes to"):
        watcher(folder)
    watcher(folder, out=tmp_path_factory.mktemp("other")).close()
    first.close()
    watcher(folder).close()


def test_it_does_not_oversleep(folder):
    begin = time.monotonic()
    assert watcher(folder).run(every=1e300, idle=0.2).best is not None
    assert time.monotonic() - begin < 60.0


def test_bad_input(folder, tmp_path):
    with pytest.raises(InputError, match="there is none at"):
        watcher(tmp_path / "nowhere")
    with pytest.raises(InputError, match="which it watches"):
        watcher(folder, out=folder)
    with pytest.raises(InputError, match="budget"):
        watcher(folder, budget=5)
    (tmp_path / "mine").mkdir()
    for name in ("selection.json", "selection.html", "best.pt"):
        (tmp_path / "mine" / name).symlink_to("nowhere")
        with pytest.raises(InputError, match=f"with someone else's {name}"):
            watcher(folder, out=tmp_path / "mine")
        (tmp_path / "mine" / name).unlink()
    assert os.listdir(tmp_path / "mine") == []
    (folder / "tm_bandit").mkdir()
    (folder / "tm_bandit" / "watch.pt").write_text("not ours")
    with pytest.raises(InputError, match=r"Expected what a watcher left in .*watch.pt"):
        watcher(folder)
    assert (folder / "tm_bandit" / "watch.pt").read_text() == "not ours"


def test_the_selectors_own_method(folder):
    one = watcher(folder)
    one.close()
    result = ModelSelector.watch(
        folder, Point, one.selector.metric, samples="features", budget=120, batch_size=10, settle=0.0, idle=0.0
    )
    assert result.best == "d"
