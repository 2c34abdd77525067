"""What every feature network looks like to the rest of the package, whatever it is made of."""

from __future__ import annotations

import hashlib
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tm_bandit._device import check_dense, form_of
from tm_bandit.errors import InputError

#: Name of the extractor that extracts nothing: rows were computed elsewhere, by an unknown network.
NO_EXTRACTOR = "none"


#: Layers of the FID Inception network, as torchmetrics and torch-fidelity call them, and their sizes.
INCEPTION_LAYERS = {"64": 64, "192": 192, "768": 768, "2048": 2048, "logits_unbiased": 1008, "logits": 1008}

#: Other networks that torch-fidelity provides by name, with the length of their rows.
FIDELITY_NETWORKS = {
    "clip-rn50": 1024,
    "clip-rn101": 512,
    "clip-rn50x4": 640,
    "clip-rn50x16": 768,
    "clip-rn50x64": 1024,
    "clip-vit-b-32": 512,
    "clip-vit-b-16": 512,
    "clip-vit-l-14": 768,
    "clip-vit-l-14-336px": 768,
    "dinov2-vit-s-14": 384,
    "dinov2-vit-b-14": 768,
    "dinov2-vit-l-14": 1024,
    "dinov2-vit-g-14": 1536,
    "vgg16": 4096,
}

#: By the id of a module: how many callers have it in evaluation mode, and which of its parts were in training mode.
_evaluated: dict[int, tuple[int, list[nn.Module]]] = {}
_changing_modes = threading.Lock()


