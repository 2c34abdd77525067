"""Which arm to pull next: small objects over plain numbers."""

from tm_bandit.policies.baselines import EpsilonGreedy, Greedy, Random, Thompson, Uniform
from tm_bandit.policies.best_arm import LUCB, SuccessiveHalving
from tm_bandit.policies.board import Board, compare
from tm_bandit.policies.by_name import POLICIES, make_policy
from tm_bandit.policies.policy import ArmStats, Policy
from tm_bandit.policies.race import Race
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
    "Race",
    "Random",
    "SuccessiveHalving",
    "Thompson",
    "Uniform",
    "compare",
    "make_policy",
]
