"""What a selection found, and how it is shown. Nothing here knows the engine, the metrics or torch."""

from tm_bandit.report.result import SelectionResult

__all__ = ["SelectionResult"]
