"""The baseline policies."""

import random

from tests.policies.parts import arm, chosen
from tm_bandit.policies import Board, EpsilonGreedy, Thompson, Uniform


def test_thompson_draws_follow_the_standard_error():
    arms = [arm("a", witness=0.0, stderr=1.0), arm("b", witness=1.0, stderr=1.0)]
    rng = random.Random(1)
    share = sum(Thompson(1.0).choose(Board(arms), rng) == "a" for _ in range(4000)) / 4000
    # P(N(0,1) < N(1,1)) = Phi(1 / sqrt 2) = 0.7602; the tolerance is four standard errors.
    assert abs(share - 0.7602) < 0.027
    assert Thompson(0.0).choose(Board(arms), rng) == "a"


def test_epsilon_is_the_share_of_random_pulls():
    arms = [arm("a", estimate=0.0), arm("b", estimate=1.0)]
    rng = random.Random(1)
    share = sum(EpsilonGreedy(0.4).choose(Board(arms), rng) == "b" for _ in range(4000)) / 4000
    assert abs(share - 0.2) < 0.026
    assert EpsilonGreedy(0.0).choose(Board(arms), rng) == "a"


def test_round_robin_counts_what_is_under_way():
    arms = [arm("a", 10), arm("b", 15)]
    assert chosen(Uniform(), *arms) == "a"
    assert chosen(Uniform(), *arms, pending={"a": 10}) == "b"
