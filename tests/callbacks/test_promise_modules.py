"""Whatever a module keeps in its checkpoint, its best weights are kept and can be read back."""

import collections
import dataclasses
import datetime
import enum
import functools
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.callbacks.models import (
    DIM,
    Drifting,
    assert_first_is_kept,
    bandit,
    fit,
    race,
)


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Options:
    width: int = 3


Point = collections.namedtuple("Point", "x y")

HYPERPARAMETERS = {
    "path": Path("data") / "train",
    "numpy scalar": np.float32(0.1),
    "numpy array": np.arange(3),
    "enum": Colour.RED,
    "dataclass": Options(),
    "partial": functools.partial(int, base=2),
    "class": torch.optim.Adam,
    "module": nn.Linear(2, 2),
    "function": torch.nn.functional.relu,
    "deque": collections.deque([1]),
    "defaultdict": collections.defaultdict(list, a=[1]),
    "timedelta": datetime.timedelta(1),
    "named tuple": Point(1, 2),
    "enum as key": {Colour.RED: 1.0},
    "set": {1, 2},
    "lambda": lambda x: x,
}


class Hyper(Drifting):
    def __init__(self, extra=None):
        super().__init__()
        self.save_hyperparameters()


@pytest.mark.parametrize("kind", HYPERPARAMETERS)
def test_any_hyperparameters(tmp_path, kind, recwarn):
    value = HYPERPARAMETERS[kind]
    callbacks = bandit(tmp_path / "arms", budget=200, policy="random", max_arms=2)
    fit(tmp_path, callbacks, module=Hyper(value), max_epochs=4)
    assert_first_is_kept(callbacks)
    said = [str(w.message) for w in recwarn if "cannot be written and read back" in str(w.message)]
    assert not said
    if kind == "lambda":  # Lightning leaves it out
        loaded = Hyper.load_from_checkpoint(callbacks.best_model_path, extra=value)
    else:
        loaded = Hyper.load_from_checkpoint(callbacks.best_model_path, weights_only=False)
        assert type(loaded.hparams.extra) is type(value)
    assert torch.equal(loaded.net.bias, torch.full((DIM,), 0.5))


class Renames(Drifting):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["state_dict"] = {f"old.{name}": value for name, value in checkpoint["state_dict"].items()}

    def on_load_checkpoint(self, checkpoint):
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name.removeprefix("old."): value for name, value in state.items()}


class Drops(Drifting):
    strict_loading = False

    def on_save_checkpoint(self, checkpoint):
        for name in [name for name in checkpoint["state_dict"] if name.startswith("net")]:
            del checkpoint["state_dict"][name]


class Halves(Drifting):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["state_dict"] = {name: value.half() for name, value in checkpoint["state_dict"].items()}


class Adds(Drifting):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["ema"] = {"path": Path("x"), "state": self.state_dict()}


class Nests(Drifting):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["state_dict"] = {"model": checkpoint["state_dict"], "step": np.int64(3)}

    def on_load_checkpoint(self, checkpoint):
        checkpoint["state_dict"] = checkpoint["state_dict"]["model"]


class Extra(Drifting):
    def get_extra_state(self):
        return {"colour": Colour.RED, "path": Path("x")}

    def set_extra_state(self, state):
        assert state["colour"] is Colour.RED


class Refuses(Drifting):
    def on_save_checkpoint(self, checkpoint):
        raise OSError("this hook always fails")


HOOKS = (Renames, Drops, Halves, Adds, Nests, Extra)


@pytest.mark.parametrize("module", HOOKS)
def test_any_checkpoint_hooks(tmp_path, module):
    callback, _ = race(tmp_path, module)
    assert_first_is_kept(callback)
    if module is Drops:  # its own files lack what it drops
        with pytest.warns(UserWarning, match="not in the checkpoint"):
            module.load_from_checkpoint(callback.best_model_path, weights_only=False)
        return
    loaded = module.load_from_checkpoint(callback.best_model_path, weights_only=False)
    assert torch.equal(loaded.net.bias, torch.full((DIM,), 0.5))


def test_a_hook_that_always_fails(tmp_path):
    callback = bandit(tmp_path / "arms", budget=200, policy="random", max_arms=2)
    with pytest.warns(UserWarning, match=r"this hook always fails.*weights alone") as caught:
        fit(tmp_path, callback, module=Refuses, max_epochs=4)
    assert sum("this hook" in str(warning.message) for warning in caught) == 1
    assert_first_is_kept(callback)
    assert torch.equal(Refuses.load_from_checkpoint(callback.best_model_path).net.bias, torch.full((DIM,), 0.5))


def test_nothing_in_a_file_is_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    callback, _ = race(tmp_path, Drifting, max_epochs=2)
    content = torch.load(callback.best_model_path, weights_only=False)
    torch.save({**content, "hyper_parameters": {"bomb": Bomb()}}, callback.best_model_path)
    again, _ = race(tmp_path, Drifting, max_epochs=3, ckpt_path=tmp_path / "last" / "last.ckpt")
    assert again.best_arm == "step8"
    assert not (tmp_path / "exploded").exists()
