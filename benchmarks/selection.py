"""The selection benchmark: regret, identification, stopping, the blind spot, and what the engine costs.

Every number comes from :class:`tm_bandit.ModelSelector` itself. Above 256 dimensions the plug-in estimate, which the
baselines need at every pull, is held until the arm's sample count has grown by the refresh factor; the tables say so.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.replay import Replay, Stream, replayed
from benchmarks.scenarios import SCENARIOS, scenario
from tm_bandit.policies import ArmStats, Uniform
from tm_bandit.policies.base import lowest
from tm_bandit.selection.sampling import stable_seed
from tm_bandit.simulation import Contestant, average_regret, mean_and_error, optimal_pick_ratio, run_trial
from tm_bandit.simulation.trials import Trial

BATCH = 5
#: Pulls of the stopping experiments are larger: they run to many thousands of samples.
STOP_BATCH = 25


class PlainUniform(Uniform):
    """Everybody's habit: the same number of samples from each arm, and the lowest plain estimate wins."""

    needs = frozenset({"estimate"})

    def recommend(self, arms: Sequence[ArmStats]) -> str:
        """Name the arm with the lowest plug-in estimate."""
        return lowest(arms, lambda arm: arm.estimate).name


DEFAULT = Contestant("default")
UNIFORM = Contestant("uniform, plain", "authors", PlainUniform, BATCH)
IDENTIFY = Contestant("identify", options={"goal": "identify"})
AUTHORS = Contestant("authors' UCB", "authors", "ucb", BATCH)
#: The contestants of the regret table; the rivals that the default must not lose to are those named in ``RIVALS``.
CONTESTANTS = (
    DEFAULT,
    IDENTIFY,
    Contestant("Thompson", policy="thompson"),
    Contestant("LUCB", policy="lucb"),
    Contestant("halving", policy="halving"),
    AUTHORS,
    Contestant("Naive-UCB", "naive", "ucb", BATCH),
    Contestant("greedy", "authors", "greedy", BATCH),
    Contestant("epsilon-greedy", "authors", "epsilon-greedy", BATCH),
    UNIFORM,
)
RIVALS = ("Naive-UCB", "greedy", "epsilon-greedy", "uniform, plain")
QUICK = ("default", "identify", "authors' UCB", "Naive-UCB", "greedy", "epsilon-greedy", "uniform, plain")

BLIND = ("blind", "blind2")
LARGE = ("imagenet", "cifar10", "ffhq", "real")


@dataclass(frozen=True)
class Plan:
    """How much of everything is run."""

    trials: int
    pulls: int
    large_trials: int
    large_pulls: int
    refresh: float
    large_refresh: float
    runs: int
    paths: int
    stop_budget: int
    blind_pulls: int
    contestants: tuple[str, ...]


FULL = Plan(20, 1000, 20, 1000, 0.05, 0.05, 200, 12, 15_000, 2500, tuple(c.name for c in CONTESTANTS))
SHORT = Plan(2, 400, 1, 300, 0.1, 0.2, 20, 2, 3000, 500, QUICK)


# ---- one task per process --------------------------------------------------------------------------------------------


def regret_task(name: str, trial: int, plan: Plan) -> dict[str, Any] | None:
    """Run all contestants on one trial of one scenario; those with the same bound share the arms' numbers."""
    torch.set_num_threads(1)
    arms = scenario(name)
    if arms is None:
        return None
    large = name in LARGE
    pulls = plan.large_pulls if large else plan.pulls
    refresh = plan.large_refresh if large else plan.refresh
    shared = replayed(arms, stable_seed("trial", trial), batch_size=BATCH, refresh=refresh, always=not large)
    chosen = [c for c in CONTESTANTS if c.name in plan.contestants]
    rows = {}
    for contestant in chosen:
        options = {**contestant.options, "refresh": refresh}
        how = Contestant(contestant.name, contestant.bound, contestant.policy, contestant.burn_in, options)
        rows[contestant.name] = _digest(run_trial(shared, how, pulls=pulls, batch_size=BATCH, seed=trial))
    return {"scenario": name, "title": arms.name, "pulls": pulls, "contestants": rows}


