"""The streaming torchmetrics classes."""

from tm_bandit.metrics.base import Debiased, Interval, OptimisticMetric, missing_parts
from tm_bandit.metrics.fid import OptimisticFID
from tm_bandit.metrics.inception import OptimisticIS
from tm_bandit.metrics.traits import Traits

__all__ = ["Debiased", "Interval", "OptimisticFID", "OptimisticIS", "OptimisticMetric", "Traits", "missing_parts"]
