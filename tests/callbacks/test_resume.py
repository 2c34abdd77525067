"""An interrupted and resumed training selects as an uninterrupted one does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from tests.callbacks.models import Calm, assert_same_result, bandit, calm_loaders, fid, fit


def train(folder, *extra, ckpt_path=None, max_epochs=5, average=False, **kwargs):
    callback = bandit(folder / "arms", **{"max_arms": 3, **kwargs})
    callbacks = [callback, ModelCheckpoint(folder / "last", save_last=True, save_top_k=-1, filename="{step}"), *extra]
    if average:
        callbacks.append(EMAWeightAveraging(decay=0.7))
    fit(folder, *callbacks, module=Calm, data=calm_loaders(), ckpt_path=ckpt_path, max_epochs=max_epochs)
    return callback


def sidecars(folder):
    return [torch.load(path, weights_only=True) for path in sorted(folder.glob("stats-*.pt"))]


def same(resumed, whole):
    assert_same_result(resumed.result, whole.result)
    assert resumed.best_arm == whole.best_arm
    assert resumed.best_model_score.item() == pytest.approx(whole.best_model_score.item(), rel=1e-9)
    assert Path(resumed.best_model_path).name == Path(whole.best_model_path).name
    mine, theirs = (sorted(Path(c.best_model_path).parent.glob("*.ckpt")) for c in (resumed, whole))
    assert [path.name for path in mine] == [path.name for path in theirs]
    for one, two in zip(mine, theirs, strict=True):
        one, two = (torch.load(path, weights_only=True)["state_dict"] for path in (one, two))
        assert all(torch.equal(one[name], two[name]) for name in two)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole"))


class Interrupt(pl.Callback):
    """Raises at the end of a validation, after the bandit's work and before the checkpoint is written."""

    def __init__(self, step, error=RuntimeError):
        self.step, self.error = step, error

    def on_validation_end(self, trainer, pl_module):
        if trainer.global_step == self.step:
            raise self.error("stop here")


def test_stopped_and_resumed(tmp_path, whole):
    train(tmp_path, max_epochs=2)
    same(train(tmp_path, ckpt_path=tmp_path / "last" / "last.ckpt"), whole)


