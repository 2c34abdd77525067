"""The ways in which people train."""

import time

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.callbacks.models import DIM, Gen, bandit, fid, fit, loaders, trainer
from tm_bandit import OptimisticIS


def arms(callback):
    return set(callback.result.num_samples)


def test_sanity_check_has_no_effect(tmp_path):
    class Stop(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            trainer.should_stop = True
            trainer.limit_val_batches = 0

    callback = bandit(tmp_path, metric=fid(with_reference=False))
    done = fit(tmp_path, callback, Stop(), num_sanity_val_steps=2, max_epochs=1, limit_train_batches=0)
    assert callback.result is None
    assert callback.best_model_path == ""
    assert not done.callback_metrics
    assert not list(tmp_path.glob("*.ckpt"))


def test_fast_dev_run_makes_two_pulls_and_writes_nothing(tmp_path):
    callback = bandit(tmp_path / "arms")
    done = fit(tmp_path, callback, fast_dev_run=True)
    assert callback.result.total_samples == 20
    assert callback.best_model_path == ""
    assert "bandit/current" in done.callback_metrics
    assert not (tmp_path / "arms").exists()


@pytest.mark.filterwarnings("ignore:.*Skipping val loop.*")
@pytest.mark.parametrize("how", ["limit_val_batches=0", "no loader", "no validation_step"])
def test_a_training_without_validation_is_warned_of(tmp_path, how):
    callback, module, (train, val) = bandit(tmp_path), Gen(), loaders()
    settings = {"limit_val_batches": 0} if how.startswith("limit") else {}
    if how == "no validation_step":
        module = type("Blind", (Gen,), {"validation_step": pl.LightningModule.validation_step})()
    run = trainer(tmp_path, callback, max_epochs=1, **settings)
    with pytest.warns(UserWarning, match="has none"):
        run.fit(module, train, None if how == "no loader" else val)
    assert callback.best_model_path == ""
    assert callback.result is None


def test_several_validations_per_epoch_and_gradient_accumulation(tmp_path):
    callback = bandit(tmp_path, budget=20)
    fit(tmp_path, callback, val_check_interval=0.25, accumulate_grad_batches=3, max_epochs=1)
    # 8 batches, validations after 2, 4, 6, 8: at global step 0, 1, 2 and 3, where an epoch's end makes a step early.
    assert arms(callback) == {"step1", "step2", "step3"}


def test_several_loaders_count_once(tmp_path):
    train, val = loaders()
    callback = bandit(tmp_path, metric=fid(with_reference=False))
    far = DataLoader(TensorDataset(100 + torch.randn(16, DIM)), 8)
    done = fit(tmp_path, callback, data=(train, [val, far]), max_epochs=1)
    assert arms(callback) == {"step8"}
    assert "bandit/best" in done.callback_metrics
    # Only the first loader makes the reference.
    assert callback.metric.reference.num_samples == 16
    assert callback.metric.reference.mean.abs().max() < 5


def test_should_stop_still_admits_the_last_weights(tmp_path):
    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer, *args):
            trainer.should_stop = trainer.should_stop or trainer.global_step == 3

    callback = bandit(tmp_path)
    fit(tmp_path, callback, Stop())
    assert arms(callback) == {"step3"}


def test_early_stopping_on_the_newest_arm(tmp_path):
    early = EarlyStopping("bandit/current", mode="min", patience=1, min_delta=1e9)
    done = fit(tmp_path, bandit(tmp_path), early, max_epochs=10)
    assert done.current_epoch == 2


def test_early_stopping_may_be_listed_first(tmp_path):
    done = fit(tmp_path, EarlyStopping("bandit/best", divergence_threshold=-1.0), bandit(tmp_path), max_epochs=10)
    assert done.current_epoch == 1


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true", "16-true"])
def test_sampling_runs_in_the_precision_of_the_training(tmp_path, precision):
    seen = {}

    class Look(Gen):
        def training_step(self, batch, batch_idx):
            return self(batch[0]).float().pow(2).mean()

        def sample(self, num_samples):
            out = self.net(torch.randn(num_samples, DIM, dtype=self.net.weight.dtype))
            seen[self.net.weight.dtype, out.dtype] = True
            return out

    class Extract(nn.Module):
        def forward(self, rows):
            seen["extractor"] = rows.dtype
            return rows

    metric = type(fid())(feature=Extract(), reference=fid().reference, bound="authors")
    callback = bandit(tmp_path, metric=metric)
    fit(tmp_path, callback, module=Look, precision=precision, max_epochs=1)
    assert callback.best_arm == "step8"
    expected = {
        "bf16-mixed": (torch.float32, torch.bfloat16),
        "bf16-true": (torch.bfloat16, torch.bfloat16),
        "64-true": (torch.float64, torch.float64),
        "16-true": (torch.float16, torch.float16),
    }[precision]
    assert expected in seen
    assert seen["extractor"] in (torch.float32, torch.float64)


