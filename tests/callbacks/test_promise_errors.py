"""Errors that pass, damage, loggers and monitors cost no model."""

import os
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from tests.callbacks.models import (
    Drifting,
    Improving,
    OneFolder,
    assert_first_is_kept,
    bandit,
    fid,
    fit,
    race,
    reference,
)
from tm_bandit.errors import InputError


class Transient(Drifting):
    """Fails in some calls of one validation."""

    def fails(self, call):
        return True

    def sample(self, num_samples):
        if self.trainer.global_step == 16 and self.trainer.state.stage == "validate":
            self.count = getattr(self, "count", 0) + 1
            if self.fails(self.count):
                raise RuntimeError("CUDA out of memory")
        return super().sample(num_samples)


@pytest.mark.parametrize(
    "fails",
    [lambda call: True, lambda call: call > 5, lambda call: call == 3, lambda call: call % 2],
    ids=["all", "late", "one", "half"],
)
def test_a_transient_error_costs_nothing(tmp_path, fails):
    module = type("Module", (Transient,), {"fails": staticmethod(fails)})
    with pytest.warns(UserWarning, match="out of memory") as caught:
        callback, done = race(tmp_path, module, bandit={"max_arms": 4})
    texts = [str(warning.message) for warning in caught if "out of memory" in str(warning.message)]
    assert len(texts) == len(set(texts)) <= 2
    assert callback.best_arm == "step8"
    assert not callback.result.retired
    assert {path.stem for path in (tmp_path / "arms").glob("*.ckpt")} == {"step8", "step16", "step24", "step32"}
    assert done.callback_metrics["bandit/best"].isfinite()
    if fails(1) and fails(2):
        assert any("All of them stay" in text for text in texts)


def test_an_arm_that_keeps_failing_leaves_its_file(tmp_path):
    class Broken(Drifting):
        def sample(self, num_samples):
            if self.net.bias[0] == 1.5:
                raise RuntimeError("this one never works")
            return super().sample(num_samples)

    with pytest.warns(UserWarning, match="never works"):
        callback, _ = race(tmp_path, Broken)
    assert set(callback.result.retired) >= {"step16"}
    assert "never works" in callback.result.retired["step16"]
    assert (tmp_path / "arms" / "step16.ckpt").exists()
    assert callback.best_arm == "step8"


def test_a_full_disk_costs_nothing(tmp_path, monkeypatch):
    from lightning.pytorch.plugins.io import TorchCheckpointIO

    class Full(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            if checkpoint["global_step"] == 8 and "arms" in str(path):
                raise OSError(28, "No space left on device")
            super().save_checkpoint(checkpoint, path, storage_options)

    with pytest.warns(UserWarning, match="No space left.*kept in memory"):
        callback, _ = race(tmp_path, Drifting, plugins=[Full()])
    # It is written by the next validation, when there is room again.
    assert_first_is_kept(callback)


def damage(folder, how):
    (sidecar,) = folder.glob("stats-*.pt")
    if how == "truncated":
        sidecar.write_bytes(sidecar.read_bytes()[:1000])
    elif how == "text":
        sidecar.write_text("no statistics")
    elif how == "list":
        torch.save([1, 2, 3], sidecar)
    else:
        content = torch.load(sidecar, weights_only=True)
        if how == "numbers":
            content["selector"]["arms"] = 5
        elif how == "state":
            content["state"]["files"] = {"step8": 3}
        torch.save(content, sidecar)


@pytest.mark.parametrize("how", ["truncated", "text", "list", "numbers", "state"])
def test_damaged_statistics_are_said_and_lose_nothing(tmp_path, how):
    race(tmp_path, Drifting, max_epochs=2)
    damage(tmp_path / "arms", how)
    with pytest.warns(UserWarning, match="statistics") as caught:
        callback, _ = race(tmp_path, Drifting, max_epochs=4, ckpt_path=tmp_path / "last" / "last.ckpt")
    texts = [str(warning.message) for warning in caught]
    assert any("cannot be" in text and "stats-" in text for text in texts)
    assert any("sampled again" in text for text in texts)
    assert callback.best_arm == "step8"
    assert Path(callback.best_model_path).exists()


@pytest.mark.parametrize("how", ["missing", "cut", "another"])
def test_a_lost_reference_is_said(tmp_path, how):
    settings = {"metric": None}

    def train(max_epochs, ckpt_path=None):
        settings["metric"] = fid(with_reference=False)
        return race(tmp_path, Drifting, max_epochs=max_epochs, ckpt_path=ckpt_path, bandit=settings)[0]

    train(2)
    path = tmp_path / "arms" / "reference.npz"
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:100])
    else:
        reference(7.0).save(path)
    with pytest.warns(UserWarning, match="reference of the resumed run is missing"):
        callback = train(3, tmp_path / "last" / "last.ckpt")
    # The validation set is as it was, so the reference comes out the same, and so the statistics stay.
    assert set(callback.result.num_samples) == {"step8", "step16", "step24"}
    assert callback.result.total_samples == 600
    assert callback.best_arm == "step8"


