"""From the books of a run to its result."""

import math

import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics
from tm_bandit.selection.outcome import _status, _why
from tm_bandit.selection.verdict import Verdict


@pytest.mark.parametrize(
    ("level", "stopped_by", "status"),
    [
        ("won", "target", "won"),
        ("likely", "budget", "likely"),
        ("tie", "target", "target_met"),
        ("tie", "budget", "tie"),
        ("open", "budget", "budget_exhausted"),
        ("open", "exhausted", "budget_exhausted"),
        ("open", "interrupt", "unfinished"),
        ("open", "", "unfinished"),
    ],
)
def test_status(level, stopped_by, status):
    assert _status(Verdict("a", level), stopped_by) == status


def test_the_result_says_what_the_books_say():
    samplers = {"good": gaussian(0.0, 0.1), "bad": gaussian(9.0, 0.1), "broken": lambda n: torch.zeros(n)}
    selector = ModelSelector(MeanMetric(), samplers, budget=200, samples="features", stop="certified", seed=4)
    result = selector.run(progress=False)
    rows = {row["arm"]: row for row in result.arms}
    assert list(rows) == ["good", "bad", "broken"]
    assert result.total_samples == selector.spent
    assert sum(row["share"] for row in result.arms) == pytest.approx(1.0)
    assert (rows["good"]["verdict"], rows["bad"]["verdict"]) == ("best (certified)", "worse (certified)")
    assert rows["broken"]["verdict"] == f"retired: {result.retired['broken']}"
    assert (result.best, result.status, result.stopped_by) == ("good", "won", "stop")
    assert (result.metric, result.higher_is_better, result.seed, result.budget) == ("MeanMetric", False, 4, 200)
    assert result.settings == selector.settings()
    assert len(result.history["arm"]) == sum(result.pulls.values())


@pytest.mark.parametrize(
    ("verdict", "status", "why"),
    [
        (Verdict("a", "won", {"b": "a"}, {"b": "a"}), "won", "certified"),
        (Verdict("a", "likely", {"b": "a"}), "likely", "likely"),
        (Verdict("a", "won"), "won", "only arm"),
        (Verdict("a", "tie", tied=("b", "c")), "tie", "tie with b, c"),
        (Verdict("a", "open", tied=tuple("bcdef")), "tie", "tie with b, c, d and 2 more"),
        (Verdict("a", "open", tied=("b",)), "target_met", "target met"),
        (Verdict("a", "open"), "budget_exhausted", "so far"),
    ],
)
def test_the_best_row_says_why_it_is_the_best(verdict, status, why):
    assert _why(verdict, status) == why


def test_few_samples_are_not_a_tie():
    selector = ModelSelector(MeanMetric(), samples="features", stop="budget", batch_size=10)
    generator = torch.Generator().manual_seed(0)
    for name, draws in (("known", 12), ("new", 1)):
        selector.add_arm(name, None)
        for _ in range(draws):
            selector.observe(name, torch.randn(10, 1, generator=generator))
    rows = {row["arm"]: row["verdict"] for row in selector.result().arms}
    assert rows == {"known": "best (so far)", "new": "undecided (few samples)"}


@pytest.mark.parametrize("pairing", ["common", "independent"])
def test_what_is_not_known_of_shared_noise_is_not_called_zero(pairing):
    """Of 300 samples per arm, 100 are kept: too late for a comparison draw by draw."""

    def sampler(shift):
        return lambda n, generator: shift + torch.randn(n, 4, generator=generator)

    metric = OptimisticFID("none", reference=ReferenceStatistics(torch.zeros(4), torch.eye(4), 10_000), max_rows=100)
    arms, options = {"a": sampler(0.3), "b": sampler(0.31)}, {"samples": "features", "stop": "budget"}
    selector = ModelSelector(metric, arms, "uniform", budget=600, pairing=pairing, **options)
    row = selector.run(progress=False).arms[1]
    assert math.isfinite(row["behind_lower"])
    assert math.isnan(row["correlation"]) == (pairing == "common")
    notes = selector.result().notes
    assert len(notes) == (pairing == "common")
    assert all("as if noise were not shared" in note for note in notes)
