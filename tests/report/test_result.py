"""The result: table, files, sentences and picture."""

import json
import math
import subprocess
import sys

import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector, SelectionResult
from tm_bandit._exceptions import InputError
from tm_bandit.report.result import COLUMNS, HISTORY_COLUMNS


@pytest.fixture(scope="module")
def result():
    samplers = {"good": gaussian(1.0), "bad|one": gaussian(2.0), "broken": lambda n: torch.zeros(n)}
    return ModelSelector(MeanMetric(), samplers, budget=400, samples="features").run(progress=False)


def test_table_has_the_promised_columns_and_the_best_first(result):
    table = result.table()
    assert tuple(table[0]) == COLUMNS
    assert [row["arm"] for row in table] == ["good", "bad|one", "broken"]
    assert table[0]["verdict"] == "best"
    assert table[0]["lower"] <= table[0]["debiased"] <= table[0]["upper"]


def test_higher_is_better_sorts_the_other_way():
    rows = [
        {
            "arm": a,
            "pulls": 1,
            "n": 5,
            "estimate": v,
            "debiased": v,
            "lower": v,
            "upper": v,
            "share": 0.3,
            "verdict": "",
        }
        for a, v in (("x", 3.0), ("low", 1.0), ("high", 2.0))
    ]
    assert [r["arm"] for r in SelectionResult("x", "tie", "IS", True, rows).table()] == ["x", "high", "low"]


def test_json_round_trip_is_exact_and_strict(result, tmp_path):
    path = tmp_path / "result.json"
    text = result.to_json(path)
    assert path.read_text() == text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    again = SelectionResult.from_json(path)
    assert again.to_json() == SelectionResult.from_json(text).to_json() == text
    assert again.table()[0] == result.table()[0]
    assert math.isnan(again.table()[2]["estimate"])
    assert list(again.history) == list(HISTORY_COLUMNS)


def test_infinite_bounds_survive(tmp_path):
    row = {"arm": "a", "pulls": 1, "n": 5, "estimate": 1.0, "debiased": math.nan, "lower": -math.inf,
           "upper": math.inf, "share": 1.0, "verdict": "best"}  # fmt: skip
    again = SelectionResult.from_json(SelectionResult("a", "budget_exhausted", "FID", False, [row]).to_json())
    assert (again.arms[0]["lower"], again.arms[0]["upper"]) == (-math.inf, math.inf)
    assert again.best_score == 1.0


@pytest.mark.parametrize(
    "text", ["", " ", "[1]", "{", "{}", '{"version": 1}', '{"version": 1, "arms": 3, "history": {}}']
)
def test_other_files_are_refused(text, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match="to_json"):
        SelectionResult.from_json(path)


def test_newer_files_are_refused(result):
    data = json.loads(result.to_json())
    with pytest.raises(InputError, match="version"):
        SelectionResult.from_json(json.dumps({**data, "version": 2}))


def test_markdown_and_text_say_it_all(result):
    markdown = result.to_markdown()
    assert "| **good** |" in markdown
    assert "bad\\|one" in markdown
    assert "retired" in markdown
    assert all(line.count("|") - line.count("\\|") == len(COLUMNS) + 1 for line in markdown.splitlines()[2:])
    assert result.summary() in str(result)
    assert str(result.uniform_cost) in result.summary()


def test_nothing_evaluated():
    selector = ModelSelector(MeanMetric(), {"a": gaussian(0.0)}, samples="features")
    result = selector.result()
    assert (result.best, result.status, result.uniform_cost) == (None, "unfinished", 0)
    assert math.isnan(result.best_score)
    assert "No arm" in result.summary()


def test_plot_draws_every_arm_and_writes_a_file(result, tmp_path):
    figure = result.plot(tmp_path / "plot.png")
    top, bottom = figure.axes
    assert {text.get_text().strip() for text in top.texts} == {"good", "bad|one"}
    assert bottom.get_ylim() == (0, 100)
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"
    # Every pull is in the allocation: the stacked shares reach 100 % in each bin.
    tops = [patch.get_data().values for patch in bottom.patches]
    assert max(abs(value - 100) for value in tops[-1]) < 1e-6


def test_plots_of_odd_results_do_not_fail(tmp_path):
    selector = ModelSelector(MeanMetric(), {"a": gaussian(0.0)}, samples="features")
    selector.result().plot(tmp_path / "empty.png")
    many = ModelSelector(
        MeanMetric(bound="none"), {f"a{i}": gaussian(i) for i in range(12)}, budget=300, samples="features"
    )
    many.run(progress=False).plot(tmp_path / "many.png")


def test_names_with_dollars_are_shown_as_they_are(tmp_path):
    samplers = {"$x^$": gaussian(0.0), "cfg $1.5$": gaussian(1.0)}
    result = ModelSelector(MeanMetric(), samplers, budget=100, samples="features").run(progress=False)
    figure = result.plot(tmp_path / "plot.png")
    assert {text.get_text().strip() for text in figure.axes[0].texts} == {r"\$x^\$", r"cfg \$1.5\$"}


def test_both_ends_of_every_interval_are_drawn(result):
    axes = result.plot().axes[0]
    assert len(axes.collections) == 1  # the band of the best arm
    drawn = sorted(float(line.get_ydata()[-1]) for line in axes.lines if line.get_alpha())
    rival = next(row for row in result.arms if row["arm"] == "bad|one")
    assert drawn == pytest.approx([rival["lower"], rival["upper"]], rel=0.1)


def test_results_with_unknown_scores_can_be_compared(result):
    assert any(math.isnan(row["estimate"]) for row in result.arms)
    again = SelectionResult.from_json(result.to_json())
    assert again == result
    assert again != result.to_json()
    again.arms[0]["n"] += 1
    assert again != result


def test_the_sentence_names_epsilon():
    samplers = {"a": gaussian(0.0, 0.3), "b": gaussian(0.05, 0.3)}
    for stop, words in (("certified", "pessimistic one, up to epsilon = 0.3"), ("likely", "best, up to epsilon = 0.3")):
        selector = ModelSelector(MeanMetric(), samplers, budget=900, samples="features", stop=stop, epsilon=0.3)
        result = selector.run(progress=False)
        assert words in result.summary()
        assert result.table()[1]["verdict"] == f"worse ({stop}, up to epsilon)"
    assert "epsilon" not in ModelSelector(MeanMetric(), samplers, samples="features").run(progress=False).summary()


def test_importing_the_package_loads_neither_lightning_nor_our_plots():
    code = "import sys, tm_bandit; print([m for m in ('lightning', 'tm_bandit.report.plot') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
