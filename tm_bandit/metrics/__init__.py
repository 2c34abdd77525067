"""The streaming torchmetrics classes."""

from tm_bandit.metrics.base import Debiased, Interval, OptimisticMetric
from tm_bandit.metrics.fid import OptimisticFID
from tm_bandit.metrics.inception import OptimisticIS

__all__ = ["Debiased", "Interval", "OptimisticFID", "OptimisticIS", "OptimisticMetric"]