class Network:
    """A feature network that any number of metrics share: never copied, never part of a metric's ``state_dict``.

    It is deliberately not a :class:`~torch.nn.Module`: a module held by a metric would be copied with each ``clone``,
    saved with each checkpoint and handed to the optimizer together with the user's own parameters.

    Args:
        function: what is called with a batch: a module or any callable that returns an ``(N, d)`` tensor.
        label: what the network is called in messages; two networks with the same label count as the same.
    """

    def __init__(self, function: Callable[..., Any], label: str) -> None:
        self.function = function
        self.label = label

    def __call__(self, inputs: Any, layer: str | None = None) -> Any:
        """Run the network, see :meth:`forward`."""
        return self.forward(inputs, layer)

    def forward(self, inputs: Any, layer: str | None = None) -> Any:
        """Run the network on one batch, with gradients off and in evaluation mode.

        Args:
            inputs: a batch; tensors are moved to where the network is, floating ones get the network's dtype.
            layer: which of its outputs is wanted, for networks that have several.
        """
        module = self.module
        if module is None:
            with torch.no_grad():
                return self.function(inputs)
        if isinstance(inputs, Tensor):
            weight = next((p for p in module.parameters() if p.is_floating_point()), None)
            if weight is not None:
                inputs = inputs.to(weight.device, weight.dtype if inputs.is_floating_point() else None)
        with torch.no_grad(), evaluating(module):
            return module(inputs)

    @property
    def module(self) -> nn.Module | None:
        """The module inside, if there is one."""
        return self.function if isinstance(self.function, nn.Module) else None

    def to(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        """Move or convert the network's weights, for all metrics that share it."""
        if self.module is not None:
            self.module.to(device=device, dtype=dtype)

    def __eq__(self, other: object) -> bool:
        """Whether they call the same thing in the same way: metrics that are given one module make a network each."""
        return isinstance(other, Network) and type(other) is type(self) and other.function is self.function

    def __hash__(self) -> int:
        return hash((type(self), id(self.function)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Network:
        """Return the network itself: clones of a metric share it."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"


class RememberingNetwork(Network):
    """A network that remembers what it made of the latest batch: several metrics of it cost one pass."""

    _latest: tuple[Callable[[Tensor], bool], Tensor] | None = None

    def _remembered(self, inputs: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """Return what was made of this batch, or make it."""
        latest = self._latest  # another thread may replace it at any time
        if latest is None or not latest[0](inputs):
            latest = self._latest = recogniser(inputs), make()
        return latest[1]

    def to(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        """Move or convert the network; remembered features are dropped, as they are outdated."""
        super().to(device, dtype)
        self._latest = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the remembered batch behind: it recognises a tensor of this process."""
        return {**self.__dict__, "_latest": None}


class NetworkHandle:
    """One metric's handle on a network that it shares with others.

    torchmetrics' ``FeatureShare`` puts its cache into the ``forward`` of the object it is given. That cache
    identifies batches by their identity and keeps them alive, so it must stay with the metrics of that collection: it
    ends up in a handle.

    Args:
        network: the network to be called.
    """

    def __init__(self, network: Network) -> None:
        self.network = network

    def __call__(self, *args: Any) -> Any:
        """Run the network, through whatever ``forward`` has become."""
        return self.forward(*args)

    def forward(self, *args: Any) -> Any:
        """Run the network."""
        return self.network(*args)

    def __getstate__(self) -> dict[str, Any]:
        """Leave a cache behind when pickled."""
        return {"network": self.network}

    def __repr__(self) -> str:
        return repr(self.network)


@dataclass(eq=False, repr=False)
class Extractor:
    """Turns a batch of samples into rows of features: a view of one output of a :class:`Network`.

    Args:
        network: the network behind it; ``None`` if features come ready-made.
        name: what reference files record, so that statistics of different extractors are never compared.
        layer: which output of the network is wanted.
        num_features: length of a row, if it is known before the first batch.
        images: whether inputs must be RGB images, which are then checked and converted; else they are passed on as is.
        normalize: whether images are floats in [0, 1] rather than uint8.

    Example:
        >>> from tm_bandit.extractors import resolve
        >>> extractor = resolve(nn.Flatten())
        >>> extractor.name, extractor(torch.zeros(2, 3, 4, 4)).shape
        ('module:Flatten', torch.Size([2, 48]))
    """

    network: Network | None
    name: str
    _: KW_ONLY
    layer: str | None = None
    num_features: int | None = None
    images: bool = False
    normalize: bool = False
    pinned: bool = field(default=False, init=False)

    def __call__(self, inputs: Any, network: Callable[..., Any] | None = None) -> Tensor:
        """Return the ``(N, d)`` rows of ``inputs``.

        Args:
            inputs: a batch of samples: uint8 RGB images of shape ``(N, 3, H, W)`` for the named image networks (floats
                in [0, 1] with ``normalize=True``), and for modules and callables whatever they understand.
            network: a stand-in for the extractor's own network, as torchmetrics' ``FeatureShare`` installs it.

        Raises:
            InputError: if the inputs are not what the network expects, or it did not return ``(N, d)`` rows.
        """
        check_dense(inputs)
        if self.network is None:
            return check_output(inputs, inputs, self.name)
        self.check(inputs)
        # `FeatureShare` gives all metrics the network of the first, even if they have another one.
        run = network if network is not None and _behind(network) == self.network else self.network
        return check_output(run(inputs, self.layer), inputs, self.name)

    def check(self, inputs: Any) -> None:
        """Raise ``InputError`` unless ``inputs`` can be given to the network."""
        if self.images:
            check_images(inputs, normalize=self.normalize)
        elif self.normalize:
            check_unit_range(inputs)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Extractor:
        """Put the network on its own device, or into a dtype, for all metrics that share it.

        From then on it stays there, whatever device the metrics are moved to: inputs travel to the network.

        Args:
            device: where the network runs.
            dtype: its dtype; statistics are accumulated in float64 in any case.
        """
        if self.network is not None:
            self.network.to(None if device is None else torch.device(device), dtype)
        self.pinned = self.pinned or device is not None
        return self

    def follow(self, device: torch.device) -> None:
        """Move along with a metric, unless :meth:`to` gave the network its own device."""
        if self.network is not None and not self.pinned:
            self.network.to(device)

    def __deepcopy__(self, memo: dict[int, Any]) -> Extractor:
        """Return the extractor itself: twenty arms hold one network."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


def _behind(network: Any) -> Any:
    """Return the network that caches and handles lead to."""
    while not isinstance(network, Network) and hasattr(network, "network"):
        network = network.network
    return network


def check_images(images: Any, *, normalize: bool) -> None:
    """Raise ``InputError`` unless ``images`` is a batch of RGB images in the promised range.

    Args:
        images: what was given.
        normalize: whether floats in [0, 1] are promised, rather than uint8.
    """
    if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] != 3:
        raise InputError(
            f"Expected a batch of RGB images of shape (N, 3, H, W), but got {form_of(images)}; repeat the channel of "
            "grey images with `images.expand(-1, 3, -1, -1)`, and pass ready-made features to `update_features`."
        )
    if min(images.shape[2:]) == 0:
        raise InputError(f"Expected images with at least one pixel, but got shape {tuple(images.shape)}.")
    if normalize:
        check_unit_range(images)
    elif images.dtype != torch.uint8:
        raise InputError(
            f"Expected uint8 images in [0, 255], but got {images.dtype}; construct the metric with `normalize=True` "
            "(--normalize on the command line) for floats in [0, 1], or convert them with `(images * 255).byte()`."
        )


def check_unit_range(images: Any) -> None:
    """Raise ``InputError`` unless ``images`` are floats in [0, 1]."""
    if not isinstance(images, Tensor) or not images.is_floating_point():
        got = images.dtype if isinstance(images, Tensor) else f"a {type(images).__name__}"
        raise InputError(f"Expected float images because of `normalize=True`, but got {got}; leave it out for uint8.")
    if images.numel() == 0:
        return
    low, high = (float(value) for value in torch.aminmax(images.detach()))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError("Expected images in [0, 1], but got NaN or infinite values; look at the sampler's output.")
    if low < 0.0 or high > 1.0:
        cure = "divide images in [0, 255] by 255" if high > 16.0 else "rescale [-1, 1] with `(images + 1) / 2`"
        raise InputError(
            f"Expected images in [0, 1] because of `normalize=True`, but got values from {low:.6g} to {high:.6g}; "
            f"{cure}, and clamp what a sampler overshoots."
        )


def check_output(rows: Any, inputs: Any, name: str) -> Tensor:
    """Return ``rows`` if a network's answer is one row of features per sample, else raise ``InputError``.

    Args:
        rows: what the network returned.
        inputs: what it was given.
        name: the extractor's name, for the message.
    """
    if not isinstance(rows, Tensor) or rows.ndim != 2:
        raise InputError(
            f"Expected the feature extractor {name!r} to return a tensor of shape (N, d), but got {form_of(rows)}; "
            "wrap the network in a module that returns one row of features per sample, and nothing else."
        )
    if isinstance(inputs, Sized) and len(inputs) != rows.shape[0]:
        raise InputError(
            f"Expected one row per sample of {name!r}, but got {rows.shape[0]} rows for {len(inputs)} samples; pool."
        )
    return rows.detach()


def start_precision_at(layer: nn.Module) -> None:
    """Let a network compute in its weights' dtype from ``layer`` on; what comes before it stays in single precision.

    Preprocessing written for float32, a resize above all, has no half precision on the CPU and is coarse elsewhere.

    Args:
        layer: the first part of the network that has weights.
    """
    layer.register_forward_pre_hook(_match_weights)


def _match_weights(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    dtype = next(layer.parameters()).dtype
    return tuple(value.to(dtype) for value in inputs)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put ``module`` into evaluation mode and restore the mode of each of its parts afterwards.

    Of several threads that run it at the same time, the last one restores.
    """
    with _changing_modes:
        callers, training = _evaluated.get(id(module), (0, []))
        training = [*training, *(part for part in module.modules() if part.training)]
        for part in training:
            part.training = False
        _evaluated[id(module)] = callers + 1, training
    try:
        yield
    finally:
        with _changing_modes:
            callers, training = _evaluated.pop(id(module))
            if callers > 1:
                _evaluated[id(module)] = callers - 1, training
            else:
                for part in training:
                    part.training = True


def recogniser(images: Tensor) -> Callable[[Tensor], bool]:
    """Return a test for "this is the same batch, unchanged" that does not keep the batch alive.

    Args:
        images: the batch.
    """
    if images.is_inference():
        # Inference tensors do not count their changes, so their content has to be compared.
        digest = _digest(images)
        return lambda other: other.is_inference() and _digest(other) == digest
    reference, version = weakref.ref(images), images._version
    return lambda other: reference() is other and not other.is_inference() and other._version == version


def _digest(images: Tensor) -> bytes:
    code = hashlib.blake2b(f"{images.dtype} {tuple(images.shape)}".encode())
    code.update(images.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return code.digest()
