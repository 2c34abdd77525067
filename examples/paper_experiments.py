"""How do the paper's algorithms compare?
======================================

The paper's experiments by simulation: regret and pick ratio per algorithm, ablations, models that arrive over time.

Five Gaussian models stand for the five generators of the paper's DINOv2 / ImageNet experiment: their Frechet distances
are the published ones, shrunk to `--dim` dimensions so that the run takes minutes (`--paper` uses d = 1024, 1,000
pulls and 20 trials, and takes hours). "authors" is FD-UCB with the constants of the authors' program::

    python examples/paper_experiments.py [--fast | --paper] [--out FOLDER]
"""

import argparse
from pathlib import Path

import matplotlib
import torch

from tm_bandit import OptimisticFID, ReferenceStatistics
from tm_bandit.simulation import Contestant, Scenario, gaussian_arm, mean_and_error, paper_scale_arms, run_trial

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ALGORITHMS = [
    Contestant("witness UCB (ours)"),
    Contestant("FD-UCB (authors)", bound="authors"),
    Contestant("Naive-UCB", bound="naive"),
    Contestant("greedy", bound="none", policy="greedy"),
    Contestant("random", bound="none", policy="random"),
]


def scenario(dim: int, joins: dict[str, int] | None = None, **settings) -> Scenario:
    variances, arms = paper_scale_arms("imagenet")
    if dim < len(variances):
        variances = variances[:dim]
        mean, cov = torch.zeros(dim), torch.diag(variances)
        arms = [shrink(arm.name, arm.score * dim / 1024, mean, cov) for arm in arms]
    reference = ReferenceStatistics(torch.zeros(dim), torch.diag(variances), 50_000)
    return Scenario(
        "five models",
        arms,
        metric=lambda bound: OptimisticFID(feature="none", reference=reference, bound=bound, **settings),
        joins=joins or {},
    )


def shrink(name: str, distance: float, mean: torch.Tensor, cov: torch.Tensor):
    """A Gaussian at that distance: a third by a shift of the mean, the rest by too little variance."""
    shift = torch.full_like(mean, (distance / 3 / len(mean)) ** 0.5)
    scale = 1 - (2 * distance / 3 / cov.trace()) ** 0.5
    return gaussian_arm(name, shift, scale**2 * cov, mean, cov)


def curves(axes, where: Scenario, contestants, pulls: int, trials: int, batch_size: int = 5, label: str = "") -> None:
    """Average regret and optimal pick ratio after each pull, as the paper defines them, averaged over trials."""
    for contestant in contestants:
        runs = [run_trial(where, contestant, pulls=pulls, batch_size=batch_size, seed=seed) for seed in range(trials)]
        steps = torch.arange(1, pulls + 1)
        regret = torch.tensor([run.regrets for run in runs]).cumsum(1) / steps
        ratio = torch.tensor([run.optimal for run in runs]).double().cumsum(1) / steps
        name = label or contestant.name
        axes[0].plot(steps * batch_size, regret.mean(0), label=name)
        axes[1].plot(steps * batch_size, ratio.mean(0), label=name)
        value, error = mean_and_error(regret[:, -1].tolist())
        print(f"  {name:22} regret {value:7.2f} +- {error:5.2f}, pick ratio {ratio[:, -1].mean():.2f}", flush=True)


def finish(figure, axes, path: Path) -> None:
    for row in axes.reshape(-1, 2):
        row[0].set(ylabel="average regret", yscale="log")
        row[1].set(ylabel="optimal pick ratio", ylim=(0, 1))
        row[0].legend(fontsize=7)
    for bottom in axes.reshape(-1, 2)[-1]:
        bottom.set_xlabel("samples")
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    print(f"wrote {path}")


def main(fast: bool, paper: bool, dim: int, out: Path) -> None:
    if not paper:
        torch.set_num_threads(1)  # small matrices: on a busy machine, threads would wait for each other
    out.mkdir(parents=True, exist_ok=True)
    dim, pulls, trials = (16, 40, 1) if fast else (1024, 1000, 20) if paper else (dim, 400, 3)
    authors = ALGORITHMS[1:2]

    print(f"algorithms (d = {dim}, {pulls} pulls of 5, {trials} trials)")
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    curves(axes, scenario(dim), ALGORITHMS, pulls, trials)
    finish(figure, axes, out / "algorithms.png")

    print("ablations of FD-UCB: batch size, kappa, threshold M")
    figure, axes = plt.subplots(3, 2, figsize=(9, 8.5))
    for size in (5, 10, 20):
        curves(axes[0], scenario(dim), authors, 5 * pulls // size, trials, size, label=f"b = {size}")
    for kappa in (0.5, 1.0, 2.0):
        curves(axes[1], scenario(dim, kappa=kappa), authors, pulls, trials, label=f"kappa = {kappa}")
    for threshold in (0.5, 1.0, 2.0):
        curves(axes[2], scenario(dim, threshold=threshold), authors, pulls, trials, label=f"M = {threshold}")
    finish(figure, axes, out / "ablations.png")

    print("a better model arrives every fifth of the run")
    joins = {"RQ-Transformer": pulls // 5, "ADM": 2 * pulls // 5, "ADMG": 3 * pulls // 5, "DiT-XL-2": 4 * pulls // 5}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    curves(axes, scenario(dim, joins), ALGORITHMS, pulls, trials)
    finish(figure, axes, out / "new_models.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true", help="a short run, as in the tests")
    parser.add_argument("--paper", action="store_true", help="the paper's own size")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("paper_experiments"))
    main(**vars(parser.parse_known_args()[0]))  # a notebook has its own arguments
