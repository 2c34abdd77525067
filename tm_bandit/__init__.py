"""Pick the best generative model with the fewest samples."""

from tm_bandit.__about__ import __version__
from tm_bandit.metrics import OptimisticFID, OptimisticIS
from tm_bandit.reference import ReferenceStatistics
from tm_bandit.selection import ModelSelector, SelectionResult

__all__ = ["ModelSelector", "OptimisticFID", "OptimisticIS", "ReferenceStatistics", "SelectionResult", "__version__"]
