"""Coverage, tightness, debiased error and cost of the witness bounds.

Real features are optional: the folder in the environment variable ``TM_BANDIT_DATA`` is searched for
``cifar10_efficientnet_{reference,arms}.npz``; without it that part of the table says so.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics.image.fid import FrechetInceptionDistance

from benchmarks._generators import frechet_scenarios, marginal_scenarios
from benchmarks._paths import frechet_coverage, marginal_coverage
from benchmarks.metrics import Identity
from benchmarks.scenarios import data_folder
from tm_bandit import OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit.functional import frechet_distance

DELTA = 0.05
#: Dimension at which the cost is measured: that of the usual FID.
COST_DIM = 2048
#: How far below (FD) or above (log IS) the truth the optimistic score may be, at which sample count.
FD_TARGETS = {200: 10.0, 500: 5.0, 1000: 3.0}
IS_TARGETS = {200: 1.5, 5000: 0.15}

#: The default and the two safer options.
HOW: dict[str, dict[str, Any]] = {"default": {}, "lil": {"kind": "lil"}, "predictable": {"fitting": "predictable"}}

Row = dict[str, Any]


def coverage(full: bool) -> list[Row]:
    """Share of runs in which the truth is ever outside, followed from 20 to 2,000 samples pull by pull."""
    runs = 200 if full else 60
    pulls = list(range(20, 2001, 5))
    # A share of delta may exceed delta by chance: two standard errors.
    limit = DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / runs)
    table: list[Row] = []

    def note(kind: str, name: str, how: str, looks: list[int], truth: float, crossings: Any, optimistic: int) -> None:
        row = {"scores": kind, "scenario": name, "how": how, "runs": runs, "looks": len(looks), "truth": truth}
        row |= {"optimistic end crossed": crossings.lower, "either end crossed": crossings.either}
        row |= {f"optimistic end at {n}": round(crossings.ends[n][optimistic], 4) for n in (20, 100, 500, 2000)}
        row["holds"] = max(crossings.lower, crossings.either) <= limit
        table.append(row)
        print(f"  {kind:12} {name:34} {how:12} {crossings.lower:.3f} {crossings.either:.3f}", flush=True)

    for dim in (8, 64):
        looks = pulls if dim == 8 or full else pulls[::4]
        scenarios = frechet_scenarios(dim, size=1_000_000 if dim == 8 else 200_000)
        for scenario in scenarios if dim == 8 or full else scenarios[:2]:
            for how in HOW if full and dim == 8 else ("default",):
                found = frechet_coverage(scenario, runs, looks, DELTA, **HOW[how])
                note(f"FD, d={dim}", scenario.name, how, looks, scenario.truth, found, 0)
    for classes in (10, 100) if full else (10,):
        looks = pulls if classes == 10 else pulls[::4]
        for name, sampler, truth in marginal_scenarios(classes):
            found = marginal_coverage(sampler, truth, runs, looks, DELTA)
            note(f"log IS, C={classes}", name, "default", looks, truth, found, 1)
    return table


def _rotated_arm(dim: int, seed: int = 0) -> tuple[ReferenceStatistics, Callable[[int, int], Tensor], float]:
    """A Gaussian that differs from its reference in mean, variances and rotation; distance 6.6 at d = 256."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.arange(1, dim + 1, dtype=torch.float64) ** -0.7
    values *= 50 / values.sum()
    noise = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    turn = torch.linalg.qr(torch.eye(dim, dtype=torch.float64) + 0.32 / dim**0.5 * noise)[0]
    turn = turn * turn.diagonal().sign()
    own = turn @ torch.diag(values * (0.4 * torch.randn(dim, generator=generator, dtype=torch.float64)).exp()) @ turn.T
    mean = 0.22 * values.sqrt() * torch.randn(dim, generator=generator, dtype=torch.float64)
    reference = ReferenceStatistics(torch.zeros(dim), torch.diag(values))
    root = torch.linalg.cholesky(own)

    def sample(count: int, run: int) -> Tensor:
        rows = torch.randn(count, dim, generator=torch.Generator().manual_seed(1000 + run), dtype=torch.float64)
        return rows @ root.T + mean

    return reference, sample, float(frechet_distance(mean, own, torch.zeros(dim), torch.diag(values)))


