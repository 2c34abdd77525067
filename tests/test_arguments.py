"""Numbers that users hand in."""

import math

import numpy as np
import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector, SelectionResult
from tm_bandit._arguments import real, whole
from tm_bandit.errors import InputError


@pytest.mark.parametrize("value", [3, np.int64(3), np.int8(3), np.uint16(3)])
def test_whole_numbers_become_pythons(value):
    assert type(whole("budget", value, 3)) is int


@pytest.mark.parametrize("value", [0.5, 1, np.float32(0.5), np.float64(0.5), np.int64(1)])
def test_real_numbers_become_pythons(value):
    assert type(real("epsilon", value, 0.0)) is float
    assert real("epsilon", value) == value


@pytest.mark.parametrize("value", [True, np.True_, 2.0, "3", None, torch.tensor(3), 2])
def test_anything_else_is_no_whole_number(value):
    with pytest.raises(InputError, match="Expected budget to be an integer >= 3, but got"):
        whole("budget", value, 3)


@pytest.mark.parametrize("value", [True, "0.5", None, math.nan, math.inf, -0.1, np.float32("nan")])
def test_anything_else_is_no_real_number(value):
    with pytest.raises(InputError, match="Expected epsilon to be a finite number >= 0, but got"):
        real("epsilon", value, 0.0)


def test_a_run_with_numpys_numbers_can_be_saved(tmp_path):
    selector = ModelSelector(
        MeanMetric(),
        {"a": gaussian(0.0), "b": gaussian(1.0)},
        batch_size=np.int32(5),
        budget=np.int64(100),
        burn_in=np.int16(10),
        seed=np.uint8(3),
        epsilon=np.float32(0.25),
        target=np.float64(-9.0),
        refresh=np.float32(0.125),
        samples="features",
    )
    selector.extend_budget(np.int64(20))
    (pull,) = selector.ask(np.int64(1))
    selector.tell(pull, torch.zeros(5, 1), cost=np.float32(0.5))
    result = selector.run(progress=False, budget=np.int64(50))
    result.to_json(tmp_path / "result.json")
    assert SelectionResult.from_json(tmp_path / "result.json") == result
    assert result.total_samples == 55
    torch.save(selector.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True)["seed"] == 3