def test_a_broken_state_in_the_checkpoint_is_refused_in_a_sentence(tmp_path):
    callback, _ = race(tmp_path, Drifting, max_epochs=1)
    checkpoint = torch.load(tmp_path / "last" / "last.ckpt", weights_only=False)
    for change in ({"files": {"step8": 5}}, {"arms": [3]}, {"version": 99}, {"known": None}):
        broken = {**checkpoint["callbacks"][callback.state_key], **change}
        torch.save({**checkpoint, "callbacks": {callback.state_key: broken}}, tmp_path / "broken.ckpt")
        with pytest.raises(InputError, match=r"broken one|version"):
            race(tmp_path, Drifting, max_epochs=2, ckpt_path=tmp_path / "broken.ckpt")


class Plain(OneFolder):
    """Lightning's own documented logger: it has no `experiment`."""


class Comet(OneFolder):
    class Experiment:
        def __init__(self):
            self.figures = []

        def log_figure(self, figure_name=None, figure=None, overwrite=False, step=None):
            assert isinstance(figure_name, str)
            figure.savefig(os.devnull, format="png")
            self.figures.append(figure_name)

    experiment = Experiment()


class Raises(OneFolder):
    class Experiment:
        def add_text(self, *args, **kwargs):
            raise ConnectionError("no network")

        add_figure = add_text

    experiment = Experiment()


def test_nothing_that_reports_ends_a_training(tmp_path):
    callback = bandit(tmp_path / "arms")
    with pytest.warns(UserWarning, match="no network.*training continues") as caught:
        fit(tmp_path, callback, logger=[kind(tmp_path, "x") for kind in (Plain, Comet, Raises)], max_epochs=3)
    assert sum("no network" in str(warning.message) for warning in caught) == 2  # once for the table, once for the plot
    assert Comet.experiment.figures == ["bandit/selection"]
    assert Path(callback.best_model_path).exists()


