"""What one look at KID costs next to torchmetrics' KID with its defaults, and where the reference's rows are.

``python -m benchmarks.kid``; all times come from one run on one machine, so only their ratio means anything.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torchmetrics.image.kid import KernelInceptionDistance

from benchmarks.metrics import DIM, Arm
from tm_bandit import OptimisticKID, ReferenceStatistics

REFERENCE, PULL, ARMS = 10_000, 50, 20
#: How many times faster a look has to be, at the sample count that torchmetrics' defaults need.
SAMPLES, TARGET = 1000, 100


def main(full: bool = False, out: Path | None = None) -> None:
    """Measure pulls of one arm, and the reference's rows over twenty arms."""
    real, fake = Arm(0, 0.0)(REFERENCE), Arm(1, 0.02)
    reference = ReferenceStatistics.from_features(real, keep_rows=True)
    template = OptimisticKID("none", reference)
    start = time.perf_counter()
    reference.rows.mean_of_pairs(template.kernel)
    once = time.perf_counter() - start
    ours, rows, pulls = template.fork(), [], []
    while ours.num_samples < SAMPLES:
        rows.append(fake(PULL))
        start = time.perf_counter()
        ours.update_rows(rows[-1])
        ours.losses(("estimate", "stderr", "optimistic"))
        pulls.append(time.perf_counter() - start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = KernelInceptionDistance(feature=nn.Identity())
    theirs.real_features, theirs.fake_features, theirs._update_count = [real], rows, 1
    start = time.perf_counter()
    value = theirs.compute()
    look = time.perf_counter() - start
    held = {arm._reference_rows().values.data_ptr() for arm in (template.fork() for _ in range(ARMS))}
    last = median(pulls[-5:])
    lines = [
        f"d = {DIM}, {REFERENCE:,} reference rows, pull of {PULL}, n = {SAMPLES}, threads: {torch.get_num_threads()}",
        "",
        "| ours, update and look, ms | torchmetrics' compute, ms | times faster (target) | once per reference, ms |",
        "|-|-|-|-|",
        f"| {1e3 * last:.0f} | {1e3 * look:.0f} | {look / last:.0f} ({TARGET}) | {1e3 * once:.0f} |",
        "",
        f"Estimate {float(ours.estimate()):.6f}; torchmetrics' mean over subsets {float(value[0]):.6f} "
        f"(standard deviation {float(value[1]):.6f}).",
        f"Copies of the reference's rows held by {ARMS} arms: {len(held)}.",
    ]
    print("\n".join(lines))
    if out is not None:
        (out / "kid.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(out=Path(__file__).parent / "results")
