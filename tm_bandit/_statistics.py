"""The files in which FID tools keep a mean and a covariance: two formats, one content."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tm_bandit._files import atomic_write
from tm_bandit.errors import InputError

_KEYS = ("mu", "sigma", "num_samples", "extractor")


class StoredStatistics(NamedTuple):
    """What a file says; other tools' files do not know the last two."""

    mean: np.ndarray[Any, Any]
    covariance: np.ndarray[Any, Any]
    num_samples: int | None = None
    extractor: str | None = None


def read_statistics(path: Path) -> StoredStatistics:
    """Read ``.npz`` (pytorch-fid, clean-fid, guided-diffusion) or ``.pt`` (torch-fidelity's cache).

    Nothing but arrays, numbers and strings is unpickled, so a file from elsewhere can do no harm.

    Args:
        path: the file.

    Raises:
        InputError: if there is no such file, it cannot be read, or it holds no statistics.
    """
    try:
        content = _read_pt(path) if path.suffix.lower() == ".pt" else _read_npz(path)
    except FileNotFoundError as error:
        raise InputError(f"Expected a reference file, but there is none at {path}.") from error
    except (OSError, ValueError, EOFError, RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        # torch's advice on unsafe pickles is a page long; the first sentence is enough.
        reason = " ".join(str(error).split()).split(". ")[0]
        raise InputError(
            f"Expected a .npz or .pt file with `mu` and `sigma`, but could not read {path}: {reason}"
        ) from error
    if not {"mu", "sigma"} <= set(content):
        found = ", ".join(map(str, content)) or "a plain array"
        raise InputError(
            f"Expected arrays `mu` and `sigma` in {path}, but got {found}; make a reference file with "
            "`tm-bandit stats` or `ReferenceStatistics.from_images(...).save(path)`."
        )
    count, name = content.get("num_samples"), content.get("extractor")
    return StoredStatistics(
        np.atleast_1d(content["mu"]),
        np.atleast_2d(content["sigma"]),
        None if count is None else int(count),
        None if name is None else str(name),
    )


def write_statistics(path: Path, statistics: StoredStatistics) -> None:
    """Write ``.pt`` as torch-fidelity reads it, or else ``.npz`` as all the others do.

    Args:
        path: the file.
        statistics: its content.
    """
    content: dict[str, Any] = {"mu": statistics.mean, "sigma": statistics.covariance}
    if statistics.num_samples is not None:
        content["num_samples"] = statistics.num_samples
    if statistics.extractor is not None:
        content["extractor"] = statistics.extractor
    with atomic_write(path) as temporary:
        if path.suffix.lower() == ".pt":
            # torch-fidelity refuses to compare a float64 mean with its own, which is float32: ours goes beside it.
            content["mean"] = statistics.mean
            content["mu"] = statistics.mean.astype(np.float32)
            torch.save(content, temporary)
        else:
            np.savez(temporary, **content)


def _read_npz(path: Path) -> Mapping[str, Any]:
    # Opened here, because numpy leaves the file open when it cannot make sense of it.
    with path.open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            return {}
        # Sample files are large: of arrays that are none of ours, only the names are read.
        return {key: stored[key] if key in _KEYS else None for key in stored.files}


def _read_pt(path: Path) -> Mapping[str, Any]:
    # What an array and a number are pickled with; the functions' own names differ between versions of numpy.
    kinds: list[Any] = [np.ndarray, np.dtype, np.zeros(1).__reduce__()[0], np.float64(0).__reduce__()[0]]
    kinds += [type(np.dtype(kind)) for kind in (np.float16, np.float32, np.float64, np.int64)]
    with torch.serialization.safe_globals(kinds):
        content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        return {}
    return {**content, "mu": content["mean"]} if "mean" in content else content
