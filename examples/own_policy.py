"""Can I write a policy of my own, and is it any good?
===================================================

Write your own policy in ten lines and race it against the built-in ones.

A policy sees numbers (an ``ArmStats`` per arm) and answers with a name. This one spends on the arm that looks best,
but every third pull goes to the arm that was pulled least::

    python examples/own_policy.py [--fast]
"""

import argparse

import torch

from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics, SelectionResult
from tm_bandit.policies import Policy


class EveryThird(Policy):
    needs = frozenset({"witness"})

    def choose(self, arms, rng):
        if sum(arm.pulls for arm in arms) % 3 == 0:
            return min(arms, key=lambda arm: arm.num_samples).name
        return min(arms, key=lambda arm: arm.witness).name


def gaussian(shift: float, dim: int):
    """A sampler of Gaussian features whose true FD to the standard normal is ``dim * shift**2``."""
    return lambda num_samples, generator: shift + torch.randn(num_samples, dim, generator=generator)


def main(fast: bool) -> SelectionResult:
    dim = 16
    reference = ReferenceStatistics(torch.zeros(dim), torch.eye(dim), num_samples=50_000)
    arms = {f"shift {shift}": gaussian(shift, dim) for shift in (0.9, 0.5, 0.7, 0.3, 0.4)}
    budget = 300 if fast else 2000
    for policy in ("ucb", "lucb", "thompson", "uniform", EveryThird()):
        selector = ModelSelector(
            metric=OptimisticFID(feature="none", reference=reference),
            arms=arms,
            policy=policy,
            samples="features",
            batch_size=5,
            budget=budget,
        )
        result = selector.run(progress=False)
        share = result.num_samples["shift 0.3"] / result.total_samples
        name = policy if isinstance(policy, str) else type(policy).__name__
        print(f"{name:12} recommends {result.best!r:12} and spent {share:4.0%} of {budget} samples on the best arm")
    return result  # of the last policy, our own


if __name__ == "__main__":
    torch.set_num_threads(1)  # a small network: on a busy machine, threads would wait for each other
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true", help="a short run, as in the tests")
    result = main(**vars(parser.parse_known_args()[0]))  # a notebook has its own arguments
