"""Feature networks: one small registry behind the ``feature=`` argument of the metrics."""

from tm_bandit.extractors.clip import Clip
from tm_bandit.extractors.extractor import (
    FIDELITY_NETWORKS,
    INCEPTION_LAYERS,
    NO_EXTRACTOR,
    Extractor,
    Network,
    NetworkHandle,
)
from tm_bandit.extractors.registry import resolve
from tm_bandit.extractors.scores import Score

__all__ = [
    "FIDELITY_NETWORKS",
    "INCEPTION_LAYERS",
    "NO_EXTRACTOR",
    "Clip",
    "Extractor",
    "Network",
    "NetworkHandle",
    "Score",
    "resolve",
]
