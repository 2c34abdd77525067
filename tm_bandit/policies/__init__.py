"""Which arm to pull next: small objects over plain numbers."""

from tm_bandit.policies.base import ArmStats, Policy
from tm_bandit.policies.baselines import EpsilonGreedy, Greedy, Random, Thompson, Uniform
from tm_bandit.policies.best_arm import LUCB, SuccessiveHalving, TopTwo
from tm_bandit.policies.board import Board, compare
from tm_bandit.policies.registry import POLICIES, make_policy
from tm_bandit.policies.ucb import UCB

__all__ = [
    "LUCB",
    "POLICIES",
    "UCB",
    "ArmStats",
    "Board",
    "EpsilonGreedy",
    "Greedy",
    "Policy",
    "Random",
    "SuccessiveHalving",
    "Thompson",
    "TopTwo",
    "Uniform",
    "compare",
    "make_policy",
]
