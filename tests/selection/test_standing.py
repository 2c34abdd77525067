"""What can be asked of a run at any time."""

import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector
from tm_bandit.errors import InputError


def make(samplers=None, **kwargs):
    kwargs = {"budget": 200, "batch_size": 5, "samples": "features", "stop": "budget", **kwargs}
    return ModelSelector(MeanMetric(), samplers or {"near": gaussian(0.0), "far": gaussian(2.0)}, **kwargs)


def test_arms_that_were_taken_out_are_listed_with_the_reason():
    selector = make()
    selector.retire_arm("far", "too far")
    assert (selector.arms, selector.retired) == (["near"], {"far": "too far"})


def test_what_is_spent_is_counted_in_samples_or_in_cost():
    plain, priced = make(budget=40), make(budget=40, cost={"near": 2.0, "far": 2.0})
    for selector in (plain, priced):
        selector.run(progress=False)
    assert (plain.unit, plain.spent, plain.used) == ("samples", 40, 40)
    assert (priced.unit, priced.spent, priced.used) == ("cost", 20, 40.0)


def test_a_comparison_is_of_scores_and_turns_with_its_arms():
    selector = make()
    selector.run(progress=False)
    assert selector.best == "near"
    one, other = selector.compare("far", "near"), selector.compare("near", "far")
    assert one.difference == pytest.approx(2.0, abs=1e-5), "the same noise, so that nothing but the shift remains"
    assert other.difference == pytest.approx(-one.difference)
    with pytest.raises(InputError, match="nobody"):
        selector.compare("near", "nobody")


def test_draws_and_stats_are_those_of_the_arm():
    selector = make()
    for _ in range(3):
        selector.step()
    assert (selector.draws("near"), selector.draws("far")) == (2, 1)
    assert (selector.stats("near").num_samples, selector.stats("far").num_samples) == (10, 5)


def test_seeds_are_common_to_all_arms_unless_they_shall_not_be():
    common, apart = make(), make(pairing="independent")
    assert common.seed_for("near", 3) == common.seed_for("far", 3) != common.seed_for("far", 4)
    assert apart.seed_for("near", 3) != apart.seed_for("far", 3)
    assert common.seed_for("near", 3, chunk=1) != common.seed_for("near", 3)


def test_two_names_of_one_model_are_twins():
    selector = make({"a": gaussian(0.0), "b": gaussian(1.0), "c": gaussian(0.0)}, budget=60)
    selector.run(progress=False)
    assert selector.twins() == {"c": "a"}


def test_settings_are_plain_values_and_a_look_changes_nothing():
    selector = make()
    selector.run(progress=False)
    before = selector.result()
    settings = selector.settings()
    assert (settings["batch_size"], settings["pairing"], settings["stop"]) == (5, "common", "budget")
    selector.compare("near", "far")
    selector.twins()
    torch.manual_seed(1)
    assert selector.result() == before
