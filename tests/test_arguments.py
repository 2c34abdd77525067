"""Checks of arguments: what passes becomes a plain Python value, what does not is named."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector, SelectionResult
from tm_bandit._arguments import check_choice, check_count, check_flag, check_level, check_number
from tm_bandit.errors import InputError


@pytest.mark.parametrize("value", [3, np.int8(3), np.int64(3), np.uint16(3)])
def test_integers(value):
    found = check_count("budget", value, 3)
    assert found == 3
    assert type(found) is int


@pytest.mark.parametrize("value", [2, 3.0, np.float64(3), True, np.bool_(True), "3", None, np.array([3])])
def test_no_integers(value):
    with pytest.raises(InputError, match="Expected `budget` to be an integer of at least 3, but got"):
        check_count("budget", value, 3)


@pytest.mark.parametrize("value", [2, 2.0, np.float16(2), np.float32(2), np.int64(2), Fraction(2)])
def test_numbers(value):
    found = check_number("kappa", value, above=0)
    assert found == 2.0
    assert type(found) is float


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32("nan"), True, np.bool_(True), "2", None, 1j])
def test_no_numbers(value):
    with pytest.raises(InputError, match="Expected `target` to be a finite number, but got"):
        check_number("target", value)


def test_limits_of_numbers():
    assert check_number("x", 0, least=0) == 0.0
    with pytest.raises(InputError, match="a finite number of at least 0, but got -1"):
        check_number("x", -1, least=0)
    with pytest.raises(InputError, match="a finite number above 0, but got 0"):
        check_number("x", 0, above=0)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), Fraction(1, 2)])
def test_levels(value):
    found = check_level("delta", value)
    assert found == 0.5
    assert type(found) is float


@pytest.mark.parametrize("value", [0, 1, -0.1, math.nan, "0.05", True, None])
def test_no_levels(value):
    with pytest.raises(InputError, match="Expected `delta` to lie strictly between 0 and 1, but got"):
        check_level("delta", value)


def test_names():
    assert check_choice("width", np.str_("lil"), ("mixture", "lil")) == "lil"
    for value in ("normal", None, 1, ["lil"]):
        with pytest.raises(InputError, match="Expected `width` to be one of mixture, lil, but got"):
            check_choice("width", value, ("mixture", "lil"))


def test_flags():
    assert check_flag("normalize", np.bool_(True)) is True
    for value in ("no", 1, None):
        with pytest.raises(InputError, match="Expected `normalize` to be a bool, but got"):
            check_flag("normalize", value)


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
        stop="budget",
        goal="regret",
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
