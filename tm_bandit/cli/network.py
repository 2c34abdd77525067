"""The options that describe the feature network."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from tm_bandit.cli.specs import import_reference, is_python_reference
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
        WeightsError: if its weights cannot be had.
    """
    name = str(default) if arguments.feature is None else arguments.feature
    device = check_device(arguments.device)
    feature: Any = name
    if is_python_reference(name):
        feature = import_reference(name)
        if isinstance(feature, type) and issubclass(feature, torch.nn.Module):
            feature = _construct(feature, name)
        if not callable(feature):
            raise InputError(f"Expected --feature {name} to be a module or function, but got {type(feature).__name__}.")
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


def check_device(name: str) -> torch.device:
    """Return a device on which a tensor can be made.

    Raises:
        InputError: if there is no such device on this machine.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except Exception as error:  # torch raises RuntimeError, AssertionError or NotImplementedError, by device
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"Expected a device of this machine, but got --device {name} ({reason}).") from error
    return device


def _construct(cls: type[torch.nn.Module], name: str) -> torch.nn.Module:
    try:
        return cls()
    except Exception as error:  # whatever the user's constructor raises
        raise InputError(
            f"Expected --feature {name} to be made without arguments, but got {type(error).__name__}: {error}; "
            "point to a ready-made module instead."
        ) from error
