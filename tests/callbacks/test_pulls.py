"""Spending a budget over the arms of a training."""

from types import SimpleNamespace

import torch

from tests.callbacks.models import DIM, Gen, fid, idle
from tm_bandit import ModelSelector
from tm_bandit.callbacks._also import Companions
from tm_bandit.callbacks._arms import TrainedArm
from tm_bandit.callbacks._pulls import PullLoop
from tm_bandit.callbacks._sampling import RowSampler
from tm_bandit.callbacks._weights import BorrowedModule, persistent_tensors
from tm_bandit.execution.ranks import Ranks


class Parts:
    """A loop over two arms that differ in a bias, and what it is run with."""

    def __init__(self, tmp_path, sampler=None):
        self.module = Gen()
        live = {name: value.clone() for name, value in persistent_tensors(self.module).items()}
        self.weights = {f"step{step}": {**live, "net.bias": torch.full((DIM,), step / 8)} for step in (8, 16)}
        self.arms = {name: TrainedArm(int(name[4:])) for name in self.weights}
        self.read: list[str] = []
        self.advanced: list[int] = []
        self.rows = RowSampler(sampler, fid("witness"), {"": {}}, chunk_size=5)
        self.trainer = idle(tmp_path, self.module)
        self.selector = ModelSelector(
            fid("witness"), batch_size=10, budget=0, burn_in=20, policy="uniform", stop="budget"
        )
        for name in self.arms:
            self.selector.add_arm(name)

    def get(self, name):
        self.read.append(name)
        return self.weights[name]

    def run(self, pulls=8):
        store = SimpleNamespace(read=self.get, trainer=self.trainer, ranks=Ranks())
        loop = PullLoop(self.rows, store, self.arms, 10, Companions(None, print))
        with torch.no_grad(), BorrowedModule(self.module) as borrowed:
            return loop.run(borrowed, self.selector, pulls, self.advanced.append)


def test_the_budget_is_spent_and_weights_are_read_once(tmp_path):
    parts = Parts(tmp_path)
    before = parts.module.net.bias.clone()
    outcome = parts.run()
    assert (outcome.samples, sum(parts.advanced), parts.selector.spent) == (80, 80, 80)
    assert sorted(parts.read) == ["step16", "step8"]
    assert outcome.reasons == {}
    assert torch.equal(parts.module.net.bias, before)
    rows = {name: torch.cat(parts.selector._arms[name].metric.rows) for name in parts.arms}
    apart = rows["step16"].mean(0) - rows["step8"].mean(0)
    assert torch.allclose(apart, torch.ones(DIM), atol=1e-5), "the same noise, each with its own weights"


def test_an_arm_that_fails_is_left_alone_and_the_others_go_on(tmp_path, caplog):
    def sampler(module, num_samples, *, generator):
        if module.net.bias[0] == 2.0:
            raise RuntimeError("no luck")
        return torch.randn(num_samples, DIM, generator=generator)

    parts = Parts(tmp_path, sampler)
    outcome = parts.run()
    assert "The arm 'step16' could not be sampled: the sampler raised RuntimeError: no luck" in caplog.text
    assert outcome.failed == {"step16": "the sampler raised RuntimeError: no luck"}, "as in every other loop"
    assert outcome.samples == parts.selector.spent == 80
    assert parts.selector.draws("step16") == 0, "the pull was given back"
    assert parts.selector.arms == ["step8", "step16"], "an error may pass"


def test_samples_that_are_no_numbers_are_told_apart_from_failures(tmp_path):
    def sampler(module, num_samples, *, generator):
        rows = torch.randn(num_samples, DIM, generator=generator)
        return rows * float("nan") if module.net.bias[0] == 2.0 else rows

    outcome = Parts(tmp_path, sampler).run(pulls=4)
    assert outcome.failed == {}
    assert outcome.unusable.keys() == {"step16"}
    assert outcome.samples == 40


def test_no_pull_without_arms_and_none_beyond_the_budget(tmp_path):
    parts = Parts(tmp_path)
    assert parts.run(pulls=0).samples == 0
    for name in parts.arms:
        parts.selector.retire_arm(name, "gone")
    assert parts.run().samples == 0
