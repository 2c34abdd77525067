"""Common samplers: a diffusers pipeline as an arm, and arms from a grid of its options."""

from tm_bandit.samplers.grid import grid
from tm_bandit.samplers.pipeline import PipelineSampler

__all__ = ["PipelineSampler", "grid"]