# So torch says of one release of Python.
@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")
def test_compiled_modules(tmp_path):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    module = Gen()
    module.net.compile(backend="eager")
    inner = Gen()
    inner.net = torch.compile(nn.Linear(DIM, DIM), backend="eager")
    for number, kind in enumerate((torch.compile(Gen(), backend="eager"), module, inner)):
        folder = tmp_path / str(number)
        callback = bandit(folder, chunk_size=10, budget=20)
        fit(folder, callback, module=kind, max_epochs=2)
        assert arms(callback) == {"step8", "step16"}
        assert (folder / "step16.ckpt").exists()
    assert any("_orig_mod" in name for name in torch.load(tmp_path / "2" / "step8.ckpt")["state_dict"])


def test_deleted_file_retires_the_arm_and_training_goes_on(tmp_path):
    class Delete(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 2:
                (tmp_path / "step8.ckpt").unlink()

    callback = bandit(tmp_path)
    with pytest.warns(UserWarning, match=r"step8\.ckpt are gone"):
        done = fit(tmp_path, callback, Delete(), max_epochs=4)
    assert done.current_epoch == 4
    assert set(callback.result.retired) == {"step8"}
    assert callback.best_arm != "step8"


def test_an_arm_with_values_that_are_not_finite_is_retired(tmp_path):
    class Bad(Gen):
        """Diverges at step 16, and is repaired by hand at step 24."""

        def on_validation_start(self):
            if self.trainer.global_step == 16:
                self.good = {name: value.clone() for name, value in self.state_dict().items()}
                torch.nn.init.constant_(self.net.bias, torch.nan)
            elif self.trainer.global_step == 24:
                self.load_state_dict(self.good)

    callback, current = bandit(tmp_path, budget=200), []

    class Look(pl.Callback):
        def on_validation_end(self, trainer, pl_module):
            current.append(trainer.callback_metrics.get("bandit/current", torch.zeros(1)).item())

    with pytest.warns(UserWarning, match="finite") as caught:
        done = fit(tmp_path, callback, Look(), module=Bad, max_epochs=3, num_sanity_val_steps=0)
    # One error may pass, so it is tried once more; what it has is not a model, but its file is not ours to delete.
    assert sum("left out of this validation" in str(warning.message) for warning in caught) == 1
    assert "2 validations in a row" in callback.result.retired["step16"]
    assert (tmp_path / "step16.ckpt").exists()
    assert callback.best_arm in ("step8", "step24")
    assert done.callback_metrics["bandit/best"].isfinite()
    assert current[1] == float("inf"), "EarlyStopping(check_finite=True) is to see that the model has diverged"


def test_sampler_as_function_and_as_name(tmp_path):
    seen = []

    def sampler(pl_module, num_samples, *, generator, shift=0.0):
        seen.append((num_samples, shift))
        return shift + pl_module(torch.randn(num_samples, DIM, generator=generator))

    class Other(Gen):
        def draw(self, count, generator=None):
            assert generator is not None
            return self(torch.randn(count, DIM, generator=generator))

        sample = None

    function = bandit(tmp_path / "a", sampler=sampler, variants={"": {}, "far": {"shift": 9.0}}, key="a")
    name = bandit(tmp_path / "b", sampler="draw", key="b")
    fit(tmp_path, function, name, module=Other, max_epochs=1)
    assert arms(function) == {"step8", "step8/far"}
    assert function.best_arm == "step8"
    assert {count for count, _ in seen} == {10}
    assert arms(name) == {"step8"}


def test_inception_score_needs_no_reference(tmp_path):
    class Classes(Gen):
        def sample(self, num_samples, power=4.0):
            return torch.softmax(power * super().sample(num_samples), 1)

    metric = OptimisticIS(feature=nn.Identity(), bound="authors")
    callback = bandit(tmp_path, metric=metric, variants={"": {}, "flat": {"power": 0.1}})
    done = fit(tmp_path, callback, module=Classes, max_epochs=2)
    assert "flat" not in callback.best_arm
    assert 1.0 <= callback.best_model_score.item() <= DIM
    assert done.callback_metrics["bandit/best"] == callback.best_model_score
    assert not (tmp_path / "reference.npz").exists()


def test_validate_and_test_leave_the_selection_alone(tmp_path):
    callback = bandit(tmp_path)
    done = fit(tmp_path, callback, max_epochs=1)
    before = callback.result.to_json(), callback.best_model_path
    module = Gen()
    done.validate(module, loaders()[1], verbose=False)
    assert (callback.result.to_json(), callback.best_model_path) == before


def test_a_writer_that_takes_its_time(tmp_path):
    class Slow(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            time.sleep(0.3)
            super().save_checkpoint(checkpoint, path, storage_options)

    slow, quick = bandit(tmp_path / "slow"), bandit(tmp_path / "quick")
    fit(tmp_path, slow, plugins=[AsyncCheckpointIO(Slow())], max_epochs=3)
    fit(tmp_path, quick, max_epochs=3)
    assert slow.result.to_json() == quick.result.to_json()
    assert torch.load(slow.best_model_path, weights_only=True)["state_dict"]
    assert len(list((tmp_path / "slow").glob("*.ckpt"))) == 3
