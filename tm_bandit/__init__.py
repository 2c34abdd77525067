"""Pick the best generative model with the fewest samples."""

from tm_bandit.__about__ import __version__
from tm_bandit.metrics import OptimisticIS
from tm_bandit.selection import ModelSelector, SelectionResult

__all__ = ["ModelSelector", "OptimisticIS", "SelectionResult", "__version__"]
