"""Arms that are nothing but numbers."""

import random

from tm_bandit.policies import ArmStats, Board

RNG = random.Random(0)


def arm(name, n=10, **numbers):
    return ArmStats(name, n // 5, n, **numbers)


def chosen(policy, *arms, rng=RNG, **kwargs):
    """The policy's answer to a board with these arms."""
    return policy.choose(Board(arms, **kwargs), rng)
