"""The result: table, files and sentences."""

import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.report.results import make_result
from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector, SelectionResult
from tm_bandit.errors import InputError
from tm_bandit.report.result import COLUMNS, FORMAT_VERSION, HISTORY_COLUMNS, LATER_COLUMNS, SHOWN


@pytest.fixture(scope="module")
def result():
    samplers = {"good": gaussian(1.0), "bad|one": gaussian(2.0), "broken": lambda n: torch.zeros(n)}
    return ModelSelector(MeanMetric(), samplers, budget=400, samples="features").run(progress=False)


def test_table_has_the_promised_columns_and_the_best_first(result):
    table = result.table()
    assert tuple(table[0]) == COLUMNS
    assert [row["arm"] for row in table] == ["good", "bad|one", "broken"]
    assert table[0]["verdict"] == "best (certified)"
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
    assert again.table()[1] == result.table()[1]
    assert math.isnan(again.table()[0]["behind"])  # the best arm is not behind anyone
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


def test_a_pipe_is_refused_before_it_is_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match="not a regular file"):
        SelectionResult.from_json(tmp_path / "pipe.json")


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
    # It did not compare arms.
    saved = json.loads(result.to_json())
    assert [row.pop(name) for row in saved["arms"] for name in LATER_COLUMNS] == [None] * 16
    # Saving it again raises its version, and changes nothing else.
    assert (saved.pop("version"), FORMAT_VERSION) == (2, 2)
    assert saved == {key: value for key, value in json.loads(path.read_text()).items() if key != "version"}
    assert "near/ema" in result.to_html()
    result.plot()


def test_a_result_that_0_2_wrote_loads_and_is_saved_as_it_was():
    path = Path(__file__).parent.parent / "data" / "v02" / "result.json"
    saved = json.loads(path.read_text())
    assert saved["version"] == 2
    result = SelectionResult.from_json(path)
    assert json.loads(result.to_json()) == {**saved, "version": FORMAT_VERSION}
    assert result.best == "near"
    assert all(row["behind"] > 0 for row in result.table()[1:])
    assert [len(uris) for uris in result.pictures.values()] == [12, 12]
    assert "far|raw" in result.to_html()


def test_numpy_numbers_are_saved_as_plain_ones():
    row = dict.fromkeys(("estimate", "debiased", "lower", "upper", "share"), np.float32(0.5))
    row |= {"arm": "a", "pulls": np.int32(1), "n": np.int64(5), "verdict": "best"}
    result = SelectionResult(
        "a", "won", "FID", False, [row], budget=np.int64(100), settings={"delta": np.float64(0.05)}
    )
    data = json.loads(result.to_json())
    assert (data["budget"], data["arms"][0]["n"], data["settings"]["delta"]) == (100, 5, 0.05)
    assert SelectionResult.from_json(result.to_json()) == result


def test_samples_that_are_used_up_are_no_spent_budget():
    result = make_result(tied=[], stopped_by="exhausted")
    result.status = "budget_exhausted"
    assert result.word == "samples used up"
    assert result.outcome() == "the arms have no samples left, but not all rivals are ruled out"
    assert "samples used up" in result.to_html()
    result.stopped_by = "budget"
    assert (result.word, result.outcome()[:19]) == ("budget spent", "the budget is spent")


def test_words_for_every_status():
    words = {"won": "certified", "budget_exhausted": "budget spent", "tie": "tie", "target_met": "target met"}
    rows = [{"verdict": "best"}, {"verdict": "worse (certified)"}]
    for status, word in words.items():
        assert SelectionResult("a", status, "FID", False, rows).word == word
    assert SelectionResult("a", "won", "FID", False, rows[:1]).word == "only arm"


def test_a_certificate_says_its_confidence_and_a_tie_who_is_undecided():
    scores = dict.fromkeys(("estimate", "debiased", "lower", "upper", "behind"), 1.0)
    verdicts = {"a": "best", "b": "tie", "c": "undecided", "d": "undecided (few samples)", "e": "worse (likely)"}
    rows = [{"arm": name, "n": 10, "verdict": verdict, **scores} for name, verdict in verdicts.items()]
    tie = SelectionResult("a", "tie", "FID", False, rows, tied=["b"])
    assert tie.undecided == ["c", "d"]
    assert "(a, b); 2 more are undecided. 50 samples" in tie.summary()
    won = SelectionResult("a", "won", "FID", False, rows, settings={"delta": 0.01})
    assert "every rival is worse, with 99% confidence. " in won.summary()
    assert "every rival is worse. " in SelectionResult("a", "won", "FID", False, rows).summary()


def test_markdown_and_text_say_it_all(result):
    markdown = result.to_markdown()
    assert "| **good** |" in markdown
    assert "bad\\|one" in markdown
    assert "retired" in markdown
    assert all(line.count("|") - line.count("\\|") == len(SHOWN) + 1 for line in markdown.splitlines()[2:])
    assert result.summary() in str(result)
    assert result.uniform_cost == result.total_samples
    assert "closest rival" not in result.summary(), "drawing all arms equally would have cost the same"


