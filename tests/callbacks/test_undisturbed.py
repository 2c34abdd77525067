"""Training gives bit-identical weights with and without the callback, whatever the sampler does."""

import random

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import nn

from tests.callbacks.models import DIM, Gen, Rude, bandit, fit, loaders
from tm_bandit._guards import preserved_rng
from tm_bandit._weights_file import read_weights
from tm_bandit.errors import ArmError


class Gan(pl.LightningModule):
    """Manual optimisation with two optimizers."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.gen, self.critic = nn.Linear(DIM, DIM), nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        real, fake = batch[0], self.gen(torch.randn(len(batch[0]), DIM))
        self.toggle_optimizer(second)
        second.zero_grad()
        self.manual_backward((self.critic(fake.detach()) - self.critic(real)).mean())
        second.step()
        self.untoggle_optimizer(second)
        self.toggle_optimizer(first)
        first.zero_grad()
        self.manual_backward(-self.critic(fake).mean())
        first.step()
        self.untoggle_optimizer(first)

    def validation_step(self, batch, batch_idx):
        pass

    def sample(self, num_samples):
        return self.gen(torch.randn(num_samples, DIM))

    def configure_optimizers(self):
        return torch.optim.Adam(self.gen.parameters(), 0.05), torch.optim.Adam(self.critic.parameters(), 0.05)


class Noisy(Gen):
    """Uses every global generator in training and in sampling."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + 0.1 * random.random() + 0.1 * np.random.rand())

    def sample(self, num_samples):
        random.random(), np.random.rand()
        return super().sample(num_samples)


class Broken(Gen):
    """Fails after having done damage."""

    def sample(self, num_samples):
        if self.trainer.global_step > 0:
            torch.randn(3)
            self.net.weight.data.zero_()
            raise RuntimeError("out of luck")
        return super().sample(num_samples)


def everything(module, run):
    """All values a training leaves behind: parameters, all buffers, optimizer states, generators."""
    values = {name: p.detach().clone() for name, p in module.named_parameters()}
    values |= {name: b.clone() for name, b in module.named_buffers()}
    for number, optimizer in enumerate(run.optimizers):
        for index, state in optimizer.state_dict()["state"].items():
            values |= {f"optimizer{number}/{index}/{name}": torch.as_tensor(v) for name, v in state.items()}
    for callback in run.callbacks:
        if isinstance(callback, EMAWeightAveraging):
            values |= {f"ema/{name}": v.clone() for name, v in callback._average_model.module.named_parameters()}
    values["torch"] = torch.get_rng_state()
    values["numpy"] = torch.tensor(np.random.get_state()[1].astype(np.int64))
    values["python"] = torch.tensor(hash(random.getstate()))
    return values


CASES = {
    "plain": (Gen, {}),
    "rude sampler": (Rude, {}),
    "all generators": (Noisy, {}),
    # The validation after the fourth of seven batches finds the gradients of an unfinished accumulation.
    "accumulation": (Rude, {"accumulate_grad_batches": 3, "val_check_interval": 4}),
    "gan": (Gan, {}),
    "averaging": (Rude, {"average": True}),
    "no sanity check": (Gen, {"num_sanity_val_steps": 0}),
    "mixed precision": (Gen, {"precision": "bf16-mixed"}),
    "true half precision": (Gen, {"precision": "bf16-true"}),
}


@pytest.mark.parametrize("case", CASES)
def test_training_is_bit_identical(tmp_path, case):
    kind, settings = CASES[case]
    settings = dict(settings)
    average = settings.pop("average", False)
    outcomes = []
    for watched in (False, True):
        extra = [EMAWeightAveraging(decay=0.8)] if average else []
        callbacks = [bandit(tmp_path), *extra] if watched else extra
        kwargs = settings if watched else {**settings, "enable_checkpointing": False}
        pl.seed_everything(7, verbose=False)
        module = kind()
        done = fit(tmp_path, *callbacks, module=module, data=loaders(train=56), **kwargs)
        outcomes.append(everything(module, done))
    without, with_callback = outcomes
    assert callbacks[0].best_arm
    assert without.keys() == with_callback.keys()
    for name, value in without.items():
        assert torch.equal(value, with_callback[name]), name


def test_a_failing_sampler_does_not_disturb_either(tmp_path):
    outcomes = []
    for watched in (False, True):
        pl.seed_everything(7, verbose=False)
        module = Broken()
        if watched:
            callback = bandit(tmp_path)
            with pytest.warns(UserWarning, match="out of luck") as caught:
                done = fit(tmp_path, callback, module=module)
            assert len([w for w in caught if "out of luck" in str(w.message)]) == 1  # said once, for two validations
            assert callback.best_arm == callback.best_model_path == ""
            assert done.callback_metrics["bandit/current"] == torch.finfo(torch.float32).max
            assert not callback.result.retired
            assert {path.stem for path in tmp_path.glob("*.ckpt")} == {"step8", "step16"}
        else:
            done = fit(tmp_path, module=module)
        outcomes.append(everything(module, done))
    for name, value in outcomes[0].items():
        assert torch.equal(value, outcomes[1][name]), name


def test_unreadable_files_are_explained(tmp_path):
    with pytest.raises(ArmError, match="is gone"):
        read_weights(tmp_path / "no.ckpt")
    (tmp_path / "cut.ckpt").write_bytes(b"PK\x03\x04 no more")
    with pytest.raises(ArmError, match=r"cut\.ckpt"):
        read_weights(tmp_path / "cut.ckpt")
    torch.save({"state_dict": {"a": 1}}, tmp_path / "odd.ckpt")
    with pytest.raises(ArmError, match="state_dict"):
        read_weights(tmp_path / "odd.ckpt")
    torch.save({"state_dict": {"a": torch.ones(1)}}, tmp_path / "raw.ckpt")
    with pytest.raises(ArmError, match="current_model_state"):
        read_weights(tmp_path / "raw.ckpt", "current_model_state")
    torch.save({"a": torch.ones(1)}, tmp_path / "bare.ckpt")
    assert read_weights(tmp_path / "bare.ckpt")["a"] == 1


def test_generators_come_back_after_an_exception():
    def numbers():
        return torch.rand(1).item(), np.random.rand(), random.random()

    with preserved_rng():
        expected = numbers()
    with pytest.raises(ZeroDivisionError), preserved_rng():
        1 / (numbers() != expected)
    assert numbers() == expected
