"""From the ``feature=`` argument of a metric to an extractor."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch import nn

from tm_bandit._arguments import check_path
from tm_bandit.errors import InputError, InputTypeError
from tm_bandit.extractors.extractor import FIDELITY_NETWORKS, INCEPTION_LAYERS, NO_EXTRACTOR, Extractor, Network


def resolve(
    feature: int | str | nn.Module | Callable[[Any], Any] | Extractor | None,
    *,
    weights_path: str | os.PathLike[str] | None = None,
    normalize: bool = False,
    antialias: bool = True,
) -> Extractor:
    """Return the extractor that ``feature`` stands for.

    Args:
        feature: a layer of the FID Inception network (64, 192, 768, 2048, ``"logits_unbiased"``, ``"logits"``); the
            name of another torch-fidelity network (``"clip-vit-l-14"``, ``"dinov2-vit-l-14"``, ``"vgg16"``, ...); any
            module or callable that turns a batch into ``(N, d)`` features; ``"none"`` (or ``None``) for features that
            are computed elsewhere; a :class:`Network` (such as :class:`Clip`); or an :class:`Extractor`, which is
            returned as it is.
        weights_path: file with the weights of a named network, for machines without internet.
        normalize: whether images are floats in [0, 1] rather than uint8.
        antialias: whether Inception's resize smooths before it samples, as torchmetrics does by default. The original
            TensorFlow resize, which most published reference files were made with, is ``False``.

    Raises:
        InputError: if ``feature`` is none of the above.
        WeightsError: if the weights of a named network cannot be found or fetched.

    Example:
        >>> resolve("none").name
        'none'
    """
    if not isinstance(normalize, bool) or not isinstance(antialias, bool):
        raise InputError(f"Expected `normalize` and `antialias` to be bools, but got {normalize!r} and {antialias!r}.")
    if isinstance(feature, Extractor):
        return feature
    if isinstance(feature, Network):
        size = getattr(feature, "num_features", None)
        return Extractor(feature, feature.label, num_features=size, normalize=normalize)
    weights_path = None if weights_path is None else check_path("feature_extractor_weights_path", weights_path)
    if feature is None or (isinstance(feature, str) and feature == NO_EXTRACTOR):
        return Extractor(None, NO_EXTRACTOR)
    if isinstance(feature, nn.Module):
        name = f"module:{type(feature).__name__}"
        return Extractor(Network(feature, name), name, num_features=_size_of(feature), normalize=normalize)
    if isinstance(feature, (int, str)) and not isinstance(feature, bool):
        return _named(str(feature), weights_path, normalize=normalize, antialias=antialias)
    if callable(feature):
        name = f"callable:{getattr(feature, '__qualname__', type(feature).__name__)}"
        return Extractor(Network(feature, name), name, normalize=normalize)
    raise InputTypeError(f"Expected `feature` to be {_choices()}, but got {feature!r}.")


def _named(key: str, weights_path: str | os.PathLike[str] | None, *, normalize: bool, antialias: bool) -> Extractor:
    """Build one of the named networks."""
    # Imported here: torch-fidelity drags torchvision along, which is not needed for ready-made features or a module.
    if key in INCEPTION_LAYERS:
        from tm_bandit.extractors.inception_network import inception_network

        network = inception_network(weights_path, antialias=antialias, layer=key)
        name = f"inception-v3-compat/{key}" + ("+antialias" if antialias else "")
        size = INCEPTION_LAYERS[key]
        return Extractor(network, name, layer=key, num_features=size, images=True, normalize=normalize)
    if key in FIDELITY_NETWORKS:
        from tm_bandit.extractors.fidelity import fidelity_network

        other = fidelity_network(key, weights_path)
        return Extractor(other, key, num_features=other.num_features, images=True, normalize=normalize)
    # As in torchmetrics: a number may be another layer's, a word is of the wrong kind, too.
    unknown = InputError if key.removeprefix("-").isdecimal() else InputTypeError
    raise unknown(f"Expected `feature` to be {_choices()}, but got {key!r}.")


def _choices() -> str:
    layers, others = ", ".join(INCEPTION_LAYERS), ", ".join(FIDELITY_NETWORKS)
    return (
        f"a layer of the Inception network ({layers}), the name of another network ({others}), a module or "
        'callable that returns (N, d) features, or "none" for features that you compute yourself'
    )


def _size_of(module: nn.Module) -> int | None:
    """Read the length of a module's rows from ``num_features``, the attribute that torchmetrics looks at."""
    size = getattr(module, "num_features", None)
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None
