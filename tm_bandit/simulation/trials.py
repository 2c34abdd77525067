"""Many runs of many policies on arms whose truth is known, and what they cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tm_bandit.errors import InputError
from tm_bandit.execution.draw import stable_seed
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.policy import Policy
from tm_bandit.selection import ModelSelector, SelectionResult
from tm_bandit.simulation.arms import SimulatedArm


@dataclass(frozen=True)
class Scenario:
    """Arms with known truth and the metric that scores them.

    Args:
        name: name of the scenario.
        arms: the arms.
        metric: makes the metric for a given ``bound``.
        joins: ``{arm: pull}`` for arms that join later.
        higher_is_better: direction of the score.
    """

    name: str
    arms: Sequence[SimulatedArm]
    metric: Callable[[str], OptimisticMetric]
    joins: Mapping[str, int] = field(default_factory=dict)
    higher_is_better: bool = False

    def gap(self, arm: str, pull: int | None = None) -> float:
        """Return how much worse an arm is than the best one that has joined by a pull (by the end, without one)."""
        present = [a for a in self.arms if pull is None or self.joins.get(a.name, 0) <= pull]
        scores = {a.name: a.score for a in present}
        if arm not in scores:
            raise InputError(f"Expected one of the arms {list(scores)}, but got {arm!r}; wait until it joins.")
        return max(scores.values()) - scores[arm] if self.higher_is_better else scores[arm] - min(scores.values())

    def acceptable(self, tolerance: float = 0.02) -> frozenset[str]:
        """Return the arms whose score is within a fraction ``tolerance`` of the best one."""
        best = (max if self.higher_is_better else min)(arm.score for arm in self.arms)
        return frozenset(arm.name for arm in self.arms if self.gap(arm.name) <= tolerance * abs(best))

    @property
    def last_join(self) -> int:
        """The pull after which all arms have joined: before that, nobody can name the best one."""
        return max(self.joins.values(), default=0)


@dataclass(frozen=True)
class Contestant:
    """A way to allocate samples: a policy with a bound.

    Args:
        name: its name in tables.
        bound: bound of the metric.
        policy: name of a policy, or a function that makes a policy object.
        burn_in: see :class:`~tm_bandit.ModelSelector`.
        options: further arguments of :class:`~tm_bandit.ModelSelector`; unless they say otherwise, arms have their own
            noise, and without a stop rule the goal is low regret.
    """

    name: str
    bound: str = "witness"
    policy: str | Callable[[], Policy] = "ucb"
    burn_in: int | Literal["auto"] = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """One run.

    Args:
        choices: the arm of each pull.
        regrets: how much worse it was than the best arm at that time.
        optimal: whether it was that best arm.
        result: the selector's result.
        winners: each time that a stop rule ended the sampling, the arm that had won, and the pull; pulls without a
            draw, spent waiting for the next arm, count.
    """

    choices: list[str]
    regrets: list[float]
    optimal: list[bool]
    result: SelectionResult
    winners: list[tuple[int, str]] = field(default_factory=list)


def run_trial(scenario: Scenario, contestant: Contestant, *, pulls: int, batch_size: int = 5, seed: int = 0) -> Trial:
    """Run one contestant once.

    When a stop rule is met before all arms have joined, nothing is drawn until the next one joins.

    Args:
        scenario: the arms.
        contestant: the policy and the bound.
        pulls: pulls to make; fewer if a stop rule ends the run.
        batch_size: samples per pull.
        seed: seed of the run.
    """
    options = {"pairing": "independent", "stop": "budget", **contestant.options}
    options.setdefault("goal", "regret" if options["stop"] == "budget" else "identify")
    policy = contestant.policy if isinstance(contestant.policy, str) else contestant.policy()
    selector = ModelSelector(
        scenario.metric(contestant.bound),
        {arm.name: arm.sample for arm in scenario.arms if scenario.joins.get(arm.name, 0) == 0},
        policy,
        batch_size=batch_size,
        budget=pulls * batch_size,
        burn_in=contestant.burn_in,
        seed=stable_seed("trial", seed),
        samples="features",
        **options,
    )
    late = sorted((pull, arm) for arm, pull in scenario.joins.items() if pull > 0)
    samplers = {arm.name: arm.sample for arm in scenario.arms}
    choices: list[tuple[int, str]] = []
    winners: list[tuple[int, str]] = []
    pull = 0
    while True:
        while late and late[0][0] <= pull:
            selector.add_arm(late[0][1], samplers[late.pop(0)[1]])
        name = selector.step()
        if name is not None:
            choices.append((pull, name))
            pull += 1
            continue
        result = selector.result()
        if result.stopped_by == "stop":
            winners.append((pull, str(result.best)))
        if result.stopped_by != "stop" or not late:
            break
        pull = late[0][0]
    regrets = [scenario.gap(name, pull) for pull, name in choices]
    optimal = [gap == 0.0 for gap in regrets]
    return Trial([name for _, name in choices], regrets, optimal, result, winners)


def average_regret(trial: Trial, pulls: int | None = None) -> float:
    r"""Return :math:`\frac1t \sum_{i \le t} |\nu^* - \nu_{g_i}|`, the paper's average regret after ``pulls`` pulls.

    Example:
        >>> from types import SimpleNamespace
        >>> average_regret(SimpleNamespace(regrets=[3.0, 0.0, 0.0]), 2)
        1.5
    """
    return statistics.fmean(trial.regrets[:pulls])


def optimal_pick_ratio(trial: Trial, pulls: int | None = None) -> float:
    r"""Return :math:`\frac1t \sum_{i \le t} 1(g_i = g^*)`, the paper's optimal pick ratio after ``pulls`` pulls."""
    return statistics.fmean(float(hit) for hit in trial.optimal[:pulls])


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean over trials and its standard error (zero for one trial).

    Example:
        >>> mean_and_error([1.0, 3.0])
        (2.0, 1.0)
    """
    if len(values) < 2:
        return statistics.fmean(values), 0.0
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def settles_after(right: Sequence[Sequence[bool]], *, since: int = 0, probability: float = 0.9) -> int | None:
    """Return after how many pulls a recommendation is right often enough and stays so, or ``None``.

    Args:
        right: for each trial, whether the recommendation was right after each pull.
        since: pulls to skip; the answer is counted from there.
        probability: share of the trials that must be right.

    Example:
        >>> settles_after([[True, False, True, True], [True, True, True, True]])
        3
    """
    answer = None
    for pull in reversed(range(since, min(map(len, right), default=0))):
        if statistics.fmean(float(flags[pull]) for flags in right) < probability:
            break
        answer = pull + 1 - since
    return answer


def compare(
    scenario: Scenario, contestants: Sequence[Contestant], *, pulls: int, trials: int = 20, batch_size: int = 5
) -> list[dict[str, Any]]:
    """Run several contestants many times side by side, each trial with the same samples for all of them.

    Args:
        scenario: the arms.
        contestants: policies and bounds.
        pulls: pulls of each run.
        trials: runs of each contestant.
        batch_size: samples per pull.

    Returns:
        One row per contestant: mean and standard error of the average regret, the optimal pick ratio, and the share of
        runs whose recommendation was the best arm.
    """
    rows = []
    for contestant in contestants:
        runs = [
            run_trial(scenario, contestant, pulls=pulls, batch_size=batch_size, seed=seed) for seed in range(trials)
        ]
        regret, error = mean_and_error([average_regret(run) for run in runs])
        rows.append(
            {
                "contestant": contestant.name,
                "regret": regret,
                "regret_error": error,
                "pick_ratio": statistics.fmean(optimal_pick_ratio(run) for run in runs),
                "right": statistics.fmean(float(scenario.gap(str(run.result.best)) == 0.0) for run in runs),
            }
        )
    return rows
