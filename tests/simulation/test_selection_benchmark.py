"""The selection benchmark replays what the selector does, and an interrupted run can be shown and continued."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from benchmarks import selection
from benchmarks.engine_cost import engine_cost
from benchmarks.replay import replayed
from benchmarks.scenarios import fid_metric, is_metric
from benchmarks.selection import SHORT, PlainUniform, collect, identification, known, tasks
from benchmarks.selection_report import render
from tm_bandit.execution.draw import stable_seed
from tm_bandit.simulation import Contestant, Scenario, class_bank, gaussian_arm, probability_arm, run_trial

NOT_IDENTIFIED = {*selection.LARGE, *selection.BLIND, *selection.EXTRA, "newcomers"}
PLAN = replace(SHORT, trials=1, large_trials=0, pulls=30, runs=2, paths=1, stop_budget=600, blind_pulls=40)


def gaussians(joins=None):
    zero, eye = torch.zeros(6, dtype=torch.float64), torch.eye(6, dtype=torch.float64)
    arms = [gaussian_arm(f"shift {s}", zero + s, (1.0 + s) * eye, zero, eye) for s in (0.2, 0.4, 0.6)]
    return Scenario("gaussians", arms, fid_metric(zero, eye), joins or {})


def probabilities():
    generator = torch.Generator().manual_seed(0)
    arms = [probability_arm(f"{k}", class_bank(range(k), 8, 4.0, 200, generator)) for k in (8, 6, 5)]
    return Scenario("probabilities", arms, is_metric, higher_is_better=True)


@pytest.mark.parametrize("scenario", [gaussians(), gaussians({"shift 0.6": 15}), probabilities()])
@pytest.mark.parametrize(
    "contestant",
    [
        Contestant("default"),
        Contestant("authors", "authors", "ucb", 5),
        Contestant("naive", "naive", "ucb", 5),
        Contestant("greedy", "authors", "greedy", 5),
        Contestant("uniform", "authors", PlainUniform, 5),
        Contestant("certified", options={"stop": "certified"}),
    ],
    ids=lambda contestant: contestant.name,
)
def test_a_replayed_run_is_the_run_itself(scenario, contestant):
    real = run_trial(scenario, contestant, pulls=60, seed=3)
    shared = replayed(scenario, stable_seed("trial", 3), always=True)
    # Somebody else has been there before, and went further with some of the arms.
    run_trial(shared, Contestant("other", "naive", "uniform", 5), pulls=90, seed=3)
    replay = run_trial(shared, contestant, pulls=60, seed=3)
    assert replay.choices == real.choices
    if contestant.bound == "witness" or contestant.name == "uniform":
        assert replay.result.best == real.result.best


def test_tasks_come_in_rounds_so_that_a_run_cut_short_is_even():
    plan = replace(PLAN, trials=3, large_trials=2)
    rounds = [task[2] for task in tasks(plan)]
    assert rounds == sorted(rounds)
    names = {(task[0].__name__, task[1]) for task in tasks(plan)}
    assert {("regret_task", "graded"), ("stop_task", "blind"), ("blind_task", "blind2"), ("stop_task", "real")} <= names
    assert ("stop_task", "newcomers") in names
    assert {kind for kind, name in names if name == "mirror"} == {"regret_task"}
    assert max(task[2] for task in tasks(plan) if task[1] == "imagenet") == 1


def test_a_stop_run_with_newcomers_counts_every_winner(monkeypatch):
    plan = replace(PLAN, stop_budget=5000)
    seen = []
    run = selection.run_trial
    monkeypatch.setattr(selection, "run_trial", lambda arms, *a, **kw: seen.append(arms.joins) or run(arms, *a, **kw))

    def blocks():
        return {block["stop"]: block for block in selection.stop_task("newcomers", 0, plan)}

    found = blocks()
    # 200 pulls of five are 40 of twenty-five.
    assert seen[0] == {"FD 16": 40, "FD 14": 80, "FD 12": 120, "FD 10": 160}
    assert [found[stop]["wrong"] for stop in ("certified", "likely")] == [0, 0]
    # Six arms with a burn-in of two batches each; the last one joins after 4,000 samples at the latest.
    assert len(found["likely"]["samples"]) == plan.runs
    assert all(6 * 50 < samples <= 5000 for samples in found["likely"]["samples"])
    # The first winner is the best of two arms, and by far not the best of all.
    arms = selection.scenario("newcomers")
    monkeypatch.setattr(type(arms), "gap", lambda self, arm, pull=None: float(arm != "FD 10"))
    assert blocks()["likely"]["wrong"] == plan.runs


def test_what_an_interrupted_run_left_is_shown_and_not_run_again(tmp_path, monkeypatch):
    journal = tmp_path / "selection.partial.jsonl"
    done = [("regret_task", "demo"), ("stop_task", "demo"), ("blind_task", "blind")]
    with journal.open("w") as file:
        for kind, name in done:
            result = getattr(selection, kind)(name, 0, PLAN)
            line = {"plan": repr(PLAN), "kind": kind, "name": name, "trial": 0, "result": result}
            file.write(json.dumps(line) + "\n")
        file.write(json.dumps({**line, "plan": "another"}) + "\n")
    lines = known(PLAN, journal)
    assert [(line["kind"], line["name"]) for line in lines] == done
    monkeypatch.setattr(selection, "SHORT", PLAN)
    selection.main(full=False, out=tmp_path, only=("demo",), render_only=True)
    text = (tmp_path / "selection.md").read_text("utf-8")
    assert journal.is_file()
    assert text == render(json.loads((tmp_path / "selection.json").read_text("utf-8")))
    assert "| authors' demo | 1 |" in text
    assert "| authors' demo | certified | 600 | 2 | 1 |" in text
    assert "blind spot" in text
    assert "imagenet" not in text


def test_the_seeds_of_the_trials_are_not_those_of_the_tuning():
    plan = replace(PLAN, contestants=("default", "greedy"))
    first = selection.regret_task("demo", 0, plan)
    assert first == selection.regret_task("demo", 0, plan)
    # Two short trials may come out alike by chance.
    others = [selection.regret_task("demo", 0, replace(plan, first_seed=seed)) for seed in range(6)]
    assert sum(first["contestants"] != other["contestants"] for other in others) >= 3
    assert selection.stop_task("demo", 0, PLAN) == selection.stop_task("demo", 5, replace(PLAN, first_seed=4995))


def test_further_trials_of_the_recommendation_have_seeds_of_their_own():
    plan = replace(PLAN, trials=2, more_trials=3, more_pulls=20)
    todo = [task for task in tasks(plan) if task[0] is selection.identify_task]
    assert {task[1] for task in todo} == {name for name in selection.SCENARIOS if name not in NOT_IDENTIFIED}
    assert [task[2] for task in todo if task[1] == "demo"] == [0, 1, 2]
    entry = selection.identify_task("demo", 1, plan)
    assert entry["pulls"] == 20
    same = selection.regret_task("demo", 3, replace(plan, pulls=20, contestants=tuple(entry["contestants"])))
    assert entry == same
    regret = [selection.regret_task("demo", trial, plan) for trial in range(2)]
    results = {**collect([]), "regret_task": regret, "identify_task": [entry], "plan": asdict(plan)}
    row = next(
        line for line in render(results).split("Samples until")[1].splitlines() if line.startswith("| authors' demo")
    )
    assert row.split(" | ")[1] == "3"


def test_nothing_is_said_of_a_best_arm_that_has_not_joined():
    entry = selection.regret_task("newcomers", 0, PLAN)
    text = render({**collect([]), "regret_task": [entry], "plan": asdict(PLAN)})
    assert "| new arm every 200 |" in text.split("Samples until")[0]
    assert "new arm" not in text.split("Samples until")[1]
    assert "Median" not in text
    assert "If arms join" not in text


def test_samples_of_arms_that_join_are_counted_from_the_last():
    plan = replace(PLAN, pulls=830, contestants=("default", "identify", "uniform, plain"))
    steady = {"best": [[1, "FD 20"], [801, "FD 12"], [804, "FD 10"]], "regret": [0.0], "ratio": 0.5}
    late = {**steady, "best": [[1, "FD 20"], [813, "FD 10"]]}
    rows = {"default": steady, "identify": steady, "authors' UCB": late, "uniform, plain": late}
    rows |= dict.fromkeys(selection.RIVALS, late)
    entry = {"scenario": "newcomers", "title": "new arm every 200", "pulls": 830, "contestants": rows}
    text = render({**collect([]), "regret_task": [entry], "plan": asdict(plan)}).split("Samples until")[1]
    assert "| new arm every 200 | 1 | 20 | 20 | 65 | 3.2 |" in text
    assert "If arms join" in text
    assert "Median over the scenarios: 3.25 times fewer.\n" in text


def test_identification_counts_from_where_nine_of_ten_are_right_and_stay_so():
    def entry(*changes):
        return {"pulls": 10, "contestants": {"x": {"best": list(changes)}}}

    steady = [entry([1, None], [2, "a"]) for _ in range(9)]
    late = entry([1, "a"], [3, "b"], [7, "a"])
    assert identification([*steady, late], "x", {"a"}) == 2 * 5
    assert identification([*steady[:8], late, late], "x", {"a"}) == 7 * 5
    assert identification([entry([1, "b"])], "x", {"a"}) is None
    assert identification([entry([1, "b"], [7, "a"])], "x", {"a"}, since=4) == 3 * 5
    assert collect([])["regret_task"] == []


def test_the_engine_runs_on_numbers_alone():
    assert engine_cost(num_arms=3, pulls=20) > 0.0
