"""The selection benchmark: regret, identification, stopping, the blind spot, and what the engine costs.

Every number comes from :class:`tm_bandit.ModelSelector` itself. Above 256 dimensions the plug-in estimate, which the
baselines need at every pull, is held until the arm's sample count has grown by the refresh factor; the tables say so.
Tasks come in rounds, one trial of every scenario after the other, so a run that is cut short is even.
"""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterable, Sequence, Set
from dataclasses import asdict, dataclass, replace
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import torch

from benchmarks.replay import Replay, ReplayUp, Stream, replayed
from benchmarks.scenarios import SCENARIOS, scenario
from tm_bandit.execution.draw import stable_seed
from tm_bandit.policies import ArmStats, Uniform
from tm_bandit.policies.policy import lowest
from tm_bandit.simulation import (
    Contestant,
    Scenario,
    average_regret,
    mean_and_error,
    optimal_pick_ratio,
    run_trial,
    settles_after,
)
from tm_bandit.simulation.trials import Trial

BATCH = 5
#: Pulls from one point of a curve to the next.
MARK = 20
#: Pulls of the stopping experiments are larger: they run to many thousands of samples.
STOP_BATCH = 25


class PlainUniform(Uniform):
    """Everybody's habit: the same number of samples from each arm, and the lowest plain estimate wins."""

    needs = frozenset({"estimate"})

    def recommend(self, arms: Sequence[ArmStats]) -> str:
        """Name the arm with the lowest plug-in estimate."""
        return lowest(arms, lambda arm: arm.estimate).name


#: Contestants start with two batches per arm, as ``burn_in="auto"`` does with this batch size. To uniform evaluation it
#: makes no difference.
START = 2 * BATCH
DEFAULT = Contestant("default")
UNIFORM = Contestant("uniform, plain", "authors", PlainUniform, BATCH)
IDENTIFY = Contestant("identify", options={"goal": "identify"})
AUTHORS = Contestant("authors' UCB", "authors", "ucb", START)
#: The contestants of the regret table; the rivals that the default must not lose to are those named in ``RIVALS``.
CONTESTANTS = (
    DEFAULT,
    IDENTIFY,
    Contestant("Thompson", policy="thompson"),
    Contestant("LUCB", policy="lucb"),
    Contestant("halving", policy="halving"),
    AUTHORS,
    Contestant("Naive-UCB", "naive", "ucb", START),
    Contestant("greedy", "authors", "greedy", START),
    Contestant("epsilon-greedy", "authors", "epsilon-greedy", START),
    UNIFORM,
    Contestant("greedy from one batch", "authors", "greedy", BATCH),
)
RIVALS = ("Naive-UCB", "greedy", "epsilon-greedy", "uniform, plain")
QUICK = (
    "default",
    "identify",
    "authors' UCB",
    "Naive-UCB",
    "greedy",
    "epsilon-greedy",
    "uniform, plain",
    "greedy from one batch",
)

BLIND = ("blind", "blind2")
#: A scenario that shows what a rule of the default policy costs where it is wrong: of this one, only the regret.
EXTRA = ("mirror",)
LARGE = ("imagenet", "cifar10", "ffhq", "real")
SLOW_TO_STOP = ("imagenet", "ffhq", "real")


@dataclass(frozen=True)
class Plan:
    """How much of everything is run.

    Args:
        trials: rounds, of which each has one trial of every scenario and one block of its stopping runs.
        pulls: pulls of a trial.
        large_trials: rounds in which the large scenarios take part.
        large_pulls: their pulls.
        refresh: growth of the sample count after which held numbers are computed again.
        large_refresh: the same in the large scenarios.
        runs: stopping runs of a block.
        paths: independent paths per arm that the runs of a block pair anew.
        large_paths: the same in the large scenarios.
        stop_budget: samples of a stopping run.
        slow_stop_budget: the same in the large scenarios that no such run ends with a certified answer.
        blind_pulls: pulls on the blind-spot arms.
        contestants: names of the policies.
        more_trials: trials of the small scenarios in which only the recommendation is followed.
        more_pulls: their pulls.
        first_seed: seed of the first trial; those below 5,000 and from 6,000 on served to choose the constants.
    """

    trials: int
    pulls: int
    large_trials: int
    large_pulls: int
    refresh: float
    large_refresh: float
    runs: int
    paths: int
    large_paths: int
    stop_budget: int
    slow_stop_budget: int
    blind_pulls: int
    contestants: tuple[str, ...]
    more_trials: int
    more_pulls: int
    first_seed: int = 5000


