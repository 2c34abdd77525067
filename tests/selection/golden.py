"""Runs of the reproduced algorithms on fixed seeds, which every version has to repeat pull by pull.

``python -m tests.selection.golden`` writes ``tests/data/golden/``. The files there were written by version 0.1; write
them anew only to add a case.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from tm_bandit import ModelSelector, OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit.simulation import class_bank, gaussian_arm, probability_arm

FOLDER = Path(__file__).parents[1] / "data" / "golden"
DIM, BATCH, PULLS = 8, 5, 300

ZERO, IDENTITY = torch.zeros(DIM, dtype=torch.float64), torch.eye(DIM, dtype=torch.float64)


def fid_samplers() -> dict[str, Callable[..., torch.Tensor]]:
    """Five Gaussians with distances 0.5 to 2.1."""
    samplers = {}
    for i in range(5):
        mean = torch.full((DIM,), (0.25 + 0.05 * i), dtype=torch.float64)
        samplers[f"fid{i}"] = gaussian_arm("", mean, (1.0 + 0.1 * i) * IDENTITY, ZERO, IDENTITY).sample
    return samplers


def is_samplers() -> dict[str, Callable[..., torch.Tensor]]:
    """Five generators, each with two classes fewer than the one before."""
    generator = torch.Generator().manual_seed(3)
    return {
        f"is{k}": probability_arm("", class_bank(range(k), 20, 6.0, 500, generator)).sample for k in range(20, 10, -2)
    }


def fid(bound: str) -> OptimisticFID:
    """The metric of :func:`fid_samplers`."""
    return OptimisticFID("none", reference=ReferenceStatistics(ZERO, IDENTITY, 50_000), bound=bound)


#: ``{file: (score, bound, policy)}``
PLAIN = {
    **{f"fid_ucb_{bound}": ("fid", bound, "ucb") for bound in ("paper", "authors", "naive")},
    **{f"is_ucb_{bound}": ("is", bound, "ucb") for bound in ("paper", "authors", "naive")},
    **{
        f"{score}_{policy}": (score, "authors", policy)
        for score in ("fid", "is")
        for policy in ("greedy", "uniform", "random")
    },
    **{f"{score}_{policy}": (score, "witness", policy) for score in ("fid", "is") for policy in ("halving", "lucb")},
}
CASES = (*PLAIN, "newcomer", "retired")


def play(case: str) -> dict[str, Any]:
    """Run one case and return its history."""
    score, bound, policy = PLAIN.get(case, ("fid", "authors", "ucb"))
    samplers = fid_samplers() if score == "fid" else is_samplers()
    metric = fid(bound) if score == "fid" else OptimisticIS("none", bound=bound)
    late = {"fid0": samplers.pop("fid0")} if case == "newcomer" else {}
    selector = ModelSelector(
        metric,
        samplers,
        policy,
        batch_size=BATCH,
        budget=PULLS * BATCH,
        burn_in=2 * BATCH,
        seed=11,
        samples="features",
        pairing="independent",
        goal="regret",  # the defaults of version 0.1
        stop="budget",
        refresh=0.05,
    )
    for pull in range(PULLS):
        if pull == 100:
            for name, sampler in late.items():
                selector.add_arm(name, sampler)
            if case == "retired":
                selector.retire_arm("fid0", "taken out")
        assert selector.step() is not None
    assert selector.step() is None
    history = selector.result().history
    return {name: history[name] for name in ("arm", "best", "status")}


def packed(column: list[Any]) -> list[list[Any]]:
    """Write runs of equal values as pairs of value and length."""
    return [[value, len(list(run))] for value, run in groupby(column)]


def unpacked(pairs: list[list[Any]]) -> list[Any]:
    """Undo :func:`packed`."""
    return [value for value, length in pairs for _ in range(length)]


if __name__ == "__main__":
    for case in CASES:
        columns = {name: packed(column) for name, column in play(case).items()}
        (FOLDER / f"{case}.json").write_text(json.dumps(columns, separators=(",", ":")) + "\n")
