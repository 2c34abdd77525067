"""Carrying out pulls: from a pull to the rows of its samples."""

from tm_bandit._guards import preserved_rng
from tm_bandit.execution.draw import Sampler, carry_out, stable_seed, takes_generator
from tm_bandit.execution.kit import Factory

__all__ = ["Factory", "Sampler", "carry_out", "preserved_rng", "stable_seed", "takes_generator"]