FULL = Plan(20, 1000, 20, 1000, 0.05, 0.1, 10, 4, 2, 15_000, 6000, 2500, tuple(c.name for c in CONTESTANTS), 100, 600)
SHORT = Plan(2, 400, 1, 300, 0.1, 0.2, 5, 2, 2, 3000, 1500, 500, QUICK, 0, 400)


# ---- one task per process --------------------------------------------------------------------------------------------


def regret_task(name: str, trial: int, plan: Plan) -> dict[str, Any] | None:
    """Run all contestants on one trial of one scenario; they share the arms' samples and numbers."""
    seed = plan.first_seed + trial
    arms = shuffled(scenario(name), seed)
    if arms is None:
        return None
    large = name in LARGE
    pulls, refresh = (plan.large_pulls, plan.large_refresh) if large else (plan.pulls, plan.refresh)
    shared = replayed(arms, stable_seed("trial", seed), batch_size=BATCH, refresh=refresh, always=not large)
    rows = {}
    for contestant in CONTESTANTS:
        if contestant.name in plan.contestants and (contestant.name in QUICK or not large):
            how = replace(contestant, options={**contestant.options, "refresh": refresh})
            rows[contestant.name] = _digest(run_trial(shared, how, pulls=pulls, batch_size=BATCH, seed=seed))
    return {"scenario": name, "title": arms.name, "pulls": pulls, "contestants": rows}


def identify_task(name: str, trial: int, plan: Plan) -> dict[str, Any] | None:
    """Run a further trial of those whose recommendations are compared: few trials tell nine of ten coarsely."""
    names = (DEFAULT.name, IDENTIFY.name, UNIFORM.name)
    return regret_task(name, plan.trials + trial, replace(plan, pulls=plan.more_pulls, contestants=names))


def shuffled(arms: Scenario | None, seed: int) -> Scenario | None:
    """Return a scenario with its arms in another order: nobody shall be right because the best arm comes first."""
    if arms is None or arms.joins:
        return arms
    order = torch.randperm(len(arms.arms), generator=torch.Generator().manual_seed(seed)).tolist()
    return replace(arms, arms=[arms.arms[i] for i in order])


def _digest(trial: Trial) -> dict[str, Any]:
    marks = range(MARK, len(trial.choices) + 1, MARK)
    best = trial.result.history["best"]
    return {
        "regret": [float(f"{average_regret(trial, p):.5g}") for p in marks],
        "ratio": round(optimal_pick_ratio(trial), 4),
        # The recommendation, each time that it changes, with the pull from which on it is given.
        "best": [[p, name] for p, name in enumerate(best, 1) if p == 1 or name != best[p - 2]],
    }


