"""Checkpoints that cannot be read, or would run code, end in one of our own errors; the other arms go on."""

import os
from contextlib import closing

import pytest
import torch
from torch import nn

from tests.callbacks.models import Gen
from tests.fuzz.junk import soon
from tm_bandit import ModelSelector, OptimisticIS
from tm_bandit._weights_file import read_file, read_weights
from tm_bandit.errors import InputError
from tm_bandit.selection.watcher import Watcher


def saved_gen(path, legacy=False, **extra):
    torch.manual_seed(0)
    module = Gen()
    content = {"state_dict": module.state_dict(), "pytorch-lightning_version": "2.0.0", "hyper_parameters": {}, **extra}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return module


class Settings:
    """An object of a class that torch does not unpickle on its own."""


def test_a_corrupt_first_checkpoint_is_an_arm_that_fails(tmp_path):
    (tmp_path / "step1.ckpt").write_bytes(b"PK\x03\x04 cut off")
    saved_gen(tmp_path / "step2.ckpt")
    selector = ModelSelector.from_checkpoints(
        tmp_path, Gen, metric=OptimisticIS(nn.Identity()), budget=200, batch_size=10
    )
    result = selector.run(progress=False)
    assert result.best == "step2"
    assert "step1.ckpt" in result.retired["step1"]
    (tmp_path / "step2.ckpt").write_bytes(b"")
    with pytest.raises(InputError, match=r"step1\.ckpt"):
        ModelSelector.from_checkpoints(tmp_path, Gen, metric=OptimisticIS(nn.Identity()), budget=200, batch_size=10)


@pytest.mark.parametrize("extra", [{}, {"hyper_parameters": Settings()}])
def test_checkpoints_of_the_format_before_zip(tmp_path, extra):
    module = saved_gen(tmp_path / "old.ckpt", legacy=True, **extra)
    found = read_weights(tmp_path / "old.ckpt")
    assert set(found) == set(module.state_dict())
    assert all(torch.equal(found[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("part", [{"names": [["a"]]}, {"names": [1, 2]}, {"weights": {1: torch.zeros(1)}}, {"tag": 1}])
def test_a_signature_that_is_none_says_nothing(tmp_path, part):
    saved_gen(tmp_path / "one.ckpt", tm_bandit={"tag": "t", "run": "r", "names": ["a"], "weights": {}, **part})
    found = read_file(tmp_path / "one.ckpt")
    assert (set(found.weights), found.tag, found.run) == (set(Gen().state_dict()), "", "")


class Trap:
    """Unpickled, this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_trap_in_a_checkpoint_of_the_format_before_zip(tmp_path):
    saved_gen(tmp_path / "old.ckpt", legacy=True, trap=Trap(tmp_path / "was-run"))
    read_weights(tmp_path / "old.ckpt")
    assert not (tmp_path / "was-run").exists()


def test_a_variant_is_a_dictionary(tmp_path):
    saved_gen(tmp_path / "one.ckpt")
    with pytest.raises(InputError, match="cfg3"):
        ModelSelector.from_checkpoints(tmp_path, Gen, OptimisticIS(nn.Identity()), variants={"cfg3": 3.0})


def test_a_watcher_takes_any_name(tmp_path, capsys):
    names = [b"\xff\xfe.ckpt", b"two\nlines.ckpt", "\u202eodd.ckpt".encode(), b"a|b.ckpt"]
    for name in names:
        saved_gen(tmp_path / "new.pth")
        os.rename(tmp_path / "new.pth", os.path.join(os.fsencode(tmp_path), name))
    os.mkfifo(tmp_path / "pipe.ckpt")
    watcher = Watcher(tmp_path, Gen, OptimisticIS(nn.Identity()), budget=40, batch_size=10, settle=0)
    with soon(60), closing(watcher):
        while watcher.look():
            pass
    assert set(watcher.selector.arms) == {"\u202eodd", "a|b"}
    assert all("is left out" in line or "best so far" in line for line in capsys.readouterr().out.splitlines())
