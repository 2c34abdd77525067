"""The other image networks of torch-fidelity: CLIP, DINOv2 and VGG16."""

from __future__ import annotations

import os
import warnings
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tm_bandit.extractors import weights
from tm_bandit.extractors.extractor import FIDELITY_NETWORKS, Network, start_precision_at

_VGG16_URL = "https://download.pytorch.org/models/vgg16-397923af.pth"
_DINOV2_REPOSITORY = "facebookresearch/dinov2"
_DINOV2_URL = "https://dl.fbaipublicfiles.com/dinov2"
#: What the networks were trained with.
_DINOV2_SIDE = 224
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)

_in_use: weakref.WeakValueDictionary[tuple[str, str], FidelityNetwork] = weakref.WeakValueDictionary()


class FidelityNetwork(Network):
    """One of torch-fidelity's extractors, which take uint8 images and return a tuple of features."""

    @property
    def num_features(self) -> int:
        """Length of a row: read from the network if it says so, else known from its name."""
        visual = getattr(getattr(self.function, "model", None), "visual", None)
        size = getattr(visual, "output_dim", None)
        return size if isinstance(size, int) else FIDELITY_NETWORKS[self.label]

    def forward(self, inputs: Any, layer: str | None = None) -> Tensor:
        """Return the features of images: uint8, or floats in [0, 1].

        Args:
            inputs: shape ``(N, 3, H, W)``.
            layer: these networks have one output only.
        """
        images = (inputs * 255).byte() if inputs.is_floating_point() else inputs
        module: Any = self.function
        device = next(module.parameters()).device
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            rows: Tensor = module(images.to(device))[0]
        return rows


class _Dinov2(nn.Module):
    """A DINOv2 backbone behind torch-fidelity's preprocessing; torch-fidelity itself cannot read a local file."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.eval()
        self.requires_grad_(False)

    def forward(self, images: Tensor) -> tuple[Tensor]:
        from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x

        size = (_DINOV2_SIDE, _DINOV2_SIDE)
        pixels = interpolate_bilinear_2d_like_tensorflow1x(images.float(), size=size, align_corners=False)
        mean, std = (255 * pixels.new_tensor(values).view(3, 1, 1) for values in (_IMAGENET_MEAN, _IMAGENET_STD))
        return (self.model(((pixels - mean) / std).to(next(self.model.parameters()).dtype)).float(),)


def fidelity_network(name: str, path: str | os.PathLike[str] | None) -> FidelityNetwork:
    """Return the named network: the one already in use, if there is one.

    Args:
        name: name in torch-fidelity's registry.
        path: file of weights; ``None`` for the published ones, which are downloaded unless torch's cache has them.
            VGG16 takes torchvision's file and CLIP the TorchScript file of OpenAI; only its tensors are read.
            DINOv2 takes the folder of a clone of its repository, whose code is run.

    Raises:
        WeightsError: if the weights cannot be found, fetched or used.
    """
    file, source = _origin(name)
    found = None if path is None else weights.check_path(path, name, file, source)
    key = (name, "" if found is None else f"{found.resolve()}@{found.stat().st_mtime_ns}")
    network = _in_use.get(key)
    if network is None:
        try:
            module = _build(name, found)
        except Exception as error:  # torch raises nearly everything for files that are not its own
            weights.refuse(name, file, source, error)
        network = _in_use[key] = FidelityNetwork(module, name)
    return network


def _origin(name: str) -> tuple[str, str]:
    """Return the file that holds the published weights, and where it comes from."""
    if name == "vgg16":
        return _VGG16_URL.rsplit("/", 1)[1], _VGG16_URL
    if name.startswith("clip-"):
        from torch_fidelity.feature_extractor_clip import MODEL_METADATA, MODEL_URLS

        return f"{name}-{MODEL_METADATA[name]['hash']}.pt", str(MODEL_URLS[name])
    model = _dinov2_model(name)
    return f"{model}_pretrain.pth", f"{_DINOV2_URL}/{model}/{model}_pretrain.pth"


def _dinov2_model(name: str) -> str:
    from torch_fidelity.feature_extractor_dinov2 import MODEL_METADATA

    return str(MODEL_METADATA[name])


def _build(name: str, path: Path | None) -> nn.Module:
    """Make one of torch-fidelity's extractors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        if name == "vgg16":
            return _vgg16(path)
        return _clip(name, path) if name.startswith("clip-") else _dinov2(name, path)


def _clip(name: str, path: Path | None) -> nn.Module:
    from torch_fidelity.feature_extractor_base import FeatureExtractorBase
    from torch_fidelity.feature_extractor_clip import FeatureExtractorCLIP, build_model

    cached = weights.hub_folder() / _origin(name)[0]
    found = cached if path is None and cached.is_file() else path
    if found is None:  # torch-fidelity checks the hash of what it downloads
        return _module(FeatureExtractorCLIP(name, ["clip"], verbose=False))

    class FromTensors(FeatureExtractorCLIP):  # type: ignore[misc]
        """torch-fidelity runs the code of a file to get its tensors. Here it is given only the tensors."""

        def __init__(self, state: dict[str, Tensor]) -> None:
            FeatureExtractorBase.__init__(self, name, ["clip"])
            self.feature_extractor_internal_dtype = torch.float32
            self.model = build_model(state, torch.float32)
            self.resolution = self.model.visual.input_resolution
            self.requires_grad_(False)

    return _module(FromTensors(weights.load_tensors(found)))


def _vgg16(path: Path | None) -> nn.Module:
    from torch_fidelity.feature_extractor_vgg16 import FeatureExtractorVGG16

    if path is None:
        return _module(FeatureExtractorVGG16("vgg16", ["fc2_relu"], verbose=False))
    # torch-fidelity unpickles (or runs) whatever a file holds, so first check that it holds nothing but tensors.
    if weights.is_torchscript(path):
        raise ValueError(f"{path} is a TorchScript archive")
    weights.load_tensors(path)
    return _module(FeatureExtractorVGG16("vgg16", ["fc2_relu"], str(path)))


def _dinov2(name: str, path: Path | None) -> nn.Module:
    if path is None:
        from torch_fidelity.feature_extractor_dinov2 import FeatureExtractorDinoV2

        return _module(FeatureExtractorDinoV2(name, ["dinov2"]))
    if path.is_dir():
        return _Dinov2(torch.hub.load(str(path), _dinov2_model(name), source="local"))  # type: ignore[no-untyped-call]
    raise ValueError(
        f"{path} is not a clone of https://github.com/{_DINOV2_REPOSITORY}, and weights without a network are "
        "not enough; a TorchScript file would run its own code: if you trust it, pass feature=torch.jit.load(path)"
    )


def _module(extractor: Any) -> nn.Module:
    """Give torch-fidelity's untyped extractors a type, and leave them in evaluation mode."""
    module: nn.Module = extractor
    start_precision_at(getattr(extractor.model, "visual", extractor.model))
    return module.eval()