def _digest(trial: Trial) -> dict[str, Any]:
    marks = [p for p in range(10, len(trial.choices) + 1) if p % 10 == 0]
    return {
        "regret": [average_regret(trial, p) for p in marks],
        "ratio": [optimal_pick_ratio(trial, p) for p in marks],
        "best": [trial.result.history["best"][p - 1] for p in marks],
        "late_ratio": statistics.fmean(float(hit) for hit in trial.optimal[-len(trial.optimal) * 3 // 10 :]),
    }


def stop_task(name: str, trial: int, plan: Plan) -> list[dict[str, Any]] | None:
    """Run both stop rules many times; each run pairs the arms' independent paths anew."""
    torch.set_num_threads(1)
    arms = scenario(name)
    if arms is None:
        return None
    how = {"batch_size": STOP_BATCH, "refresh": 0.1, "always": False}
    paths = [
        [Stream(arms, arm, i, "witness", stable_seed("path", p), **how) for p in range(plan.paths)]
        for i, arm in enumerate(arms.arms)
    ]
    return [_stop_runs(name, arms, paths, stop, plan) for stop in ("certified", "likely")]


def _stop_runs(name: str, arms, paths, stop: str, plan: Plan) -> dict[str, Any]:
    shuffle = torch.Generator().manual_seed(0)
    stopped, wrong, samples, uniform = 0, 0, [], []
    contestant = Contestant(stop, options={"stop": stop, "refresh": 0.1})
    for run in range(plan.runs):
        picks = torch.randint(plan.paths, (len(paths),), generator=shuffle).tolist()
        streams = [column[pick] for column, pick in zip(paths, picks, strict=True)]
        pulls = plan.stop_budget // STOP_BATCH
        trial = run_trial(_paired(arms, streams), contestant, pulls=pulls, batch_size=STOP_BATCH, seed=run)
        done = trial.result.status in ("won", "likely") and trial.result.stopped_by == "stop"
        stopped += done
        wrong += done and arms.gap(str(trial.result.best)) > 0.0
        if done:
            samples.append(trial.result.total_samples)
            uniform.append(trial.result.uniform_cost)
    return {
        "scenario": name,
        "title": arms.name,
        "stop": stop,
        "runs": plan.runs,
        "paths": plan.paths,
        "stopped": stopped,
        "wrong": wrong,
        "samples": statistics.median(samples) if samples else None,
        "uniform": statistics.median(uniform) if uniform else None,
        "budget": plan.stop_budget,
    }


def _paired(arms, streams):
    shared = replayed(arms, 0)
    template = arms.metric("witness")
    kind = type(shared.metric("witness")) if arms.higher_is_better else Replay
    return type(shared)(arms.name, shared.arms, lambda bound: kind(streams, template), {}, arms.higher_is_better)


def blind_task(name: str, trial: int, plan: Plan) -> dict[str, Any] | None:
    """Run the default policy for long on arms that are bad only through rotation."""
    torch.set_num_threads(1)
    arms = scenario(name)
    assert arms is not None
    shared = replayed(arms, stable_seed("trial", trial), batch_size=BATCH, refresh=0.1)
    contestant = Contestant("default", options={"refresh": 0.1})
    trial_run = run_trial(shared, contestant, pulls=plan.blind_pulls, batch_size=BATCH, seed=trial)
    tail = trial_run.optimal[-len(trial_run.optimal) // 5 :]
    return {
        "scenario": name,
        "title": arms.name,
        "share": optimal_pick_ratio(trial_run),
        "late": statistics.fmean(map(float, tail)),
        "right": arms.gap(str(trial_run.result.best)) == 0.0,
    }


def _call(task: tuple[Any, ...]) -> tuple[str, str, int, Any, float]:
    function, name, trial, plan = task
    start = time.process_time()
    return function.__name__, name, trial, function(name, trial, plan), time.process_time() - start


# ---- all of it -------------------------------------------------------------------------------------------------------


def tasks(plan: Plan, only: Iterable[str] | None = None) -> list[tuple[Any, ...]]:
    """Return everything that is to be run, the longest first."""
    names = [name for name in SCENARIOS if only is None or name in set(only)]
    todo: list[tuple[Any, ...]] = []
    for name in names:
        if name not in BLIND:
            todo += [(regret_task, name, t, plan) for t in range(plan.large_trials if name in LARGE else plan.trials)]
        else:
            todo += [(blind_task, name, t, plan) for t in range(plan.trials)]
        if name != "newcomers":
            todo.append((stop_task, name, 0, plan))
    return sorted(todo, key=lambda task: (task[1] not in LARGE, task[0] is not stop_task))


def run(plan: Plan, journal: Path, only: Iterable[str] | None = None, processes: int = 2) -> dict[str, list[Any]]:
    """Run the tasks in a few processes; a journal lets an interrupted run go on where it was.

    Args:
        plan: how much is run.
        journal: file with what was done so far; the caller removes it at the end.
        only: names of scenarios, to run a part.
        processes: number of processes, one thread each.
    """
    lines = [json.loads(line) for line in journal.read_text("utf-8").splitlines()] if journal.is_file() else []
    lines = [line for line in lines if line["plan"] == repr(plan)]
    done = {(line["kind"], line["name"], line["trial"]) for line in lines}
    todo = [task for task in tasks(plan, only) if (task[0].__name__, task[1], task[2]) not in done]
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=8) as pool, journal.open("a") as file:
        for kind, name, trial, result, seconds in pool.imap_unordered(_call, todo):
            line = {"plan": repr(plan), "kind": kind, "name": name, "trial": trial, "result": result}
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"  {kind:12s} {name:12s} {trial:3d} {seconds:7.1f} s", flush=True)
    return collect(lines)


def collect(lines: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Sort the journal's lines into the results by kind, in the order of the scenarios."""
    results: dict[str, list[Any]] = {"regret_task": [], "stop_task": [], "blind_task": []}
    order = {name: i for i, name in enumerate(SCENARIOS)}
    for line in sorted(lines, key=lambda line: (order[line["name"]], line["trial"])):
        found = line["result"]
        results[line["kind"]] += found if isinstance(found, list) else [found] if found is not None else []
    return results


def main(full: bool, out: Path, only: Iterable[str] | None = None, **changes: int) -> None:
    """Run the benchmark, print its tables and write them.

    Args:
        full: twenty trials in the paper's setting, which takes hours, rather than a few minutes' worth.
        out: folder for the tables, plots and raw numbers.
        only: names of scenarios, to run a part.
        changes: fields of the plan that are to be different.
    """
    from benchmarks.engine_cost import measure
    from benchmarks.selection_report import draw, render

    plan = replace(FULL if full else SHORT, **changes)
    out.mkdir(parents=True, exist_ok=True)
    journal = out / "selection.partial.jsonl"
    results: dict[str, Any] = run(plan, journal, only)
    results["cost"] = measure(full) if only is None else {}
    results["plan"] = plan.__dict__
    text = render(results)
    print(text)
    (out / "selection.md").write_text(text, encoding="utf-8")
    (out / "selection.json").write_text(json.dumps(results, allow_nan=False), encoding="utf-8")
    draw(results, out / "selection_regret.png")
    journal.unlink(missing_ok=True)


def identification(entries: Sequence[dict[str, Any]], contestant: str, right: set[str]) -> int | None:
    """Return after how many samples a contestant's recommendation is right in nine of ten trials, and stays so."""
    curves = [entry["contestants"][contestant]["best"] for entry in entries if contestant in entry["contestants"]]
    answer = None
    for i in reversed(range(min(map(len, curves), default=0))):
        if statistics.fmean(float(curve[i] in right) for curve in curves) < 0.9:
            break
        answer = (i + 1) * 10 * BATCH
    return answer


def acceptable(name: str, tolerance: float = 0.02) -> set[str]:
    """Return the arms whose score is within a fraction of the best one."""
    arms = scenario(name)
    assert arms is not None
    best = (max if arms.higher_is_better else min)(arm.score for arm in arms.arms)
    return {arm.name for arm in arms.arms if arms.gap(arm.name) <= tolerance * best}


def final(entries: Sequence[dict[str, Any]], contestant: str, key: str) -> tuple[float, float]:
    """Return mean and error over the trials of a contestant's last value."""
    values = [entry["contestants"][contestant][key] for entry in entries if contestant in entry["contestants"]]
    return mean_and_error([v[-1] if isinstance(v, list) else v for v in values]) if values else (math.nan, math.nan)