def test_notes_about_pairing_and_twins():
    rows = [{"arm": "a", "correlation": math.nan}, *({"arm": name, "correlation": 0.08} for name in "bc")]
    common = {"settings": {"pairing": "common"}}
    result = SelectionResult("a", "tie", "FID", False, rows, **common)
    assert len(result.notes) == 1
    assert "share hardly any noise" in result.notes[0]
    assert SelectionResult("a", "tie", "FID", False, rows, settings={"pairing": "independent"}).notes == []
    rows[1]["correlation"] = 0.2
    assert SelectionResult("a", "tie", "FID", False, rows, **common).notes == []
    assert SelectionResult("a", "tie", "FID", False, rows[:1], **common).notes == []
    rows[1] |= {"correlation": math.nan, "behind": 0.1, "behind_lower": -0.2}
    assert SelectionResult("a", "tie", "FID", False, rows[:2], **common).notes == [
        "1 arm is compared with the best as if noise were not shared: scores draw by draw are all equal, or not known "
        "(an OptimisticFID keeps `max_rows` samples)."
    ]
    assert SelectionResult("a", "tie", "FID", False, rows[:2], settings={"pairing": "independent"}).notes == []
    rows[1]["behind_lower"] = -math.inf  # too little is known of the arm to say anything
    assert SelectionResult("a", "tie", "FID", False, rows[:2], **common).notes == []
    rows[2]["twin"] = "a"
    assert SelectionResult("a", "tie", "FID", False, rows).notes == ["c is the same model as a (identical samples)."]


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
    for stop, words in (("certified", "certified best, up to epsilon = 0.3"), ("likely", "best, up to epsilon = 0.3")):
        selector = ModelSelector(
            MeanMetric(), samplers, budget=900, samples="features", stop=stop, epsilon=0.3, pairing="independent"
        )
        result = selector.run(progress=False)
        assert words in result.summary()
        assert result.table()[1]["verdict"] == f"worse ({stop}, up to epsilon)"
    assert "epsilon" not in ModelSelector(MeanMetric(), samplers, samples="features").run(progress=False).summary()


def test_the_metric_is_called_as_people_call_it():
    assert "(FID 5" in make_result().summary()
    assert "Optimistic" not in str(make_result())


@pytest.mark.parametrize(
    "change", [{"status": "tie"}, {"status": "budget_exhausted"}, {"stopped_by": "budget"}, {"uniform_cost": 0}]
)
def test_what_uniform_evaluation_takes_is_said_only_where_it_is_true(change):
    result = make_result()
    assert "drawing every arm as often as the closest rival would have taken 1234" in result.summary()
    for name, value in change.items():
        setattr(result, name, value)
    assert "closest rival" not in result.summary() + result.to_html()


def test_a_sentence_says_that_pairing_does_not_help():
    for correlation, pairing, said in ((0.03, "common", True), (0.9, "common", False), (0.03, "own", False)):
        result = make_result(compared=True, settings={"pairing": pairing})
        for row in result.arms[1:]:
            row["correlation"] = correlation
        assert ("share hardly any noise" in result.summary()) == said


def test_the_table_is_sorted_by_the_paired_differences():
    result = make_result(compared=True)
    result.arms[3]["behind"] = -0.1
    assert [row["arm"] for row in result.table()] == ["ema/cfg1.5", "arm 3", "raw <b>&", "arm 2"]


def test_differences_survive_json():
    result = make_result(compared=True)
    again = SelectionResult.from_json(result.to_json())
    assert again.table()[1] == result.table()[1]
    assert math.isnan(again.table()[0]["behind"])
    assert str(again) == str(result)


def test_a_notebook_shows_the_table_and_repr_is_short():
    result = make_result(num_arms=50, pulls=1000, compared=True)
    assert repr(result) == "SelectionResult(best='ema/cfg1.5', status='likely', FID 5, 50 arms, 10000 samples)"
    html = result._repr_html_()
    assert html.count("<tr>") == 51
    assert "raw &lt;b&gt;&amp;" in html
    assert "raw <b>" not in html


def test_the_table_as_a_data_frame():
    pytest.importorskip("pandas")
    result = make_result(compared=True)
    frame = result.to_pandas()
    assert list(frame.index) == [row["arm"] for row in result.table()]
    assert frame.loc["arm 2", "behind"] == result.arms[2]["behind"]
    assert frame.columns.tolist() == list(COLUMNS[1:])


def test_pandas_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        make_result().to_pandas()


def test_costs_are_shown_where_they_are_known():
    plain = make_result()
    assert (plain.cost, plain.total_cost, plain.unit) == ({}, 0, "samples")
    result = make_result(budget=90.0, settings={"unit": "seconds"})
    for row in result.arms:
        row["cost"] = 0.1 * row["n"]
    again = SelectionResult.from_json(result.to_json())
    assert again == result
    assert again.cost == {name: 0.1 * n for name, n in result.num_samples.items()}
    assert list(again.table()[0])[2:4] == ["n", "cost"]
    assert all(line.count("|") == len(SHOWN) + 2 for line in again.to_markdown().splitlines()[2:])
    assert "600 samples drawn at a cost of 60 s" in str(again)
    assert "of a budget of 90 s" in again.to_html()
    assert "what they cost, in seconds" in again.to_html()
    assert "what they cost" not in plain.to_html()
    assert again._repr_html_().count("<th>") == len(SHOWN) + 1