def tightness(full: bool) -> list[Row]:
    """Optimistic scores beside the truth, the plug-in and the paper's bounds on the same rows."""
    runs = 10 if full else 3
    table: list[Row] = []
    reference, sample, truth = _rotated_arm(256)
    for count in (50, 100, 200, 500, 1000, 3000):
        row: Row = {"score": "FD, d=256", "n": count, "truth": truth}
        for bound in ("witness", "authors", "paper"):
            found = []
            for run in range(runs if bound == "witness" else 1):
                metric = OptimisticFID(feature="none", reference=reference, bound=bound)
                metric.update_features(sample(count, run))
                found.append(float(metric.compute()))
                if bound == "witness" and run == 0:
                    row["plug-in"] = float(metric.estimate())
                    row["debiased"] = float(metric.debiased().value)
            row[bound] = sum(found) / len(found)
        row["target gap"] = FD_TARGETS.get(count)
        row["holds"] = count not in FD_TARGETS or truth - FD_TARGETS[count] <= row["witness"] <= truth
        table.append(row)
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(1000, generator=generator, dtype=torch.float64).pow(2)

    def predictions(count: int) -> Tensor:
        label = torch.multinomial(weights, count, replacement=True, generator=generator)
        logits = torch.randn(count, 1000, generator=generator, dtype=torch.float64)
        logits[torch.arange(count), label] += 8.5
        return logits.softmax(-1)

    whole = OptimisticIS(feature="none", bound="none", log_scale=True)
    for _ in range(10):
        whole.update_probs(predictions(10_000))
    truth = float(whole.estimate())
    for count in (50, 200, 1000, 5000):
        rows = predictions(count)
        row = {"score": "log IS, 1000 classes", "n": count, "truth": truth}
        for bound in ("witness", "authors", "paper"):
            metric = OptimisticIS(feature="none", bound=bound, log_scale=True)
            metric.update_probs(rows)
            row[bound] = float(metric.compute())
        row["plug-in"], row["debiased"] = float(metric.estimate()), float(metric.debiased().value)
        row["target gap"] = IS_TARGETS.get(count)
        within = count not in IS_TARGETS or truth <= row["witness"] <= truth + IS_TARGETS[count]
        row["holds"] = within and row["witness"] <= math.log(1000)
        table.append(row)
    return table


def _plug_in(rows: Tensor, reference: ReferenceStatistics, generator: torch.Generator | None = None) -> float:
    metric = OptimisticFID(feature="none", reference=reference, bound="none")
    metric.update_features(rows)
    return float(metric.estimate())


def _debiased(rows: Tensor, reference: ReferenceStatistics, generator: torch.Generator) -> float:
    metric = OptimisticFID(feature="none", reference=reference)
    metric.update_features(rows)
    return float(metric.debiased().value)


def _extrapolate(rows: Tensor, reference: ReferenceStatistics, generator: torch.Generator, least: float = 0.1) -> float:
    """FID-infinity: a straight line in 1/n through fifteen random subsets, read off at zero."""
    sizes = torch.linspace(max(least * len(rows), 2), len(rows), 15).int().tolist()
    values = [_plug_in(rows[torch.randperm(len(rows), generator=generator)[:size]], reference) for size in sizes]
    return float(np.polyfit([1 / size for size in sizes], values, 1)[1])


#: FID-infinity takes subsets from a tenth of the samples on, as its authors do, or from one half on.
METHODS: dict[str, Callable[[Tensor, ReferenceStatistics, torch.Generator], float]] = {
    "debiased": _debiased,
    "FID-infinity": _extrapolate,
    "FID-infinity, n/2..n": partial(_extrapolate, least=0.5),
    "plug-in": _plug_in,
}


def _real_arms() -> dict[str, tuple[ReferenceStatistics, Callable[[int, int], Tensor], float]]:
    """Real features, drawn with replacement from each arm's rows, whose own moments then are the truth."""
    folder = data_folder() or Path("data")
    file, arms = folder / "cifar10_efficientnet_reference.npz", folder / "cifar10_efficientnet_arms.npz"
    if not (file.exists() and arms.exists()):
        return {}
    reference = ReferenceStatistics.load(file)
    found = {}
    with np.load(arms) as stored:
        for name in stored.files:
            rows = torch.from_numpy(stored[name].astype(np.float64))

            def sample(count: int, run: int, rows: Tensor = rows) -> Tensor:
                return rows[torch.randint(len(rows), (count,), generator=torch.Generator().manual_seed(run))]

            truth = frechet_distance(
                rows.mean(0), torch.cov(rows.T, correction=0), reference.mean, reference.covariance
            )
            found[f"real features: {name.removeprefix('features/')}"] = (reference, sample, float(truth))
    return found


def _odd_arms(dim: int) -> dict[str, tuple[ReferenceStatistics, Callable[[int, int], Tensor], float]]:
    """Arms whose spectrum is far from the reference's: here the bias curve is not theirs."""
    values = torch.arange(1, dim + 1, dtype=torch.float64) ** -0.7
    values *= 50 / values.sum()
    reference = ReferenceStatistics(torch.zeros(dim), torch.diag(values))
    spectra = {"collapsed": values * (-torch.arange(dim) / 30).exp(), "white": torch.full_like(values, 50 / dim)}
    found = {}
    for name, own in spectra.items():

        def sample(count: int, run: int, own: Tensor = own) -> Tensor:
            rows = torch.randn(count, dim, generator=torch.Generator().manual_seed(run), dtype=torch.float64)
            return rows * own.sqrt()

        found[f"breaks the curve: {name}, d={dim}"] = (
            reference,
            sample,
            float((values.sqrt() - own.sqrt()).square().sum()),
        )
    return found