@pytest.mark.parametrize("settings", [{"every_n_epochs": 2}, {"min_step": 20}, {"every_n_epochs": 3}])
def test_monitors_of_validations_that_are_passed_over(tmp_path, settings):
    class Plateau(Drifting):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=50)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "bandit/current"}}

    monitor = ModelCheckpoint(tmp_path / "top", monitor="bandit/current", save_top_k=1, filename="{step}")
    early = EarlyStopping("bandit/current", patience=50)
    logger = CSVLogger(tmp_path)
    callback = bandit(tmp_path / "arms", **settings)
    done = fit(tmp_path, callback, monitor, early, module=Plateau, max_epochs=6, logger=logger)
    assert done.global_step == 48, "nobody stopped the training"
    scored = sorted(int(name.removeprefix("step")) for name in callback.result.num_samples)
    assert monitor.best_model_path.endswith(f"step={scored[0]}.ckpt"), "the first that was evaluated is the best"
    charted = [line.split(",") for line in (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()]
    column = charted[0].index("bandit/current")
    assert max(float(line[column]) for line in charted[1:] if line[column]) < 1e6, "no chart is spoilt"


# ---- what a strict reviewer found ---------------------------------------------------------------------------------


class LateHook(Improving):
    """Its hook begins to fail in the middle of the training."""

    def on_save_checkpoint(self, checkpoint):
        if self.trainer.global_step >= 16 and "callbacks" not in checkpoint:
            raise OSError("the hook has had enough")


def test_a_hook_that_fails_later_on(tmp_path):
    with pytest.warns(UserWarning, match="had enough.*weights alone"):
        callback, done = race(tmp_path, LateHook)
    assert callback.best_arm == "step32"
    assert Path(callback.best_model_path).name == "step32.ckpt"
    assert LateHook.load_from_checkpoint(callback.best_model_path).net.bias[0] == 6.5
    assert done.callback_metrics["bandit/best_step"] == 32, "the scalars were logged"


def test_the_best_file_stays_until_its_successor_is_there(tmp_path, monkeypatch):
    real = Path.replace

    def failing(self, target):
        if Path(target).name in ("step16.ckpt", "step24.ckpt"):
            raise PermissionError("busy")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    callback = bandit(tmp_path / "arms", budget=200, policy="random", max_arms=1)
    with pytest.warns(UserWarning, match="could not be renamed"):
        fit(tmp_path, callback, module=Improving, max_epochs=3)
    assert callback.best_arm == "step24"
    assert Path(callback.best_model_path).name == "step8.ckpt", "the last one that could be written"
    assert Path(callback.best_model_path).exists()


def test_files_that_cannot_be_deleted_end_no_training(tmp_path, monkeypatch):
    real = Path.unlink

    def failing(self, missing_ok=False):
        if self.suffix == ".ckpt":
            raise PermissionError("the file is open")
        real(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", failing)
    callback = bandit(tmp_path / "arms", budget=200, policy="random", max_arms=1)
    fit(tmp_path, callback, module=Improving, max_epochs=4)
    assert callback.best_arm == "step32"
    assert len(list((tmp_path / "arms").glob("*.ckpt"))) == 4
    monkeypatch.undo()
    assert [item["file"] for item in callback._session.store.dropped] == ["step8.ckpt", "step16.ckpt", "step24.ckpt"]


def test_two_errors_in_a_row_do_not_unseat_the_best(tmp_path):
    class Unlucky(Drifting):
        def sample(self, num_samples):
            if self.trainer.global_step in (16, 24) and self.net.bias[0] == 0.5:
                raise RuntimeError("bad luck")
            return super().sample(num_samples)

    with pytest.warns(UserWarning, match="bad luck"):
        callback, _ = race(tmp_path, Unlucky, bandit={"max_arms": 4})
    assert callback.best_arm == "step8"
    assert not callback.result.retired


def test_a_refused_start_does_not_poison_the_callback(tmp_path):
    class Moody(Drifting):
        broken = True

        def sample(self, num_samples):
            if Moody.broken:
                raise RuntimeError("not yet")
            return super().sample(num_samples)

    callback, module = bandit(tmp_path / "arms"), Moody()
    for _ in range(2):
        with pytest.raises(InputError, match="not yet"):
            fit(tmp_path, callback, module=module, max_epochs=1)
    Moody.broken = False
    fit(tmp_path, callback, module=module, max_epochs=1)
    assert callback.best_arm == "step8"


def test_a_checkpoint_that_is_taken_while_an_arm_is_in_the_module(tmp_path):
    saved = []

    class Signalled(Drifting):
        def sample(self, num_samples):
            if self.trainer.global_step == 16 and self.net.bias[0] == 0.5 and not saved:
                saved.append(tmp_path / "signal.ckpt")
                self.trainer.save_checkpoint(saved[0])
            return super().sample(num_samples)

    callback, _ = race(tmp_path, Signalled, max_epochs=2)
    content = torch.load(saved[0], weights_only=False)
    assert content["state_dict"]["net.bias"][0] == 1.5, "the weights of the training, not those of an arm"
    state = content["callbacks"][callback.state_key]
    assert [arm["step"] for arm in state["arms"]] == [8], "and what is known of the last validation that has ended"


def test_a_variant_that_is_no_longer_listed(tmp_path):
    variants = {"": {}, "x": {"scale": 1.5}}
    race(tmp_path, Drifting, max_epochs=2, bandit={"variants": variants, "max_arms": 4})
    with pytest.warns(UserWarning, match="its variant is no longer listed"):
        again, _ = race(tmp_path, Drifting, max_epochs=3, ckpt_path=tmp_path / "last" / "last.ckpt")
    assert again.best_arm == "step8"
    assert set(again.result.retired) >= {"step8/x", "step16/x"}


def test_files_do_not_pile_up_when_lightning_saved_only_once(tmp_path):
    callback = bandit(tmp_path / "arms", budget=200, policy="random", max_arms=2)
    once = ModelCheckpoint(tmp_path / "once", monitor="bandit/current", mode="max", save_top_k=1)
    fit(tmp_path, callback, once, module=Improving, max_epochs=8)
    left = {path.stem for path in (tmp_path / "arms").glob("*.ckpt")}
    # Those that the only checkpoint knows, or may be resumed with, and the two that are still in the race.
    assert left == {"step8", "step16", "step56", "step64"}


@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
def test_sparse_and_other_tensors(tmp_path):
    class Odd(Drifting):
        def __init__(self):
            super().__init__()
            self.register_buffer("coo", torch.eye(3).to_sparse())
            self.register_buffer("whole", torch.arange(3))
            self.register_buffer("wave", torch.ones(2, dtype=torch.complex64).conj())

    callback, _ = race(tmp_path, Odd, max_epochs=3)
    assert callback.best_arm == "step8"


def test_what_was_written_stays_until_the_best_is_written(tmp_path):
    from lightning.pytorch.plugins.io import TorchCheckpointIO

    class Full(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            if "arms" in str(path) and checkpoint["global_step"] == 16:
                raise OSError(28, "No space left on device")
            super().save_checkpoint(checkpoint, path, storage_options)

    with pytest.warns(UserWarning, match="No space left"):
        race(tmp_path, Improving, max_epochs=2, bandit={"max_arms": 1}, plugins=[Full()])
    assert (tmp_path / "arms" / "step8.ckpt").exists()
    with pytest.warns(UserWarning, match="step16 are gone"):
        again, _ = race(
            tmp_path, Drifting, max_epochs=3, ckpt_path=tmp_path / "last" / "last.ckpt", bandit={"max_arms": 2}
        )
    assert Path(again.best_model_path).exists()
    assert "step8" in again.result.num_samples
    assert "step8" not in again.result.retired


def test_tied_weights_in_a_checkpoint_that_is_taken_while_sampling(tmp_path):
    class Signalled(Drifting):
        def drift(self):
            super().drift()
            with torch.no_grad():
                self.net.weight.mul_(self.trainer.global_step)

        def sample(self, num_samples):
            path = tmp_path / "signal.ckpt"
            if self.trainer.global_step == 16 and self.net.bias[0] == 0.5 and not path.exists():
                self.trainer.save_checkpoint(path)
            return super().sample(num_samples)

    race(tmp_path, Signalled, max_epochs=2)
    state = torch.load(tmp_path / "signal.ckpt", weights_only=False)["state_dict"]
    assert torch.equal(state["net.weight"], 16 * torch.eye(len(state["net.bias"])))
    assert torch.equal(state["tied.weight"], state["net.weight"])


def test_a_damaged_file_is_no_best_model(tmp_path):
    class Vandal(Drifting):
        def on_train_epoch_start(self):
            if self.trainer.global_step == 16:
                path = tmp_path / "arms" / "step8.ckpt"
                path.write_bytes(path.read_bytes()[:100])

    with pytest.warns(UserWarning, match=r"step8\.ckpt are gone, or the file holds others"):
        callback, _ = race(tmp_path, Vandal, bandit={"max_arms": 4})
    assert callback.best_arm == "step16"
    assert Vandal.load_from_checkpoint(callback.best_model_path)
    assert (tmp_path / "arms" / "step8.ckpt").exists()
