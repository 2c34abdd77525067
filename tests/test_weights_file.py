"""Files of weights: what is written can be read back, and what is read runs nothing."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from tm_bandit._weights_file import content_tag, read_file, read_weights, sign
from tm_bandit.errors import ArmError


def saved(path, checkpoint):
    torch.save(checkpoint, path)
    return path


def signed(module, state_dict, path, **extra):
    checkpoint = {"state_dict": state_dict, **extra}
    weights = dict(module.named_parameters())
    sign(checkpoint, weights, content_tag(weights), "run")
    return saved(path, checkpoint)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.half, torch.int64, torch.bool])
def test_a_tag_is_about_values_names_shapes_and_kinds(dtype):
    value = torch.arange(6).reshape(2, 3).to(dtype)
    tag = content_tag({"a": value, "b": torch.ones(())})
    assert tag == content_tag({"b": torch.ones(()), "a": value.clone()})
    assert tag == content_tag({"_orig_mod.a": value.t().contiguous().t(), "b": torch.ones(())})
    changed = [value.reshape(3, 2), value.flip(0), value.to(torch.float16 if dtype != torch.half else torch.float32)]
    for other in changed:
        assert content_tag({"a": other, "b": torch.ones(())}) != tag
    assert content_tag({"c": value, "b": torch.ones(())}) != tag
    assert content_tag({"a": value, "b": torch.zeros(())}) != tag


def test_special_values_have_tags():
    for value in (torch.tensor([torch.nan]), torch.zeros(0, 3), torch.tensor(1 + 2j), torch.full((2,), torch.inf)):
        assert content_tag({"a": value}) == content_tag({"a": value.clone()})
    assert content_tag({"a": torch.tensor([0.0])}) != content_tag({"a": torch.tensor([-0.0])})


def test_renamed_weights_take_no_space(tmp_path):
    module = nn.Linear(300, 300)
    plain = signed(module, module.state_dict(), tmp_path / "plain.ckpt")
    renamed = signed(module, {f"x.{k}": v for k, v in module.state_dict().items()}, tmp_path / "renamed.ckpt")
    halved = signed(module, {k: v.half() for k, v in module.state_dict().items()}, tmp_path / "halved.ckpt")
    for path in (plain, renamed, halved):
        found = read_file(path)
        assert found.run == "run"
        assert found.tag == content_tag(found.weights) == content_tag(dict(module.named_parameters()))
    assert renamed.stat().st_size < 1.1 * plain.stat().st_size
    assert halved.stat().st_size > 1.4 * plain.stat().st_size


def test_what_is_lost_is_said(tmp_path):
    module = nn.Linear(2, 2)
    path = signed(module, module.state_dict(), tmp_path / "a.ckpt")
    content = torch.load(path, weights_only=True)
    del content["state_dict"]["bias"]
    with pytest.raises(ArmError, match=r"weights bias in .*a\.ckpt, but the file lacks them"):
        read_file(saved(path, content))


class Bomb:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_in_a_file_is_run(tmp_path):
    module = nn.Linear(2, 2)
    extra = {"bomb": Bomb(tmp_path / "exploded"), "path": Path("x"), "module": nn.Linear(3, 3)}
    path = signed(module, module.state_dict(), tmp_path / "a.ckpt", hyper_parameters=extra)
    assert torch.equal(read_weights(path)["weight"], module.weight)
    assert not (tmp_path / "exploded").exists()
    # The same as a plain pickle, and inside the weights themselves.
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(extra["bomb"]))
    saved(tmp_path / "inside.ckpt", {"state_dict": {"weight": Bomb(tmp_path / "exploded")}})
    for name in ("plain.ckpt", "inside.ckpt"):
        with pytest.raises(ArmError):
            read_weights(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


def test_a_forged_signature_is_none(tmp_path):
    for forged in (3, {"tag": 1, "run": "r", "names": [], "weights": {}}, {"names": ["a"], "weights": {"a": 3}}):
        path = saved(tmp_path / "a.ckpt", {"state_dict": {"a": torch.ones(1)}, "tm_bandit": forged})
        assert read_file(path).tag == ""
