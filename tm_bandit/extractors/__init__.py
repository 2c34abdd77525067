"""Feature networks: one small registry behind the ``feature=`` argument of the metrics."""

from tm_bandit.extractors.base import (
    FIDELITY_NETWORKS,
    INCEPTION_LAYERS,
    NO_EXTRACTOR,
    Extractor,
    Network,
    NetworkHandle,
)
from tm_bandit.extractors.registry import resolve

__all__ = ["FIDELITY_NETWORKS", "INCEPTION_LAYERS", "NO_EXTRACTOR", "Extractor", "Network", "NetworkHandle", "resolve"]
