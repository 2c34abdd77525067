"""Which arm to pull next: small objects over plain numbers."""

from tm_bandit.policies.base import ArmStats, Policy, at_equal_n
from tm_bandit.policies.baselines import EpsilonGreedy, Greedy, Random, Thompson, Uniform
from tm_bandit.policies.best_arm import LUCB, SuccessiveHalving, TopTwo
from tm_bandit.policies.registry import POLICIES, make_policy
from tm_bandit.policies.ucb import UCB

__all__ = [
    "LUCB",
    "POLICIES",
    "UCB",
    "ArmStats",
    "EpsilonGreedy",
    "Greedy",
    "Policy",
    "Random",
    "SuccessiveHalving",
    "Thompson",
    "TopTwo",
    "Uniform",
    "at_equal_n",
    "make_policy",
]
