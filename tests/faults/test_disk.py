"""A disk that is full, read-only or gone, and files that were cut or are somebody else's: each with its outcome.

| fault | outcome |
|---|---|
| full while a result, a page or a reference is saved | an error; the old file is there in full, nothing is left over |
| full while a command writes | exit code 1, one line, the old file is there in full |
| a place that cannot be written to | refused in one line before any sample is drawn |
| full while a watcher saves | an error; what it had found is there, and a watcher that is started again goes on |
| a place in which a watcher cannot write | refused in one line before anything is read |
| the folder of a training is gone | the training ends; the arms that are written later are there |
| the folder that is watched is gone | the watcher goes on, and keeps what it has found |
| the watcher's own folder is gone | an error that says so |
| the watcher's state was cut, emptied or exchanged | refused, and left as it is; the checkpoints are there |
| a watcher's result or page was cut, emptied or exchanged | written again from the state |
| a file of a training was cut, emptied or exchanged | it is said or not needed, and the resumed training ends |
"""

import resource
import shutil
import signal
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from tests.callbacks.models import bandit, fid, fit
from tests.report.results import make_result
from tests.selection.watched import save, watcher
from tm_bandit import ReferenceStatistics
from tm_bandit.cli import main
from tm_bandit.errors import InputError


@contextmanager
def full_disk(limit=600):
    """Let the system refuse to make any file longer than a few bytes, as a full disk does."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


REFERENCE = ReferenceStatistics(torch.zeros(20), torch.eye(20), 100)
WRITERS = {
    "result.json": lambda path: make_result().to_json(path),
    "page.html": lambda path: make_result().to_html(path),
    "plot.png": lambda path: make_result().plot(path),
    "ref.npz": REFERENCE.save,
    "ref.pt": REFERENCE.save,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch closes its file once more
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path)
    old = path.read_bytes()
    # RuntimeError: torch's own writer says it that way.
    with full_disk(), pytest.raises((OSError, RuntimeError)):
        WRITERS[name](path)
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_full_disk_under_a_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.random.default_rng(0).normal(size=(60, 20)))
    words = ["stats", "rows.npy", "-o", "ref.npz", "--quiet"]
    assert main(words) == 0
    old = (tmp_path / "ref.npz").read_bytes()
    capsys.readouterr()
    with full_disk():
        assert main(words) == 1
    said = capsys.readouterr().err.strip()
    assert said.startswith("tm-bandit: error: ")
    assert len(said.splitlines()) == 1
    assert (tmp_path / "ref.npz").read_bytes() == old
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ref.npz", "rows.npy"]


@pytest.mark.parametrize("place", ["/proc/ref.npz", "/dev/null", "nowhere/ref.npz"])
def test_places_that_cannot_be_written_to(tmp_path, monkeypatch, capsys, place):
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.random.default_rng(0).normal(size=(60, 2)))
    assert main(["stats", "rows.npy", "-o", place, "--quiet"]) in (1, 2)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def quiet(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit(*args, **kwargs)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A training that was stopped after two validations."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    root = tmp_path_factory.mktemp("stopped")
    quiet(root, bandit(root / "arms", metric=fid(with_reference=False)), ModelCheckpoint(root / "last", save_last=True))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["run.json", "*.pt", "selection.json", "reference.npz", "*.ckpt"])
@pytest.mark.parametrize("how", ["cut", "empty", "foreign"])
def test_files_of_a_training_that_were_cut_or_exchanged(tmp_path, stopped, pattern, how):
    root = tmp_path / "copy"
    shutil.copytree(stopped, root)
    paths = sorted((root / "arms").glob(pattern))
    assert paths
    for path in paths:
        content = path.read_bytes()
        path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "foreign": b"PK\x03\x04 not yours"}[how])
    callback = bandit(root / "arms", metric=fid(with_reference=False))
    quiet(root, callback, max_epochs=3, ckpt_path=root / "last" / "last.ckpt")
    assert callback.best_arm
    assert torch.load(callback.best_model_path, weights_only=True)["state_dict"]


@pytest.mark.slow
def test_the_folder_of_a_training_is_gone(tmp_path):
    arms = tmp_path / "arms"
    callback = bandit(arms)

    class Vandal(type(callback)):
        """Takes the folder away after the first validation."""

        def on_validation_epoch_end(self, trainer, pl_module):
            super().on_validation_epoch_end(trainer, pl_module)
            if trainer.current_epoch == 0 and not trainer.sanity_checking:
                shutil.rmtree(arms)

    vandal = Vandal(fid(), budget=60, batch_size=10, dirpath=str(arms))
    quiet(tmp_path, vandal, max_epochs=3)
    assert vandal.best_arm


# ---- watchers ----


@pytest.fixture
def folder(tmp_path):
    """A folder with three checkpoints."""
    folder = tmp_path / "training"
    folder.mkdir()
    for at, place in enumerate((2.0, 0.5, 1.0)):
        save(folder / f"step{at}.pt", place, mtime=1000 + at)
    return folder


def own_files(folder):
    return {path.name: path.read_bytes() for path in (folder / "tm_bandit").iterdir()}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch closes its file once more
def test_a_full_disk_under_a_watcher(folder, tmp_path):
    whole = watcher(folder, out=tmp_path / "whole").run(every=0.01, idle=0.0)
    one = watcher(folder)
    assert one.look()
    before = own_files(folder)
    with full_disk(), pytest.raises((OSError, RuntimeError)):
        one.run(idle=0.0)
    assert own_files(folder) == before
    again = watcher(folder)
    assert again.selector.arms == ["step0"]
    assert again.run(every=0.01, idle=0.0).to_json() == whole.to_json()


@pytest.mark.parametrize(
    ("place", "expected"),
    [("/proc/here", "a folder that can be"), ("/dev/null", "a folder that can be"), ("a\0b", "`out` to be a path")],
)
def test_places_in_which_a_watcher_cannot_write(folder, place, expected):
    with pytest.raises(InputError, match=f"Expected {expected}"):
        watcher(folder, out=place)


def test_folders_that_are_gone_under_a_watcher(folder, tmp_path):
    elsewhere = watcher(folder, out=tmp_path / "elsewhere")
    assert elsewhere.look()
    inside = watcher(folder)
    assert inside.look()
    shutil.rmtree(folder / "tm_bandit")
    with pytest.raises(InputError, match=r"existing folder, but got .*watch\.pt"):
        inside.look()
    inside.close()
    shutil.rmtree(folder)
    assert elsewhere.run(every=0.01, idle=0.0).best == "step0"
    assert "step0" in (tmp_path / "elsewhere" / "selection.json").read_text()


CHANGES = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "foreign": lambda content: b"PK\x03\x04 not yours",
}


@pytest.mark.parametrize("how", CHANGES)
def test_files_of_a_watcher_that_were_cut_or_exchanged(folder, how):
    watcher(folder).run(every=0.01, idle=0.0)
    before = own_files(folder)
    for name in ("selection.json", "selection.html"):
        (folder / "tm_bandit" / name).write_bytes(CHANGES[how](before[name]))
    watcher(folder).close()
    assert own_files(folder) == before
    state = folder / "tm_bandit" / "watch.pt"
    state.write_bytes(CHANGES[how](before["watch.pt"]))
    damaged = own_files(folder)
    with pytest.raises(InputError, match=r"Expected what a watcher left in .*watch\.pt"):
        watcher(folder)
    assert own_files(folder) == damaged
    state.unlink()
    assert watcher(folder).run(every=0.01, idle=0.0).best == "step1"


@pytest.mark.parametrize(
    "change",
    [
        {"paths": 3},
        {"paths": {}},
        {"paths": {"step0": 3, "step1": 3, "step2": 3}},
        {"stamps": 3},
        {"stamps": {}},
        {"stamps": {"step0.pt": (1,)}},
        {"selector": 3},
        {"selector": {}},
        {"selector": {"arms": [3]}},
    ],
)
def test_a_state_whose_parts_do_not_fit(folder, change):
    watcher(folder).run(every=0.01, idle=0.0)
    path = folder / "tm_bandit" / "watch.pt"
    torch.save(torch.load(path, weights_only=True) | change, path)
    with pytest.raises(InputError, match=r"Expected what a watcher left in .*watch\.pt"):
        watcher(folder)
    path.unlink()
    watcher(folder).close()  # the folder is not locked