def debiased(full: bool) -> list[Row]:
    """Root mean squared error of the debiased distance, of FID-infinity (two ways) and of the plug-in."""
    cases: dict[str, Any] = {f"gaussian, d={dim}": _rotated_arm(dim) for dim in ((64, 256) if full else (64,))}
    cases |= _odd_arms(256 if full else 64)
    real = _real_arms()
    cases |= real if full else dict(list(real.items())[:1])
    table: list[Row] = []
    for name, (reference, sample, truth) in cases.items():
        dim = reference.num_features
        runs = 4 if name.startswith("real") else (40 if full else 20)
        for ratio in (0.25, 0.5, 1, 2):
            count = int(ratio * dim)
            errors: dict[str, list[float]] = {method: [] for method in METHODS}
            spent = dict.fromkeys(METHODS, 0.0)
            generator = torch.Generator().manual_seed(0)
            for run in range(runs):
                rows = sample(count, run)
                for method, call in METHODS.items():
                    start = time.perf_counter()
                    errors[method].append(call(rows, reference, generator) - truth)
                    spent[method] += time.perf_counter() - start
            row: Row = {"case": name, "n/d": ratio, "truth": truth, "runs": runs}
            row |= {f"RMSE {method}": float(np.sqrt(np.mean(np.square(found)))) for method, found in errors.items()}
            row |= {f"ms {method}": 1e3 * spent[method] / runs for method in ("debiased", "FID-infinity")}
            row["holds"] = row["RMSE debiased"] <= row["RMSE FID-infinity"] / 3
            table.append(row)
            print(
                f"  {name:36} n/d={ratio:<5} " + " ".join(f"{k} {v:.2f}" for k, v in row.items() if k[:4] == "RMSE"),
                flush=True,
            )
    if not real:
        table.append({"case": "real features: none found; set TM_BANDIT_DATA to the folder with the .npz files"})
    return table


def cost(full: bool) -> list[Row]:
    """Milliseconds of one pull of five at d = 2048: update and optimistic score, averaged from the first pull on."""
    dim, pull = COST_DIM, 5
    enough = dim // pull + 1
    generator = torch.Generator().manual_seed(0)
    scale = torch.arange(1, dim + 1, dtype=torch.float32).pow(-0.6)
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=generator))[0]

    def sample(count: int) -> Tensor:
        return (torch.randn(count, dim, generator=generator) * scale) @ turn.T

    reference = ReferenceStatistics.from_features(sample(6000))
    start = time.perf_counter()
    _ = reference.witness_basis
    once = time.perf_counter() - start
    metric = OptimisticFID(feature="none", reference=reference)
    table: list[Row] = []
    total, processor, last = 0.0, 0.0, 1000 if full else enough
    for number in range(1, last + 1):
        rows = 1.1 * sample(pull)
        start, began = time.perf_counter(), time.process_time()
        metric.update_features(rows)
        metric.compute()
        total, processor = total + time.perf_counter() - start, processor + time.process_time() - began
        if number in (20, 40, 100, 200, enough, 1000):
            stream = metric.row_log.known("stream")
            kept = (*stream._witness, stream._scores, stream._spectrum)
            extra = sum(part.numel() * part.element_size() for part in kept)
            table.append(
                {
                    "pulls": number,
                    "n": metric.num_samples,
                    "ms per pull": 1e3 * total / number,
                    "processor ms per pull": 1e3 * processor / number,
                    "rows MB": 4 * metric.num_samples * dim / 2**20,
                    "beyond the rows MB": extra / 2**20,
                    "holds": 1e3 * total / number <= 10 if number == enough else None,
                }
            )
    theirs = FrechetInceptionDistance(feature=Identity())
    for real in (True, False):
        theirs.update(sample(2 * dim), real=real)
    start = time.perf_counter()
    theirs.compute()
    reference_cost = 1e3 * (time.perf_counter() - start)
    for row in table:
        row["torchmetrics compute ms"] = reference_cost
        row["times faster"] = reference_cost / row["ms per pull"]
    print(f"  eigenbasis of the reference, once for all arms: {once:.1f} s", flush=True)
    return table


def markdown(title: str, table: list[Row]) -> str:
    """Render rows as a table, with the union of their columns."""
    columns = list(dict.fromkeys(key for row in table for key in row))

    def text(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "**no**"
        return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)

    lines = [f"## {title}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(text(row.get(column)) for column in columns) + " |" for row in table]
    return "\n".join([*lines, ""])


def main(full: bool, out: Path) -> None:
    """Write ``witness.md`` and ``witness.json``.

    Args:
        full: all runs and looks of the study; else a short version of the same tables.
        out: folder for the files.
    """
    parts = {
        "Coverage: share of runs that ever cross the truth": coverage,
        "Tightness": tightness,
        "Debiased distance": debiased,
        f"Cost, d = {COST_DIM} (aim: 10 ms a pull on average until there are as many samples)": cost,
    }
    results: dict[str, list[Row]] = {}
    for title, part in parts.items():
        start = time.perf_counter()
        results[title] = part(full)
        print(f"{title}: {time.perf_counter() - start:.0f} s", flush=True)
        head = "# Witness bounds\n\n" + (__doc__ or "").split("\n\n")[0] + "\n\n"
        (out / "witness.md").write_text(head + "\n".join(markdown(*item) for item in results.items()))
        (out / "witness.json").write_text(json.dumps(results, indent=1))
