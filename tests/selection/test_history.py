"""One entry per pull, in the metric's unit."""

import math

import pytest
import torch

from tests.selection.toy import MeanMetric
from tm_bandit import OptimisticIS
from tm_bandit.policies.base import ArmStats
from tm_bandit.report.result import HISTORY_COLUMNS
from tm_bandit.selection.history import History, scores
from tm_bandit.selection.verdict import Verdict


def stats(name="a", **losses):
    numbers = {"estimate": 3.0, "optimistic": 1.0, "pessimistic": 4.0, "debiased": 2.0} | losses
    return ArmStats(name=name, pulls=1, num_samples=5, **numbers)


def test_losses_become_scores_with_the_lower_end_first():
    assert scores(MeanMetric(), stats()) == {"estimate": 3.0, "debiased": 2.0, "lower": 1.0, "upper": 4.0}
    metric = OptimisticIS(feature=torch.nn.Identity())
    got = scores(metric, stats(estimate=-1.0, optimistic=-2.0, pessimistic=-0.5, debiased=-1.5))
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
