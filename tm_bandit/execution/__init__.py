"""Who carries out pulls: from a pull to the rows of its samples."""

from tm_bandit.execution.local import Sampler, carry_out, takes_generator
from tm_bandit.execution.rng import preserved_rng, stable_seed

__all__ = ["Sampler", "carry_out", "preserved_rng", "stable_seed", "takes_generator"]
