"""Is the algebra slower than in another version of the package? Both are measured in turn, in one run.

``python -m benchmarks.algebra OLD``, where ``OLD`` is a checkout of that version. Each version runs in processes of its
own, with one thread, and the least processor time of its turns counts. The table goes to
``benchmarks/results/algebra.md``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TURNS = 6
HERE = Path(__file__).resolve()


def rows() -> dict[str, float]:
    """Return the processor milliseconds per pull of five samples, with a look after every pull."""
    import torch

    from tm_bandit import ModelSelector, OptimisticFID, OptimisticIS, ReferenceStatistics

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)

    def reference(dim: int) -> ReferenceStatistics:
        values = torch.arange(1, dim + 1, dtype=torch.float64) ** -0.8
        return ReferenceStatistics(torch.zeros(dim), torch.diag(values), 10**6)

    def follow(metric: Any, batches: list[torch.Tensor], feed: str, look: Callable[[Any], Any]) -> float:
        # What is worked out once for a reference belongs to no pull: a copy with all samples has it done before.
        first = metric.clone()
        getattr(first, feed)(torch.cat(batches))
        look(first)
        getattr(metric, feed)(batches[0])
        look(metric)
        start = time.process_time()
        for batch in batches[1:]:
            getattr(metric, feed)(batch)
            look(metric)
        return (time.process_time() - start) / (len(batches) - 1) * 1e3

    looks: dict[str, Callable[[Any], Any]] = {
        "estimate": lambda metric: metric.estimate(),
        "compute": lambda metric: metric.compute(),
        "bounds": lambda metric: metric.bounds(),
        "debiased": lambda metric: metric.debiased(),
    }
    found = {}
    for dim, count in ((64, 1000), (256, 600), (2048, 400)):
        known = reference(dim)
        samples = torch.randn(count, dim, generator=generator) * known.covariance.diagonal().sqrt().float() + 0.1
        batches = list(samples.split(5))
        for name, look in looks.items():
            metric = OptimisticFID(feature="none", reference=known)
            found[f"FID, witness, d = {dim}, n to {count:,}: {name}"] = follow(metric, batches, "update_features", look)
        for bound in ("paper", "authors", "naive") if dim < 2048 else ():
            metric = OptimisticFID(feature="none", reference=known, bound=bound)
            name = f"FID, {bound}, d = {dim}, n to {count:,}: compute"
            found[name] = follow(metric, batches, "update_features", looks["compute"])
    for classes in (10, 1000):
        probs = torch.randn(1000, classes, generator=generator, dtype=torch.float64).mul(2).softmax(1)
        for bound in ("witness", "paper"):
            metric = OptimisticIS(torch.nn.Identity(), bound=bound)
            name = f"IS, {bound}, {classes:,} classes, n to 1,000: compute"
            found[name] = follow(metric, list(probs.split(5)), "update_probs", looks["compute"])
    known = reference(64)
    arms = {
        f"arm {i}": lambda n, generator, i=i: (1 + 0.05 * i) * torch.randn(n, 64, generator=generator)
        for i in range(20)
    }
    for policy in ("uniform", "greedy"):
        options: dict[str, Any] = {"policy": policy, "samples": "features", "budget": 5_000, "stop": "budget"}
        if hasattr(ModelSelector, "ask"):
            options["pairing"] = "independent"
        selector = ModelSelector(OptimisticFID(feature="none", reference=known), arms, **options)
        start = time.process_time()
        selector.run(progress=False)
        found[f"selection, {policy}, 20 arms, d = 64, 1,000 pulls"] = time.process_time() - start
    return found


def _turn(tree: Path) -> dict[str, float]:
    environment = dict(os.environ, PYTHONPATH=str(tree), OMP_NUM_THREADS="1")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE)], cwd=tree, env=environment, check=True, stdout=subprocess.PIPE
    )
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def main(old: Path) -> None:
    """Compare this version with another one.

    Args:
        old: a checkout of it.
    """
    turns: dict[str, list[dict[str, float]]] = {"old": [], "new": []}
    for _ in range(TURNS):
        turns["old"].append(_turn(old))
        turns["new"].append(_turn(HERE.parents[1]))
    lines = [
        "# The algebra against version 0.1",
        "",
        f"Milliseconds of processor time per pull of five samples and one look, one thread; the least of {TURNS} turns "
        "that alternate in one run. `python -m benchmarks.algebra OLD` makes this table.",
        "",
        "| what | 0.1 | now | now / 0.1 |",
        "|---|---|---|---|",
    ]
    for name in turns["new"][0]:
        before, now = (min(turn[name] for turn in turns[which]) for which in ("old", "new"))
        lines.append(f"| {name} | {before:.3g} | {now:.3g} | {now / before:.2f} |")
    text = "\n".join(lines) + "\n"
    (HERE.parent / "results" / "algebra.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(Path(sys.argv[1]).resolve())
    else:
        print(json.dumps(rows()))
