"""What a race that knows the costs of samples spends until it names the best arm, next to one that does not.

``python -m benchmarks.cost``: arms of cost 1 and 50, in random order, whose scores have half of their variance in
common. A race *names* the best from the pull on after which it recommends it for good, and is *decided* when every
rival is ruled out. Costs are means over the runs.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from statistics import mean, quantiles
from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit import ModelSelector, OptimisticMean

RUNS, SEED, BATCH = 100, 600_000, 5
CHEAP, EXPENSIVE = 1, 50
#: Where the best is ruled out by bad luck, the rivals that are left may be alike, and never be told apart.
BUDGET = 100_000

#: Arms as (gap to the best in standard deviations of a score, cost); the first is the best.
SCENARIOS = {
    "cheap best, cheap near ties, expensive arms worse": [(0.0, CHEAP)] + 3 * [(0.1, CHEAP)] + 2 * [(0.3, EXPENSIVE)],
    "cheap best, all rivals far": [(0.0, CHEAP)] + 3 * [(0.5, CHEAP)] + 2 * [(0.8, EXPENSIVE)],
    "expensive best, cheap near ties": [(0.0, EXPENSIVE)] + 3 * [(0.2, CHEAP)] + [(0.4, EXPENSIVE)],
    "expensive best, an expensive near tie, cheap arms worse": [(0.0, EXPENSIVE), (0.2, EXPENSIVE)]
    + 3 * [(0.4, CHEAP)],
    "one cheap, one expensive": [(0.0, CHEAP), (0.2, EXPENSIVE)],
}

#: Of the first scenario: the best is to be named with at most this share of the mean cost of the race that is blind.
TARGET = 0.5

#: Of the kept table.
NOTE = (
    "The criterion is the ratio of the means; its standard error is 0.05 with 100 runs. In the second scenario it is "
    "at less than half, too. In the others the best arm, or the only rival, is expensive, and what has to be drawn of "
    "it is what the race costs."
)


class Spent(NamedTuple):
    """What a run spent until it named the best arm for good, and in all; and whether it was right."""

    named: float
    decided: float
    right: bool


class Arm:
    """Scores with half of their variance in common with those of the other arms.

    Args:
        index: which arm.
        loss: its true score.
    """

    def __init__(self, index: int, loss: float) -> None:
        self.index, self.loss = index, loss

    def __call__(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Draw scores."""
        common = torch.randn(num_samples, generator=generator)
        own = torch.Generator().manual_seed((1_000_003 * generator.initial_seed() + self.index) % 2**62)
        return (self.loss + math.sqrt(0.5) * (common + torch.randn(num_samples, generator=own)))[:, None]


def race(arms: list[tuple[float, int]], seed: int, aware: bool) -> Spent:
    """Run one race to its end.

    Args:
        arms: gaps and costs, the best first.
        seed: seed of the run, and of the order of the arms.
        aware: whether it knows the costs.
    """
    order = random.Random(seed).sample(range(len(arms)), len(arms))
    samplers = {f"arm{index}": Arm(index, arms[index][0]) for index in order}
    costs = {f"arm{index}": float(arms[index][1]) for index in order}
    metric = OptimisticMean(lambda scores: scores[:, 0], higher_is_better=False)
    budget = float(BUDGET) if aware else 10**9
    options = {"cost": costs} if aware else {}
    selector = ModelSelector(metric, samplers, batch_size=BATCH, budget=budget, seed=seed, stop="likely", **options)
    spent, named = 0.0, math.inf
    while spent < BUDGET and (name := selector.step()) is not None:
        spent += BATCH * costs[name]
        named = min(named, spent) if selector.best == "arm0" else math.inf
    return Spent(named, spent, selector.best == "arm0")


def main(full: bool = True, out: Path | None = None) -> None:
    """Run all scenarios with both races."""
    runs = RUNS if full else 10
    lines = [
        f"{runs} runs, seeds from {SEED}, pulls of {BATCH} samples, costs {CHEAP} and {EXPENSIVE}. "
        "Blind races ignore the costs, aware ones know them.",
        "",
        "| arms | right, blind and aware | named: blind | aware | ratio | named in 9 of 10 runs: blind | aware | ratio "
        "| decided: blind | aware |",
        "|-|-|-|-|-|-|-|-|-|-|",
    ]
    for title, arms in SCENARIOS.items():
        both = [[race(arms, SEED + run, aware) for run in range(runs)] for aware in (False, True)]
        cells = [title, " and ".join(str(sum(spent.right for spent in found)) for found in both)]
        kept = [[spent.named for spent in found if spent.right] for found in both]
        for measure in (mean, lambda costs: quantiles(costs, n=10)[-1]):
            blind, aware = (measure(costs) for costs in kept)
            cells += [f"{blind:,.0f}", f"{aware:,.0f}", f"{aware / blind:.3f}"]
        cells += [f"{mean(spent.decided for spent in found if spent.right):,.0f}" for found in both]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    lines += ["", f"Target: a ratio of at most {TARGET} in the first row.", NOTE]
    print("\n".join(lines))
    if out is not None:
        (out / "cost.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(out=Path(__file__).parent / "results")
