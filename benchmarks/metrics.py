"""What one pull costs, in time and memory, next to torchmetrics and to the algorithm of the authors' published code.

All times of one table come from one run on one machine; only their ratios mean anything.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.linalg
import torch
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance

from tm_bandit import OptimisticFID, OptimisticIS, ReferenceStatistics

DIM = 2048
CLASSES = 1000
PULL = 5
#: Number of samples, and how many times faster than torchmetrics and than the authors' algorithm a pull has to be.
TARGETS = {100: (500, 2000), 1000: (20, 50), 5000: (3, 10)}


class Identity(nn.Module):
    """Feeds ready-made features to torchmetrics."""

    num_features = DIM

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rows."""
        return rows


class Arm:
    """Gaussian features whose spectrum decays like that of Inception features."""

    def __init__(self, seed: int, shift: float) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.scale = torch.arange(1, DIM + 1, dtype=torch.float32).pow(-0.6)
        # Householder reflections mix the axes, so that no covariance in the table is diagonal.
        self.mirrors = torch.randn(8, DIM, generator=torch.Generator().manual_seed(seed + 1))
        self.mirrors /= self.mirrors.norm(dim=1, keepdim=True)
        self.shift = shift

    def __call__(self, count: int) -> Tensor:
        """Draw rows."""
        rows = torch.randn(count, DIM, generator=self.generator) * self.scale
        for mirror in self.mirrors:
            rows -= 2.0 * torch.outer(rows @ mirror, mirror)
        return rows + self.shift


def authors_pull(rows: Tensor, mean: np.ndarray, covariance: np.ndarray, count: int, reference: ReferenceStatistics):
    """Do the algebra of one pull as the authors' code does it: covariance loop, general square root, full spectrum."""
    for position, row in enumerate(rows.double().numpy()):
        seen = count - len(rows) + position + 1
        offset = row - mean
        covariance = (seen - 2) / (seen - 1) * covariance + np.outer(offset, offset) / seen
        mean = mean + offset / seen
    sigma = reference.covariance.numpy()
    root = scipy.linalg.sqrtm(covariance @ sigma)
    gap = mean - reference.mean.numpy()
    distance = gap @ gap + np.trace(covariance) + np.trace(sigma) - 2.0 * np.trace(root).real
    return distance, scipy.linalg.eigh(covariance, eigvals_only=True)[-1]


def authors_action(rows: Tensor, reference: ReferenceStatistics) -> Callable[[], Any]:
    """Prepare a pull of the authors' algorithm: everything but the last batch has been seen."""
    seen = rows[:-PULL].double()
    mean, covariance = seen.mean(dim=0).numpy(), np.cov(seen.numpy(), rowvar=False)
    return lambda: authors_pull(rows[-PULL:], mean, covariance, len(rows), reference)


