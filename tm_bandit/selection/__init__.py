"""The selection engine and its result."""

from tm_bandit.report.result import SelectionResult
from tm_bandit.selection.selector import ModelSelector

__all__ = ["ModelSelector", "SelectionResult"]
