"""The streaming torchmetrics classes."""

from tm_bandit.metrics.base import Debiased, Interval, OptimisticMetric, missing_parts
from tm_bandit.metrics.fid import OptimisticFID
from tm_bandit.metrics.inception import OptimisticIS
from tm_bandit.metrics.kid import OptimisticKID
from tm_bandit.metrics.mean import OptimisticMean
from tm_bandit.metrics.traits import Traits

__all__ = [
    "Debiased",
    "Interval",
    "OptimisticFID",
    "OptimisticIS",
    "OptimisticKID",
    "OptimisticMean",
    "OptimisticMetric",
    "Traits",
    "missing_parts",
]