def stop_task(name: str, block: int, plan: Plan) -> list[dict[str, Any]] | None:
    """Run both stop rules several times; each run pairs the arms' independent paths anew."""
    seed = plan.first_seed + block
    arms = shuffled(scenario(name), seed)
    if arms is None:
        return None
    # New arms join after as many samples as in the other tasks.
    arms = replace(arms, joins={arm: pull * BATCH // STOP_BATCH for arm, pull in arms.joins.items()})
    how = {"batch_size": STOP_BATCH, "refresh": 0.1, "always": False}
    count = plan.large_paths if name in LARGE else plan.paths
    paths = [
        [Stream(arms, arm, i, "witness", stable_seed("path", seed, p), **how) for p in range(count)]
        for i, arm in enumerate(arms.arms)
    ]
    return [_stop_runs(name, arms, paths, stop, seed, plan) for stop in ("certified", "likely")]


def _stop_runs(name: str, arms, paths, stop: str, seed: int, plan: Plan) -> dict[str, Any]:
    shuffle = torch.Generator().manual_seed(seed)
    wrong, samples, uniform = 0, [], []
    contestant = Contestant(stop, options={"stop": stop, "refresh": 0.1})
    budget = plan.slow_stop_budget if name in SLOW_TO_STOP else plan.stop_budget
    for run in range(plan.runs):
        picks = torch.randint(len(paths[0]), (len(paths),), generator=shuffle).tolist()
        streams = [column[pick] for column, pick in zip(paths, picks, strict=True)]
        pulls = budget // STOP_BATCH
        trial = run_trial(_paired(arms, streams), contestant, pulls=pulls, batch_size=STOP_BATCH, seed=run)
        wrong += any(arms.gap(winner, pull) > 0.0 for pull, winner in trial.winners)
        if trial.result.stopped_by == "stop":
            samples.append(trial.result.total_samples)
            uniform.append(trial.result.uniform_cost)
    return {
        "scenario": name,
        "title": arms.name,
        "stop": stop,
        "budget": budget,
        "runs": plan.runs,
        "paths": len(paths[0]),
        "wrong": wrong,
        "samples": samples,
        "uniform": uniform,
    }


def _paired(arms, streams):
    kind = ReplayUp if arms.higher_is_better else Replay
    return replace(replayed(arms, 0), metric=lambda bound: kind(streams, arms.metric("witness")))


def blind_task(name: str, trial: int, plan: Plan) -> dict[str, Any] | None:
    """Run the default policy for long on arms that are bad only through rotation."""
    seed = plan.first_seed + trial
    arms = shuffled(scenario(name), seed)
    assert arms is not None
    shared = replayed(arms, stable_seed("trial", seed), batch_size=BATCH, refresh=0.1)
    contestant = Contestant("default", options={"refresh": 0.1})
    trial_run = run_trial(shared, contestant, pulls=plan.blind_pulls, batch_size=BATCH, seed=seed)
    tail = trial_run.optimal[-len(trial_run.optimal) // 5 :]
    return {
        "scenario": name,
        "title": arms.name,
        "share": optimal_pick_ratio(trial_run),
        "late": statistics.fmean(map(float, tail)),
        "right": arms.gap(str(trial_run.result.best)) == 0.0,
    }


def _call(task: tuple[Any, ...]) -> tuple[str, str, int, Any, float]:
    torch.set_num_threads(1)
    function, name, trial, plan = task
    start = time.process_time()
    return function.__name__, name, trial, function(name, trial, plan), time.process_time() - start


# ---- all of it -------------------------------------------------------------------------------------------------------


def tasks(plan: Plan, only: Iterable[str] | None = None) -> list[tuple[Any, ...]]:
    """Return everything that is to be run, round by round."""
    names = [name for name in SCENARIOS if only is None or name in set(only)]
    todo: list[tuple[Any, ...]] = []
    for trial in range(plan.trials):
        for name in names:
            if name in LARGE and trial >= plan.large_trials:
                continue
            todo.append((blind_task if name in BLIND else regret_task, name, trial, plan))
            if name not in EXTRA:
                todo.append((stop_task, name, trial, plan))
    small = [name for name in names if name not in (*LARGE, *BLIND, *EXTRA, "newcomers")]
    return todo + [(identify_task, name, trial, plan) for trial in range(plan.more_trials) for name in small]


def known(plan: Plan, journal: Path) -> list[dict[str, Any]]:
    """Return what a journal holds of a plan."""
    lines = [json.loads(line) for line in journal.read_text("utf-8").splitlines()] if journal.is_file() else []
    return [line for line in lines if line["plan"] == repr(plan)]


def run(plan: Plan, journal: Path, only: Iterable[str] | None = None, processes: int = 2) -> list[dict[str, Any]]:
    """Run the tasks in a few processes; a journal lets an interrupted run go on where it was.

    Args:
        plan: how much is run.
        journal: file with what was done so far; the caller removes it at the end.
        only: names of scenarios, to run a part.
        processes: number of processes, one thread each.
    """
    lines = known(plan, journal)
    done = {(line["kind"], line["name"], line["trial"]) for line in lines}
    todo = [task for task in tasks(plan, only) if (task[0].__name__, task[1], task[2]) not in done]
    with _pool(processes) as pool, journal.open("a") as file:
        for kind, name, trial, result, seconds in pool.imap_unordered(_call, todo):
            line = {"plan": repr(plan), "kind": kind, "name": name, "trial": trial, "result": result}
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"  {kind:12s} {name:12s} {trial:3d} {seconds:7.1f} s", flush=True)
    return lines


def _pool(processes: int) -> Pool:
    """Return processes with one thread each: on a machine with other work, threads wait for each other for ever."""
    os.environ["OMP_NUM_THREADS"] = "1"
    return multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=60)


def collect(lines: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Sort the journal's lines into the results by kind, in the order of the scenarios."""
    results: dict[str, list[Any]] = {"regret_task": [], "identify_task": [], "stop_task": [], "blind_task": []}
    order = {name: i for i, name in enumerate(SCENARIOS)}
    for line in sorted(lines, key=lambda line: (order[line["name"]], line["trial"])):
        found = line["result"]
        results[line["kind"]] += found if isinstance(found, list) else [found] if found is not None else []
    return results


def main(full: bool, out: Path, only: Iterable[str] | None = None, render_only: bool = False, **changes: int) -> None:
    """Run the benchmark, print its tables and write them.

    Args:
        full: twenty trials in the paper's setting, which takes hours, rather than a few minutes' worth.
        out: folder for the tables, plots and raw numbers.
        only: names of scenarios, to run a part.
        render_only: run nothing and show what an interrupted run has left.
        changes: fields of the plan that are to be different.
    """
    from benchmarks.engine_cost import measure
    from benchmarks.selection_report import draw, render

    plan = replace(FULL if full else SHORT, **changes)
    out.mkdir(parents=True, exist_ok=True)
    journal = out / "selection.partial.jsonl"
    lines = known(plan, journal) if render_only else run(plan, journal, only)
    results: dict[str, Any] = collect([line for line in lines if line["kind"] != "cost"])
    costs = [line["result"] for line in lines if line["kind"] == "cost"]
    if only is None and not costs:
        with _pool(1) as pool:
            costs = [pool.apply(measure, (full,))]
            pool.close()
            pool.join()
        with journal.open("a") as file:
            file.write(
                json.dumps({"plan": repr(plan), "kind": "cost", "name": "", "trial": 0, "result": costs[0]}) + "\n"
            )
    results["cost"] = costs[-1] if costs else {}
    results["plan"] = asdict(plan)
    text = render(results)
    print(text)
    (out / "selection.md").write_text(text, encoding="utf-8")
    (out / "selection.json").write_text(json.dumps(results, allow_nan=False, separators=(",", ":")), encoding="utf-8")
    draw(results, out / "selection_regret.png")
    if not render_only:
        journal.unlink(missing_ok=True)


def identification(entries: Sequence[dict[str, Any]], contestant: str, right: Set[str], since: int = 0) -> int | None:
    """Return after how many samples a contestant's recommendation is right in nine of ten trials, and stays so.

    Args:
        entries: the trials.
        contestant: its name.
        right: the arms that may be recommended.
        since: pull after which samples are counted.
    """
    flags = [_right_pulls(entry, contestant, right) for entry in entries if contestant in entry["contestants"]]
    pulls = settles_after(flags, since=since)
    return None if pulls is None else pulls * BATCH


def _right_pulls(entry: dict[str, Any], contestant: str, right: Set[str]) -> list[bool]:
    """Return whether the recommendation was right after each pull."""
    changes = [*entry["contestants"][contestant]["best"], [entry["pulls"] + 1, None]]
    flags: list[bool] = []
    for (start, name), (end, _) in itertools.pairwise(changes):
        flags += [name in right] * (end - start)
    return flags


def final(entries: Sequence[dict[str, Any]], contestant: str, key: str) -> tuple[float, float]:
    """Return mean and error over the trials of a contestant's last value."""
    values = [entry["contestants"][contestant][key] for entry in entries if contestant in entry["contestants"]]
    return mean_and_error([v[-1] if isinstance(v, list) else v for v in values]) if values else (math.nan, math.nan)
