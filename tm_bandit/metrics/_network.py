"""How both metrics hold their feature network: shared, outside the metric's own parameters and state."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from tm_bandit._device import exact_device
from tm_bandit.extractors import Extractor, NetworkHandle, resolve


class FeatureNetworkMixin(Metric):
    """Gives a metric an extractor that clones share, that follows ``.to``, and that is not saved with the metric.

    Subclasses call :meth:`_hold_network` in their constructor and get :meth:`_extract_rows`.
    """

    #: The attribute through which torchmetrics' ``FeatureShare`` finds, and replaces, the network.
    feature_network: str = "inception"
    inception: Any
    _extractor: Extractor

    def _hold_network(
        self,
        feature: Any,
        *,
        weights_path: str | os.PathLike[str] | None,
        normalize: bool,
        antialias: bool,
    ) -> None:
        """Resolve ``feature=`` and keep what it stands for."""
        self._extractor = resolve(feature, weights_path=weights_path, normalize=normalize, antialias=antialias)
        network = self._extractor.network
        self.inception = None if network is None else NetworkHandle(network)

    def drop_network(self) -> None:
        """Keep the statistics only: rows come ready-made from now on, and moving this metric moves no network."""
        held = self._extractor
        self._extractor = Extractor(None, held.name, num_features=held.num_features)
        self.inception = None

    def _extract_rows(self, inputs: Any) -> Tensor:
        """Run the network, or the cache that ``FeatureShare`` put in its place."""
        return self._extractor(inputs, self.inception)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        """Move states and network together; states stay on the CPU where the target has no float64."""
        target = fn(torch.zeros(1, device=self.device)).device
        if exact_device(target) == target:
            super()._apply(fn, exclude_state)
        self._extractor.follow(target)
        return self
