"""Checkpoints as the Trainer writes them: what is in them, and when they are on disk."""

from threading import Event

import pytest
import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

from tests.callbacks.models import Failing, Gen, idle
from tm_bandit.callbacks._checkpoint import bare, dump, is_on_disk, write


class Full(TorchCheckpointIO):
    """A disk that turns out to be full when somebody waits for it."""

    def __init__(self):
        super().__init__()
        self.found_out = Event()

    def save_checkpoint(self, *args, **kwargs):
        self.found_out.wait()
        raise OSError("No space left on device")


def test_a_dump_is_what_the_trainer_would_write(tmp_path):
    module = Gen(lr=0.125)
    trainer = idle(tmp_path, module)
    trainer.save_checkpoint(tmp_path / "theirs.ckpt", weights_only=True)
    theirs, ours = torch.load(tmp_path / "theirs.ckpt", weights_only=True), dump(trainer)
    assert ours.keys() == theirs.keys()
    assert ours["hyper_parameters"]["lr"] == 0.125
    for name, value in theirs["state_dict"].items():
        assert torch.equal(ours["state_dict"][name], value)


def test_a_hook_that_raises_leaves_its_name_nowhere(tmp_path):
    module = Failing()
    trainer = idle(tmp_path, module)
    module._current_fx_name = "validation_step"
    with pytest.raises(RuntimeError, match="not today"):
        dump(trainer)
    assert module._current_fx_name == "validation_step"


def test_weights_alone_need_no_hook(tmp_path):
    module = Failing()
    module.get_extra_state = lambda: "no tensor"
    found = bare(idle(tmp_path, module))
    assert found["state_dict"].keys() == dict(module.named_parameters(remove_duplicate=False)).keys() | {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }
    assert (found["epoch"], found["global_step"]) == (0, 0)


def test_an_asynchronous_writer_is_gone_round(tmp_path):
    trainer = idle(tmp_path, Gen())
    trainer.strategy.checkpoint_io = AsyncCheckpointIO(TorchCheckpointIO())
    write(trainer, {"a": torch.ones(1)}, tmp_path / "a.ckpt")
    assert torch.load(tmp_path / "a.ckpt", weights_only=True)["a"] == 1
    assert is_on_disk(trainer)


def test_a_checkpoint_that_could_not_be_written_is_not_on_disk(tmp_path):
    trainer = idle(tmp_path, Gen())
    disk = Full()
    trainer.strategy.checkpoint_io = AsyncCheckpointIO(disk)
    trainer.strategy.checkpoint_io.save_checkpoint({}, str(tmp_path / "a.ckpt"))
    disk.found_out.set()
    with pytest.warns(UserWarning, match="No space left on device.*nothing is deleted"):
        assert not is_on_disk(trainer)
