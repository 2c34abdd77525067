"""The options that describe the feature network."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from tm_bandit._device import check_device
from tm_bandit.cli.specs import import_callable, is_python_reference, make_object
from tm_bandit.errors import InputError, WeightsError
from tm_bandit.extractors import NO_EXTRACTOR, Extractor, resolve


def make_extractor(arguments: argparse.Namespace, default: str | int) -> Extractor:
    """Build the network that ``--feature`` names and put it on ``--device``.

    ``package.module:name`` may be a module, a class of modules that needs no arguments, or a function from a batch of
    images to rows of features.

    Args:
        arguments: the parsed command line.
        default: the network if ``--feature`` was not given.

    Raises:
        InputError: if there is no such network, weights file or device.
        WeightsError: if its weights cannot be found or fetched.
    """
    name = str(default) if arguments.feature is None else arguments.feature
    device = check_device(arguments.device)
    feature: Any = name
    if is_python_reference(name):
        feature = import_callable(name, "--feature", "a module or function")
        if isinstance(feature, type) and issubclass(feature, torch.nn.Module):
            feature = make_object(feature, name)
    if arguments.weights is not None and not Path(arguments.weights).is_file():
        raise InputError(f"Expected a file with weights, but there is none at {arguments.weights}; check --weights.")
    try:
        extractor = resolve(
            feature,
            weights_path=arguments.weights,
            normalize=arguments.normalize and name != NO_EXTRACTOR,
            antialias=not arguments.no_antialias,
        )
    except WeightsError as error:
        raise WeightsError(str(error).replace("`feature_extractor_weights_path`", "--weights")) from error
    return extractor.to(device)
