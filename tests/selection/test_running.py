"""From the first pull to the result: what a run is given, what it shows, and how it ends."""

import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector
from tm_bandit.errors import InputError
from tm_bandit.policies import Uniform
from tm_bandit.selection.running import finish, kit_of, prepare


def make(samplers=None, policy="ucb", **kwargs):
    kwargs = {"budget": 500, "batch_size": 5, "samples": "features", "goal": "regret", **kwargs}
    samplers = samplers or {"a0": gaussian(0.0), "a1": gaussian(0.5), "a2": gaussian(1.0)}
    return ModelSelector(MeanMetric(), samplers, policy, **kwargs)


class Planner(Uniform):
    """Notes what it is told."""

    def __init__(self):
        super().__init__()
        self.told = []

    def prepare(self, **kwargs):
        self.told.append(kwargs)


def test_a_policy_is_told_once_what_there_is_to_spend():
    selector = make(policy=Planner(), budget=60)
    selector.run(progress=False)
    selector.run(progress=False, budget=30)
    assert selector.policy.told == [{"num_arms": 3, "budget": 60, "batch_size": 5}]


def test_a_budget_in_another_unit_is_told_in_samples():
    selector = make(policy=Planner(), budget=60, cost={"a0": 2.0, "a1": 2.0, "a2": 2.0})
    prepare(selector)
    assert selector.policy.told[0]["budget"] == 30


def test_a_kit_carries_out_the_pulls_of_the_selector():
    selector = make()
    kit = kit_of(selector, chunk_size=3)
    assert set(kit.samplers) == {"a0", "a1", "a2"}
    assert (kit.metric, kit.samples, kit.chunk_size) == (selector.metric, "features", 3)


def test_chunks_are_of_at_least_one_sample():
    with pytest.raises(InputError, match="chunk_size"):
        make().run(progress=False, chunk_size=0)


def test_only_an_interrupted_run_says_so():
    selector = make(budget=30)
    selector.run(progress=False)
    assert finish(selector, interrupted=False).stopped_by == "budget"
    assert finish(selector, interrupted=True).stopped_by == "interrupt"


def test_run_spends_a_further_budget():
    selector = make(budget=100)
    selector.run(progress=False)
    assert selector.run(progress=False, budget=50).total_samples == 150
    selector.extend_budget(20)
    assert selector.run(progress=False).total_samples == 170


def test_progress_bar_and_plan_are_shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # a bar on a narrow terminal leaves out its numbers
    make(policy="halving").run(progress=True)
    shown = capsys.readouterr()
    assert "samples per arm" in shown.out + shown.err
    assert "/500" in shown.err
    make(policy="halving").run(progress=False)
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_returns_what_is_known():
    calls = []

    def interrupted(num_samples, generator):
        calls.append(num_samples)
        if len(calls) > 40:
            raise KeyboardInterrupt
        return torch.randn(num_samples, 1, generator=generator)

    selector = make({"a": interrupted, "b": gaussian(3.0)})
    result = selector.run(progress=False)
    assert (result.best, result.stopped_by) == ("a", "interrupt")
    assert result.total_samples == selector.spent > 100