def seconds(action: Callable[[], Any], repeats: int = 1) -> float:
    """Return the median duration of an action."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return median(times)


def megabytes(holder: object, ignored: tuple[object, ...] = ()) -> float:
    """Return the size of all tensors that an object holds, each storage once."""
    seen: set[int] = {id(item) for item in ignored}
    storages: dict[int, int] = {}
    waiting: list[Any] = [holder]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            storages[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple, set)):
            waiting.extend(item)
        elif type(item).__module__.startswith("tm_bandit"):
            waiting.append(vars(item) if hasattr(item, "__dict__") else [])
    return sum(storages.values()) / 2**20


def measure_fid(full: bool) -> list[dict[str, Any]]:
    """Time pulls of five at growing numbers of samples."""
    real, fake = Arm(0, 0.0), Arm(7, 0.05)
    reference_rows = real(4 * DIM)
    reference = ReferenceStatistics.from_features(reference_rows)
    reference.trace_root.item()  # decomposed once, shared by all arms
    theirs = FrechetInceptionDistance(feature=Identity(), reset_real_features=False)
    theirs.update(reference_rows, real=True)
    repeats = 3 if full else 1
    authors = math.nan
    table = []
    for count, (target_theirs, target_authors) in TARGETS.items():
        rows = fake(count)
        ours = OptimisticFID("none", reference, bound="authors")
        theirs.reset()
        for batch in rows[:-PULL].split(500):
            ours.update_features(batch)
            theirs.update(batch, real=False)
        ours.compute()
        if math.isnan(authors) or full:
            authors = seconds(authors_action(rows, reference))

        def our_pull(metric: OptimisticFID = ours, batch: Tensor = rows[-PULL:]) -> None:
            metric.update_features(batch)
            metric.compute()

        def their_pull(batch: Tensor = rows[-PULL:]) -> None:
            theirs.update(batch, real=False)
            theirs.compute()

        ours_seconds, their_seconds = seconds(our_pull, 5), seconds(their_pull, repeats)
        table.append(
            {
                "samples": count,
                "ours_ms": 1e3 * ours_seconds,
                "torchmetrics_ms": 1e3 * their_seconds,
                "authors_ms": 1e3 * authors,
                "times_torchmetrics": their_seconds / ours_seconds,
                "target_torchmetrics": target_theirs,
                "times_authors": authors / ours_seconds,
                "target_authors": target_authors,
                "arm_mb": megabytes(ours, (reference, reference.mean, reference.covariance)),
                "rows_mb": rows.numel() * 4 / 2**20,
                "torchmetrics_mb": 2 * DIM * DIM * 8 / 2**20,
            }
        )
    return table


def measure_is() -> list[dict[str, Any]]:
    """Show that the Inception Score's states do not grow."""
    generator = torch.Generator().manual_seed(3)
    metric = OptimisticIS("none", bound="paper")
    table, seen = [], 0
    for count in TARGETS:
        probs = torch.randn(count - seen, CLASSES, generator=generator).mul(3).softmax(dim=1)
        metric.update_probs(probs)
        batch, seen = probs[:PULL], count

        def pull(batch: Tensor = batch) -> None:
            metric.update_probs(batch)
            metric.compute()

        table.append({"samples": count, "ours_ms": 1e3 * seconds(pull, 5), "arm_mb": megabytes(metric)})
    return table


def render(fid: list[dict[str, Any]], inception: list[dict[str, Any]], threads: int) -> str:
    """Return the tables as markdown."""
    lines = [
        f"Frechet distance, d = {DIM}, pull of {PULL} (update + compute, bound 'authors'), threads: {threads}",
        "",
        "| n | ours, ms | torchmetrics, ms | authors' algorithm, ms | times torchmetrics (target) "
        "| times authors (target) | arm, MB | its rows, MB | torchmetrics, MB |",
        "|-|-|-|-|-|-|-|-|-|",
    ]
    lines += [
        f"| {row['samples']} | {row['ours_ms']:.1f} | {row['torchmetrics_ms']:.0f} | {row['authors_ms']:.0f} "
        f"| {row['times_torchmetrics']:.0f} ({row['target_torchmetrics']}) "
        f"| {row['times_authors']:.0f} ({row['target_authors']}) "
        f"| {row['arm_mb']:.1f} | {row['rows_mb']:.1f} | {row['torchmetrics_mb']:.0f} |"
        for row in fid
    ]
    lines += ["", f"Inception Score, {CLASSES} classes", "", "| n | ours, ms | arm, MB |", "|-|-|-|"]
    lines += [f"| {row['samples']} | {row['ours_ms']:.2f} | {row['arm_mb']:.3f} |" for row in inception]
    return "\n".join(lines)


def main(full: bool, out: Path) -> None:
    """Run the benchmark, print its tables and write them to ``out``.

    Args:
        full: repeat the slow competitors instead of timing them once.
        out: folder for ``metrics.json`` and ``metrics.md``.
    """
    fid, inception, threads = measure_fid(full), measure_is(), torch.get_num_threads()
    text = render(fid, inception, threads)
    print(text)
    out.mkdir(parents=True, exist_ok=True)
    (out / "metrics.md").write_text(text + "\n")
    result = {"threads": threads, "dim": DIM, "pull": PULL, "fid": fid, "inception_score": inception}
    (out / "metrics.json").write_text(json.dumps(result, indent=1) + "\n")
