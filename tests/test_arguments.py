"""Checks of arguments: what passes becomes a plain Python value, what does not is named."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector, Pull, SelectionResult
from tm_bandit._arguments import check_choice, check_count, check_flag, check_level, check_name, check_number
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


def test_strings_of_numpy_become_plain():
    assert type(check_choice("width", np.str_("lil"), ("mixture", "lil"))) is str
    assert type(check_name("an arm", np.str_("ema"))) is str


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


def test_a_run_with_numpys_names_is_the_same_and_can_be_saved(tmp_path):
    def run(names, **kwargs):
        arms = {name: gaussian(shift) for shift, name in enumerate(names)}
        given = {"samples": "features", "pairing": "independent", "stop": "budget", **kwargs}
        selector = ModelSelector(MeanMetric(), arms, **given)
        return selector, selector.run(progress=False)

    numpys = np.array(["a", "b"])
    (_, plain), (selector, result) = run(["a", "b"], budget=100), run(numpys, budget=100)
    assert result == plain
    assert {type(name) for name in selector.arms} == {str}
    priced, _ = run(numpys, budget=200, cost=dict(zip(numpys, [1, 2], strict=True)))
    for each in (selector, priced):
        torch.save(each.state_dict(), tmp_path / "state.pt")
        torch.load(tmp_path / "state.pt", weights_only=True)


def test_a_copy_of_a_pull_may_have_numpys_numbers(tmp_path):
    selector = ModelSelector(MeanMetric(), {"a": gaussian(0.0), "b": gaussian(1.0)}, samples="features")
    pull = selector.ask()[0]
    copied = Pull(pull.arm, *map(np.int64, (pull.draw, pull.size, pull.seed)))
    selector.give_back(copied)
    (again,) = selector.ask()
    assert again == pull
    assert {type(value) for value in (again.draw, again.size, again.seed)} == {int}
    selector.illustrate(copied, torch.zeros(10, 3, 8, 8))
    selector.tell(copied, torch.arange(10.0)[:, None])
    torch.save(selector.state_dict(), tmp_path / "state.pt")
    torch.load(tmp_path / "state.pt", weights_only=True)
    assert selector.seed_for("a", np.int64(3), np.int8(1)) == selector.seed_for("a", 3, 1)


def test_no_workers_may_be_numpys_zero():
    arms = {"a": gaussian(0.0), "b": gaussian(1.0)}
    selector = ModelSelector(MeanMetric(), arms, samples="features", budget=100)
    assert selector.run(progress=False, workers=np.int64(0)).best == "a"
