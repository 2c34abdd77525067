"""How well a new arm is known before it may be left alone."""

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging

from tests.callbacks.models import DIM, Gen, bandit, fid, fit
from tm_bandit import ModelSelector


class Labelled(Gen):
    """Its weights say which step they are of, and nothing else changes."""

    def training_step(self, batch, batch_idx):
        return 0 * super().training_step(batch, batch_idx)

    def on_validation_start(self):
        torch.nn.init.constant_(self.net.bias, float(self.trainer.global_step))


class UnluckyStart:
    """The arm of step 16 is the best by far, but its first twenty samples are not."""

    def __init__(self):
        self.drawn = 0

    def __call__(self, module, num_samples, *, generator):
        shift = 0.8
        if int(module.net.bias[0]) == 16:
            shift = 1.6 if self.drawn < 20 else 0.0
            self.drawn += num_samples
        return 1.0 + shift + torch.randn(num_samples, DIM, generator=generator)


def test_an_unlucky_start_does_not_shut_a_good_arm_out(tmp_path):
    found = {}
    for burn_in in ("auto", 20):
        callback = bandit(
            tmp_path / str(burn_in), fid("witness"), sampler=UnluckyStart(), budget=200, burn_in=burn_in, seed=1
        )
        fit(tmp_path, callback, module=Labelled, max_epochs=4)
        found[burn_in] = callback.best_arm
    assert found["auto"] == "step16"
    assert found[20] != "step16", "the case is not as hard as it should be"


@pytest.mark.parametrize(
    ("settings", "average", "expected"),
    [
        ({"budget": 400, "batch_size": 10}, False, 50),
        ({"budget": 400, "batch_size": 20}, False, 60),
        ({"budget": 400, "batch_size": 50}, False, 100),
        ({"budget": 120, "batch_size": 10}, True, 30),
        ({"budget": 120, "batch_size": 10, "averaged": False}, True, 50),
        ({"budget": 60, "batch_size": 10, "variants": {"a": {}, "b": {}}}, True, 20),
        ({"budget": 60, "batch_size": 10, "burn_in": 40}, False, 40),
    ],
)
def test_default_burn_in(tmp_path, settings, average, expected):
    callback = bandit(tmp_path / "arms", **settings)
    fit(tmp_path, callback, *([EMAWeightAveraging()] if average else []), max_epochs=1)
    assert callback.result.settings["burn_in"] == expected


def test_an_arm_that_gets_its_burn_in_alone_is_judged():
    """Whatever the counts are at which the expensive numbers are computed anew."""
    selector = ModelSelector(fid("witness"), batch_size=10, budget=0, burn_in=60, refresh=0.25)
    selector.add_arm("a")
    selector.extend_budget(60)
    generator = torch.Generator().manual_seed(0)
    while (name := selector.select()) is not None:
        selector.observe(name, torch.randn(10, DIM, generator=generator))
    assert selector.result().best == "a"
    assert selector.result().best_score == pytest.approx(4.0, abs=1.5)
