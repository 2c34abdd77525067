"""Statistics belong to weights: rewinding, branching, and checkpoints older than the statistics."""

import shutil
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from tests.callbacks.models import Calm, Drifting, Improving, assert_same_result, bandit, calm_loaders, fid, fit, race


class Steered(Calm):
    """A training with one deterministic path per ``shift``."""

    def __init__(self, shift=0.0):
        super().__init__(lr=0.5)
        self.shift = shift

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + 3 * ((self.net.bias - self.shift) ** 2).sum()


def test_statistics_belong_to_weights(tmp_path):
    def train(shift, max_epochs, ckpt_path=None):
        module = Steered(shift)
        return race(
            tmp_path, module, data=calm_loaders(), max_epochs=max_epochs, ckpt_path=ckpt_path, bandit={"max_arms": 9}
        )[0]

    first = train(0.0, 4)
    scores = {row["arm"]: row["estimate"] for row in first.result.arms}
    files = {path.name: path.read_bytes() for path in (tmp_path / "arms").glob("*.ckpt")}
    shutil.copy(tmp_path / "last" / "step=32.ckpt", tmp_path / "first.ckpt")
    second = train(40.0, 4, tmp_path / "last" / "step=16.ckpt")
    other = {row["arm"]: row["estimate"] for row in second.result.arms}
    assert abs(other["step32"] - scores["step32"]) > 1
    for name, content in files.items():
        assert (tmp_path / "arms" / name).read_bytes() == content, "the first branch's models are still there"
    third = train(0.0, 4, tmp_path / "first.ckpt")
    assert {row["arm"]: row["estimate"] for row in third.result.arms} == scores
    assert third.best_arm == first.best_arm
    assert third.best_model_path == first.best_model_path
    assert third.result.history == first.result.history


def test_statistics_of_other_weights_are_not_taken_and_that_is_said(tmp_path):
    callback, _ = race(tmp_path, Drifting, max_epochs=2)
    checkpoint = torch.load(tmp_path / "last" / "last.ckpt", weights_only=False)
    state = checkpoint["callbacks"][callback.state_key]
    state["validation"] = "0123456789ab"
    state["files"]["step16"]["tag"] = "other weights"
    torch.save(checkpoint, tmp_path / "last" / "last.ckpt")
    with pytest.warns(UserWarning, match="do not belong to the weights of step16|are gone") as caught:
        again, _ = race(tmp_path, Drifting, max_epochs=3, ckpt_path=tmp_path / "last" / "last.ckpt")
    assert sum("sampled again" in str(warning.message) for warning in caught) == 1
    assert again.best_arm == "step8"


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.parametrize("every", [8, 4, 12])
@pytest.mark.parametrize("average", [False, True])
def test_a_checkpoint_older_than_the_last_validation(tmp_path, every, average):
    def train(folder, max_epochs, ckpt_path=None):
        callback = bandit(folder / "arms", budget=200, policy="random", max_arms=3 if not average else 4)
        last = ModelCheckpoint(folder / "last", every_n_train_steps=every, save_top_k=-1, filename="{step}")
        extra = [EMAWeightAveraging(decay=0.7)] if average else []
        fit(
            folder, callback, last, *extra, module=Calm, data=calm_loaders(), max_epochs=max_epochs, ckpt_path=ckpt_path
        )
        return callback

    whole = train(tmp_path / "whole", 4)
    first = train(tmp_path / "cut", 2)
    step = {8: 16, 4: 16, 12: 12}[every]
    if every != 12:  # nothing is left to train: the outcome is as it was
        again = train(tmp_path / "cut", 2, tmp_path / "cut" / "last" / f"step={step}.ckpt")
        assert again.best_arm == first.best_arm
        assert Path(again.best_model_path).exists()
        assert again.result.history == first.result.history
    resumed = train(tmp_path / "cut", 4, tmp_path / "cut" / "last" / f"step={step}.ckpt")
    assert Path(resumed.best_model_path).exists()
    assert resumed.result.num_samples.keys() == whole.result.num_samples.keys()
    if every != 12:  # in the middle of an epoch, Lightning itself goes on with other batches
        assert resumed.result.history == whole.result.history
        assert resumed.best_arm == whole.best_arm


