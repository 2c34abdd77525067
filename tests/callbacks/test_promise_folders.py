"""A run has one folder: copies, moves, plants, other runs, and folders of version 0.1."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from tests.callbacks.models import (
    DIM,
    Calm,
    Drifting,
    Gen,
    OneFolder,
    Untrained,
    assert_first_is_kept,
    bandit,
    calm_loaders,
    fid,
    fit,
    loaders,
    race,
)
from tm_bandit import OptimisticFID
from tm_bandit.errors import InputError


def test_resuming_a_copy_leaves_the_original_alone(tmp_path):
    race(tmp_path / "run1", Drifting, max_epochs=2)
    before = {path: path.read_bytes() for path in (tmp_path / "run1").rglob("*") if path.is_file()}
    shutil.copytree(tmp_path / "run1", tmp_path / "run2")
    with pytest.warns(UserWarning, match="dirpath has changed"):  # ModelCheckpoint's own words
        callback, _ = race(
            tmp_path / "run2", Drifting, ckpt_path=tmp_path / "run2" / "last" / "last.ckpt", max_epochs=5
        )
    assert {path: path.read_bytes() for path in (tmp_path / "run1").rglob("*") if path.is_file()} == before
    assert_first_is_kept(callback)
    assert Path(callback.best_model_path).parent == tmp_path / "run2" / "arms"


def logged(folder, max_epochs, ckpt_path=None):
    callback = bandit(None, budget=200, policy="random", max_arms=2)
    last = ModelCheckpoint(save_last=True)
    logger = CSVLogger(folder, name="run")
    fit(folder, callback, last, module=Drifting, max_epochs=max_epochs, ckpt_path=ckpt_path, logger=logger)
    return callback


@pytest.mark.parametrize("how", ["copied", "moved", "copied in part"])
def test_the_folder_is_found_beside_the_checkpoint(tmp_path, how):
    logged(tmp_path / "a", 2)
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*.ckpt")}
    if how == "moved":
        os.rename(tmp_path / "a", tmp_path / "b")
    else:
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    checkpoint = tmp_path / "b" / "run" / "version_0" / "checkpoints" / "last.ckpt"
    if how == "copied in part":
        shutil.rmtree(tmp_path / "b" / "run" / "version_0" / "bandit")
        with pytest.warns(UserWarning, match=r"selection starts over|dirpath has changed") as caught:
            callback = logged(tmp_path / "b", 3, checkpoint)
        assert sum("the selection starts over" in str(warning.message) for warning in caught) == 1
        assert set(callback.result.num_samples) == {"step24"}
    else:
        with pytest.warns(UserWarning, match="dirpath has changed"):
            callback = logged(tmp_path / "b", 3, checkpoint)
        assert callback.best_arm == "step8"
        assert Path(callback.best_model_path).parent == tmp_path / "b" / "run" / "version_0" / "bandit"
    if how != "moved":
        assert {path: path.read_bytes() for path in (tmp_path / "a").rglob("*.ckpt")} == before


def test_planted_paths_are_not_used(tmp_path):
    callback, _ = race(tmp_path / "run", Drifting, max_epochs=3)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "model.ckpt").write_text("mine")
    checkpoint = torch.load(tmp_path / "run" / "last" / "last.ckpt", weights_only=False)
    state = checkpoint["callbacks"][callback.state_key]
    state["folder"] = str(precious)
    state["dropped"] += [
        {"file": name, "tag": "", "since": 0, "born": 0} for name in ("../precious", str(precious), "last")
    ]
    for filed in state["files"].values():
        filed["file"] = "../precious/model.ckpt"
    torch.save(checkpoint, tmp_path / "run" / "last" / "last.ckpt")
    again, _ = race(tmp_path / "run", Drifting, max_epochs=5, ckpt_path=tmp_path / "run" / "last" / "last.ckpt")
    assert (precious / "model.ckpt").read_text() == "mine"
    assert list(precious.iterdir()) == [precious / "model.ckpt"]
    assert_first_is_kept(again)


def test_a_file_that_was_renamed_is_found_by_its_content(tmp_path):
    race(tmp_path, Drifting, max_epochs=2)
    os.rename(tmp_path / "arms" / "step8.ckpt", tmp_path / "arms" / "my_favourite.ckpt")
    os.rename(tmp_path / "arms" / "step16.ckpt", tmp_path / "arms" / "step8.ckpt")
    callback, _ = race(tmp_path, Drifting, ckpt_path=tmp_path / "last" / "last.ckpt", max_epochs=3)
    assert callback.best_arm == "step8"
    assert Path(callback.best_model_path).name == "my_favourite.ckpt"
    saved = torch.load(callback.best_model_path, weights_only=True)["state_dict"]
    assert torch.equal(saved["net.bias"], torch.full((DIM,), 0.5))


def test_loggers_without_a_folder_per_run(tmp_path):
    folders = []
    for version in ("abc", "def"):
        callback = bandit()
        fit(tmp_path, callback, module=Drifting, max_epochs=1, logger=OneFolder(tmp_path, version))
        folders.append(Path(callback.best_model_path).parent)
    assert folders == [tmp_path / "project" / version / "bandit" for version in ("abc", "def")]


def test_two_runs_in_one_folder_do_not_meet(tmp_path):
    def train(shift, name, max_epochs, ckpt_path=None):
        metric = OptimisticFID(nn.Identity(), bound="authors")
        data = loaders()
        data[1].dataset.tensors[0].copy_(shift + torch.randn(16, DIM, generator=torch.Generator().manual_seed(3)))
        callback = bandit(tmp_path / "arms", metric=metric)
        last = ModelCheckpoint(tmp_path / name, save_last=True)
        fit(tmp_path, callback, last, data=data, module=Gen, max_epochs=max_epochs, ckpt_path=ckpt_path)
        return callback

    first = train(0.0, "one", 1)
    second = train(5.0, "two", 1)
    assert Path(second.best_model_path).parent == tmp_path / "arms" / "v1"
    resumed = train(0.0, "one", 2, ckpt_path=tmp_path / "one" / "last.ckpt")
    assert resumed.metric.reference.mean.abs().max() < 1
    assert resumed.result.num_samples.keys() == {"step8", "step16"}
    assert Path(resumed.best_model_path).parent == tmp_path / "arms"
    first_row = {row["arm"]: row["estimate"] for row in first.result.arms}
    assert first_row["step8"] < 20
    runs = [
        json.loads((folder / "run.json").read_text())["run"] for folder in (tmp_path / "arms", tmp_path / "arms/v1")
    ]
    assert len(set(runs)) == 2
    for folder, name in zip((tmp_path / "arms", tmp_path / "arms" / "v1"), runs, strict=True):
        assert json.loads((folder / "selection.json").read_text())["run"] == name
        for path in folder.glob("*.ckpt"):
            assert torch.load(path, weights_only=True)["tm_bandit"]["run"] == name


def test_a_folder_that_cannot_be_written_to_is_refused_at_the_start(tmp_path):
    with pytest.raises(InputError, match="folder for the arms at /proc/arms, but it cannot be written to"):
        fit(tmp_path, bandit("/proc/arms"), module=Untrained)


def test_a_training_that_is_refused_leaves_no_folder_taken(tmp_path):
    with pytest.raises(InputError, match="sampler"):
        fit(tmp_path, bandit(tmp_path / "arms", sampler=lambda module, n, generator: None))
    callback = bandit(tmp_path / "arms")
    fit(tmp_path, callback, max_epochs=1)
    assert callback.best_model_path == str(tmp_path / "arms" / "step8.ckpt")


def test_a_run_of_version_01_can_be_resumed(tmp_path):
    shutil.copytree(Path(__file__).parents[1] / "data" / "v01" / "run", tmp_path, dirs_exist_ok=True)
    callback = bandit(tmp_path / "arms", metric=fid(with_reference=False), max_arms=3, pairing="independent")
    last = ModelCheckpoint(tmp_path / "last", save_last=True)
    with pytest.warns(UserWarning, match="dirpath has changed"):
        fit(
            tmp_path,
            callback,
            last,
            module=Calm,
            data=calm_loaders(),
            max_epochs=6,
            ckpt_path=tmp_path / "last/last.ckpt",
        )
    drawn = callback.result.num_samples
    assert drawn["step8"] == 60, "dropped by version 0.1, and still in the books"
    assert drawn["step16"] >= 80
    assert drawn["step24"] >= 70
    assert callback.result.total_samples == 6 * 60
    assert len(list((tmp_path / "arms").glob("*.ckpt"))) == 3
    assert Path(callback.best_model_path).exists()
    left = {path.name for path in (tmp_path / "arms").iterdir()}
    assert not left & {"stats.pt", "stats.previous.pt", "files.json"}
    assert Calm.load_from_checkpoint(callback.best_model_path).net.bias.shape == (DIM,)


def test_a_fresh_run_leaves_one_of_version_01_alone(tmp_path):
    shutil.copytree(Path(__file__).parents[1] / "data" / "v01" / "run", tmp_path, dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in (tmp_path / "arms").iterdir()}
    callback = bandit(tmp_path / "arms")
    fit(tmp_path, callback, max_epochs=1)
    assert Path(callback.best_model_path).parent == tmp_path / "arms" / "v1"
    assert {path: path.read_bytes() for path in before} == before
