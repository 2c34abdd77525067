"""Pick the best generative model with the fewest samples."""

from tm_bandit.__about__ import __version__

__all__ = ["__version__"]
