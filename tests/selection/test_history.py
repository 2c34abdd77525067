"""One entry per pull, in the metric's unit."""

import math
import tracemalloc

import pytest
import torch

from tests.selection.toy import MeanMetric
from tm_bandit import ModelSelector, OptimisticIS
from tm_bandit.errors import BrokenStateError
from tm_bandit.policies.policy import ArmStats
from tm_bandit.report.result import HISTORY_COLUMNS
from tm_bandit.selection.history import History, scores
from tm_bandit.selection.verdict import Verdict


def stats(name="a", **losses):
    numbers = {"estimate": 3.0, "optimistic": 1.0, "pessimistic": 4.0, "debiased": 2.0} | losses
    return ArmStats(name=name, pulls=1, num_samples=5, **numbers)


def test_losses_become_scores_with_the_lower_end_first():
    got = scores(MeanMetric(), stats())
    assert got == {"estimate": 3.0, "debiased": 2.0, "lower": 1.0, "upper": 4.0}
    metric = OptimisticIS(feature=torch.nn.Identity())
    losses = stats(estimate=-1.0, optimistic=-2.0, pessimistic=-0.5, debiased=-1.5)
    got = scores(metric, losses)
    expected = {"estimate": math.e, "debiased": math.exp(1.5), "lower": math.exp(0.5), "upper": math.exp(2.0)}
    assert got == pytest.approx(expected)


def test_samples_add_up_and_copies_are_copies():
    history = History()
    history.append(MeanMetric(), stats("a"), Verdict("a", "open"), 5)
    history.append(MeanMetric(), stats("b"), Verdict("b", "won"), 7)
    columns = history.columns()
    assert tuple(columns) == HISTORY_COLUMNS
    assert (columns["samples"], columns["arm"], columns["best"]) == ([5, 12], ["a", "b"], ["a", "b"])
    assert columns["status"] == ["open", "won"]
    columns["arm"].append("c")
    assert len(history) == 2
    again = History()
    again.load(history.columns())
    assert again.columns() == history.columns()
    again.append(MeanMetric(), stats("a"), Verdict("a", "open"), 3)
    assert again.columns()["samples"] == [5, 12, 15]
    assert len(history) == 2


def test_a_pull_takes_a_few_dozen_bytes_and_is_translated_when_its_numbers_are_new():
    class Counting(MeanMetric):
        translated = 0

        def score_from_loss(self, loss):
            self.translated += 1
            return loss

    metric, history, numbers = Counting(), History(), stats("a", debiased=math.nan)
    tracemalloc.start()
    try:
        for _ in range(100):
            history.append(metric, numbers, Verdict("a", "open"), 5)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(2_000):
            history.append(metric, numbers, Verdict("a", "open"), 5)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown / 2_000 < 80
    assert metric.translated == 4
    history.append(metric, stats("a", debiased=7.0), Verdict(None, "open"), 5)
    columns = history.columns()
    assert metric.translated == 8
    assert columns["debiased"][-1] == 7.0
    assert math.isnan(columns["debiased"][-2])
    assert columns["best"][-2:] == ["a", None]
    assert {type(columns[name][0]) for name in ("samples", "n")} == {int}


@pytest.mark.parametrize(("column", "broken"), [("n", 2**70), ("upper", "high"), ("arm", ["a"])])
def test_a_broken_history_is_refused_and_changes_nothing(column, broken):
    selector = ModelSelector(MeanMetric(), {"a": None}, samples="features", batch_size=2)
    selector.observe("a", torch.ones(2, 1))
    state = selector.state_dict()
    state["history"][column] = [broken]
    with pytest.raises(BrokenStateError):
        selector.load_state_dict(state)
    assert selector.result().history["samples"] == [2]
