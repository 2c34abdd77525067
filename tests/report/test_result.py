"""The result: table, files and sentences."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector, SelectionResult
from tm_bandit.errors import InputError
from tm_bandit.report.result import COLUMNS, FORMAT_VERSION, HISTORY_COLUMNS


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


def test_files_of_other_versions_are_refused(result):
    data = json.loads(result.to_json())
    for version in (FORMAT_VERSION + 1, 0):
        with pytest.raises(InputError, match="update tm_bandit"):
            SelectionResult.from_json(json.dumps({**data, "version": version, "a_field_of_tomorrow": 1}))


def test_a_result_that_0_1_wrote_loads_and_can_be_shown():
    path = Path(__file__).parent.parent / "data" / "v01" / "result_report.json"
    result = SelectionResult.from_json(path)
    assert (result.best, result.status, result.metric) == ("near/ema", "budget_exhausted", "OptimisticFID")
    assert result.num_samples == {"near/ema": 240, "far|raw": 20, "mid": 40, "broken": 0}
    assert [row["arm"] for row in result.table()] == ["near/ema", "mid", "far|raw", "broken"]
    assert result.history["samples"] == list(range(10, 301, 10))
    assert math.isnan(result.arms[3]["estimate"])
    assert result.to_json(indent=None) == json.dumps(json.loads(path.read_text()))
    assert "near/ema" in result.to_html()
    result.plot()


def test_numpy_numbers_are_saved_as_plain_ones():
    row = dict.fromkeys(("estimate", "debiased", "lower", "upper", "share"), np.float32(0.5))
    row |= {"arm": "a", "pulls": np.int32(1), "n": np.int64(5), "verdict": "best"}
    result = SelectionResult(
        "a", "won", "FID", False, [row], budget=np.int64(100), settings={"delta": np.float64(0.05)}
    )
    data = json.loads(result.to_json())
    assert (data["budget"], data["arms"][0]["n"], data["settings"]["delta"]) == (100, 5, 0.05)
    assert SelectionResult.from_json(result.to_json()) == result


def test_words_for_every_status():
    words = {"won": "certified", "budget_exhausted": "budget spent", "tie": "tie", "target_met": "target met"}
    rows = [{"verdict": "best"}, {"verdict": "worse (certified)"}]
    for status, word in words.items():
        assert SelectionResult("a", status, "FID", False, rows).word == word
    assert SelectionResult("a", "won", "FID", False, rows[:1]).word == "only arm"


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