def test_killed_in_the_middle_of_a_validation(tmp_path, whole):
    script = Path(__file__).with_name("killed_script.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "24", "3"], env=environment, capture_output=True, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    # The killed validation has left its weights behind, under no name that a user would take for a model.
    assert len(list((tmp_path / "arms").glob(".step24.*.part"))) == 1
    assert not (tmp_path / "arms" / "step24.ckpt").exists()
    resumed = train(tmp_path, ckpt_path=tmp_path / "last" / "last.ckpt")
    same(resumed, whole)
    assert not list((tmp_path / "arms").glob(".*"))


def test_interrupted_between_the_sidecar_and_the_checkpoint(tmp_path, whole):
    with pytest.raises(RuntimeError, match="stop here"):
        train(tmp_path, Interrupt(24))
    assert {sidecar["state"]["step"] for sidecar in sidecars(tmp_path / "arms")} == {16, 24}
    assert torch.load(tmp_path / "last" / "last.ckpt")["global_step"] == 16
    resumed = train(tmp_path, ckpt_path=tmp_path / "last" / "last.ckpt")
    assert_same_result(resumed.result, whole.result)


def test_keyboard_interrupt_leaves_the_training_as_it_was(tmp_path, whole):
    class Impatient(Calm):
        def sample(self, num_samples):
            self.calls.append(num_samples)
            if self.trainer.global_step == 24 and len(self.calls) % 7 == 0:
                raise KeyboardInterrupt
            return super().sample(num_samples)

    class Look(pl.Callback):
        def on_validation_start(self, trainer, pl_module):
            self.before = {name: p.clone() for name, p in pl_module.named_parameters()}

        def on_exception(self, trainer, pl_module, exception):
            self.after = {name: p.clone() for name, p in pl_module.named_parameters()}

    look, callback = Look(), bandit(tmp_path / "arms", max_arms=3)
    last = ModelCheckpoint(tmp_path / "last", save_last=True)
    with pytest.raises(SystemExit):
        fit(tmp_path, callback, last, look, module=Impatient, data=calm_loaders(), max_epochs=5)
    assert all(torch.equal(look.before[name], value) for name, value in look.after.items())
    assert callback.best_arm in ("step8", "step16")
    same(train(tmp_path, ckpt_path=last.last_model_path), whole)


def test_resumed_with_averages_and_a_reference_from_validation(tmp_path):
    settings = {"metric": fid(with_reference=False), "average": True, "max_arms": 4}
    uninterrupted = train(tmp_path / "a", **settings)
    train(tmp_path / "b", max_epochs=2, **{**settings, "metric": fid(with_reference=False)})
    assert (tmp_path / "b" / "arms" / "reference.npz").exists()
    again = {**settings, "metric": fid(with_reference=False)}
    same(train(tmp_path / "b", ckpt_path=tmp_path / "b" / "last" / "last.ckpt", **again), uninterrupted)


def test_the_checkpoint_holds_metadata_only(whole):
    folder = Path(whole.best_model_path).parent
    state = torch.load(folder.parent / "last" / "last.ckpt", weights_only=True)["callbacks"][whole.state_key]

    def tensors(value):
        if isinstance(value, dict):
            return any(map(tensors, value.values()))
        return any(map(tensors, value)) if isinstance(value, (list, tuple)) else isinstance(value, torch.Tensor)

    assert not tensors(state)
    assert len(repr(state)) < 4000
    assert [sidecar["state"]["step"] for sidecar in sidecars(folder)] == [40]


def test_going_back_to_an_earlier_checkpoint(tmp_path, whole):
    first = train(tmp_path)
    later = set(first.result.num_samples) - {"step8", "step16"}
    kept = {path.name for path in (tmp_path / "arms").glob("*.ckpt")}
    with pytest.warns(UserWarning, match="has dropped .* since"):
        back = train(tmp_path, ckpt_path=tmp_path / "last" / "step=16.ckpt")
    # The later arms are made anew; the files of the first training are not written over.
    assert set(back.result.num_samples) >= later
    assert back.result.total_samples >= 5 * 60 - 2 * 60
    assert kept <= {path.name for path in (tmp_path / "arms").glob("*.ckpt")} | {
        f"{a}.ckpt" for a in back.result.retired
    }
    assert Path(back.best_model_path).exists()


def test_lost_statistics_and_lost_files(tmp_path):
    train(tmp_path, max_epochs=2)
    for path in [*(tmp_path / "arms").glob("stats-*.pt"), tmp_path / "arms" / "step8.ckpt"]:
        path.unlink()
    with pytest.warns(UserWarning, match="gone|missing") as caught:
        callback = train(tmp_path, ckpt_path=tmp_path / "last" / "last.ckpt", max_epochs=3)
    texts = [str(warning.message) for warning in caught]
    assert sum("statistics of the arms are missing" in text for text in texts) == 1
    assert sum("step8 are gone" in text for text in texts) == 1
    assert set(callback.result.retired) == {"step8"}
    assert callback.result.num_samples["step16"] > 0
    assert callback.result.total_samples == 60


def test_statistics_of_another_training_are_not_taken(tmp_path):
    train(tmp_path, max_epochs=2)
    elsewhere = tmp_path / "elsewhere"
    train(elsewhere, max_epochs=2)
    for path in (tmp_path / "arms").glob("stats-*.pt"):
        path.unlink()
    for path in (elsewhere / "arms").glob("stats-*.pt"):
        os.replace(path, tmp_path / "arms" / path.name)
    with pytest.warns(UserWarning, match="statistics of the arms are missing"):
        train(tmp_path, ckpt_path=tmp_path / "last" / "last.ckpt", max_epochs=3)


def test_a_moved_folder_is_found(tmp_path, whole):
    train(tmp_path / "old", max_epochs=2)
    os.rename(tmp_path / "old", tmp_path / "new")
    with pytest.warns(UserWarning, match="dirpath has changed"):  # ModelCheckpoint's own words
        resumed = train(tmp_path / "new", ckpt_path=tmp_path / "new" / "last" / "last.ckpt")
    same(resumed, whole)
    assert not (tmp_path / "old").exists()


def test_resumed_in_another_log_folder_goes_on_in_the_old_one(tmp_path):
    def run(version, **kwargs):
        callback = bandit(None, max_arms=3)
        last = ModelCheckpoint(tmp_path / "last", save_last=True)
        logger = pl.loggers.CSVLogger(tmp_path, name="run", version=version)
        fit(tmp_path, callback, last, module=Calm, data=calm_loaders(), logger=logger, **kwargs)
        return callback

    run(0, max_epochs=1)
    second = run(1, max_epochs=2, ckpt_path=tmp_path / "last" / "last.ckpt")
    assert set(second.result.num_samples) == {"step8", "step16"}
    assert Path(second.best_model_path).parent == tmp_path / "run" / "version_0" / "bandit"


def test_memory_store_keeps_the_best_arm_over_a_restart(tmp_path):
    first = train(tmp_path, max_epochs=3, store="memory")
    with pytest.warns(UserWarning, match="are gone"):
        second = train(tmp_path, max_epochs=4, store="memory", ckpt_path=tmp_path / "last" / "last.ckpt")
    left = set(second.result.num_samples) - set(second.result.retired)
    assert left == {first.best_arm, "step32"}


def test_settings_that_changed_are_refused(tmp_path):
    from tm_bandit.errors import InputError

    train(tmp_path, max_epochs=1)
    other = fid()
    other.bound = "paper"
    for name, change in (("seed", {"seed": 3}), ("bound", {"metric": other}), ("plan", {"policy": "halving"})):
        with pytest.raises(InputError, match=f"with {name}="):
            train(tmp_path, max_epochs=2, ckpt_path=tmp_path / "last" / "last.ckpt", **change)