def test_a_finished_training_that_is_resumed_is_still_finished(tmp_path):
    first, _ = race(tmp_path, Drifting, max_epochs=3, bandit={"policy": "ucb"})
    again, _ = race(
        tmp_path, Drifting, max_epochs=3, ckpt_path=tmp_path / "last" / "last.ckpt", bandit={"policy": "ucb"}
    )
    assert_same_result(again.result, first.result)
    assert again.result.status == first.result.status != "unfinished"


def test_files_go_only_when_lightnings_checkpoint_is_there(tmp_path):
    seen = []

    class Look(pl.Callback):
        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:  # the bandit is done, and the checkpoint of this validation is not written
                seen.append({path.stem for path in (tmp_path / "arms").glob("*.ckpt")})

        def on_train_batch_start(self, trainer, *args):
            state = torch.load(tmp_path / "last" / "last.ckpt", weights_only=False) if seen else None
            if state is not None:
                (mine,) = [value for key, value in state["callbacks"].items() if key.startswith("Bandit")]
                assert {filed["file"] for filed in mine["files"].values()} <= {f"{stem}.ckpt" for stem in seen[-1]}

    callback, _ = race(tmp_path, Improving, Look(), max_epochs=5)
    # Two arms stay; a third one, dropped, waits for the checkpoint that does not know it any more.
    assert [len(stems) for stems in seen] == [1, 2, 3, 3, 3]
    assert {path.stem for path in (tmp_path / "arms").glob("*.ckpt")} == {"step32", "step40"}
    assert callback.best_arm == "step40"
    assert not list((tmp_path / "arms").glob(".*"))


def test_a_checkpoint_newer_than_the_statistics(tmp_path):
    race(tmp_path, Drifting, max_epochs=2, bandit={"max_arms": 4})
    kept = {path.name: path.read_bytes() for path in (tmp_path / "arms").glob("stats-*.pt")}
    race(tmp_path, Drifting, max_epochs=3, ckpt_path=tmp_path / "last" / "last.ckpt", bandit={"max_arms": 4})
    for path in (tmp_path / "arms").glob("stats-*.pt"):
        path.unlink()
    for name, content in kept.items():
        (tmp_path / "arms" / name).write_bytes(content)
    with pytest.warns(UserWarning, match="do not belong to the weights of step24 in this checkpoint"):
        callback, _ = race(
            tmp_path, Drifting, max_epochs=4, ckpt_path=tmp_path / "last" / "last.ckpt", bandit={"max_arms": 4}
        )
    assert set(callback.result.num_samples) == {"step8", "step16", "step24", "step32"}
    assert callback.best_arm == "step8"
    assert Path(callback.best_model_path).exists()


@pytest.mark.parametrize("average", [False, True])
def test_a_first_validation_that_was_cut_off_before_there_was_a_reference(tmp_path, average):
    class Interrupt(pl.Callback):
        def on_validation_start(self, trainer, pl_module):
            if not trainer.sanity_checking:
                raise RuntimeError("stop here")

    def train(folder, *extra, ckpt_path=None):
        metric = fid(with_reference=False)
        callback = bandit(folder / "arms", metric=metric, budget=200, policy="random", max_arms=8)
        last = ModelCheckpoint(folder / "last", every_n_train_steps=8, save_last=True)
        extra += (EMAWeightAveraging(decay=0.7),) if average else ()
        fit(folder, callback, last, *extra, module=Calm, data=calm_loaders(), max_epochs=3, ckpt_path=ckpt_path)
        return callback

    whole = train(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="stop here"):
        train(tmp_path / "cut", Interrupt())
    resumed = train(tmp_path / "cut", ckpt_path=tmp_path / "cut" / "last" / "last.ckpt")
    assert resumed.result.history == whole.result.history
    assert resumed.best_arm == whole.best_arm
    assert Path(resumed.best_model_path).exists()
