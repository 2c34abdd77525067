"""The files in which FID and KID tools keep a mean, a covariance and rows: two formats, one content."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tm_bandit._files import atomic_write
from tm_bandit._npz import read_header, read_member
from tm_bandit._weights_file import check_claims, is_archive
from tm_bandit.errors import InputError
from tm_bandit.functional.moments import check_width

_KEYS = ("mu", "sigma", "num_samples", "extractor", "feats")


class StoredStatistics(NamedTuple):
    """What a file says; other tools' files hold either moments or rows, and nothing else."""

    mean: np.ndarray[Any, Any]
    covariance: np.ndarray[Any, Any]
    num_samples: int | None = None
    extractor: str | None = None
    rows: np.ndarray[Any, Any] | None = None


def read_statistics(path: Path) -> StoredStatistics:
    """Read ``.npz`` (pytorch-fid, clean-fid, guided-diffusion) or ``.pt`` (torch-fidelity's cache).

    Nothing but arrays, numbers and strings is unpickled, so a file from elsewhere can do no harm.

    Args:
        path: the file.

    Raises:
        InputError: if there is no such file, it cannot be read, or it holds no statistics.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # opening a pipe would wait forever
        raise InputError(f"Expected a reference file, but {path} is not a regular file.")
    try:
        content = _read_pt(path) if path.suffix.lower() == ".pt" else _read_npz(path)
    except FileNotFoundError as error:
        raise InputError(f"Expected a reference file, but there is none at {path}.") from error
    except Exception as error:  # a damaged file makes numpy, torch, zipfile and pickle raise nearly everything
        # torch's advice on unsafe pickles is a page long; the first sentence is enough.
        reason = " ".join(str(error).split()).split(". ")[0]
        raise InputError(
            f"Expected a .npz or .pt file with `mu` and `sigma`, but could not read {path}: {reason}"
        ) from error
    rows = content.get("feats")
    if not {"mu", "sigma"} <= set(content):
        if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "fiu" or rows.ndim != 2 or len(rows) < 2:
            found = ", ".join(map(str, content)) or "a plain array"
            raise InputError(
                f"Expected arrays `mu` and `sigma`, or rows in `feats`, in {path}, but got {found}; make a reference "
                "file with `tm-bandit stats` or `ReferenceStatistics.from_images(...).save(path)`."
            )
        check_width(rows.shape[1])
        exact = rows.astype(np.float64)  # clean-fid's files for KID hold nothing but rows
        content = {**content, "mu": exact.mean(0), "sigma": np.cov(exact, rowvar=False), "num_samples": len(rows)}
    count, name = content.get("num_samples"), content.get("extractor")
    if isinstance(count, (np.ndarray, np.generic)) and count.ndim == 0:
        count = count.item()  # a plain number, whatever kind of number it is; checked by the caller
    try:
        mean, sigma = np.atleast_1d(content["mu"]), np.atleast_2d(content["sigma"])
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"Expected arrays of numbers in {path}, but got something else ({error}).") from error
    return StoredStatistics(mean, sigma, count, None if name is None else str(name), rows)


def write_statistics(path: Path, statistics: StoredStatistics) -> None:
    """Write ``.pt`` as torch-fidelity reads it, or else ``.npz`` as all the others do.

    Args:
        path: the file.
        statistics: its content.
    """
    content: dict[str, Any] = {"mu": statistics.mean, "sigma": statistics.covariance}
    more = {"num_samples": statistics.num_samples, "extractor": statistics.extractor, "feats": statistics.rows}
    content |= {name: value for name, value in more.items() if value is not None}
    with atomic_write(path) as temporary:
        if path.suffix.lower() == ".pt":
            # torch-fidelity refuses to compare a float64 mean with its own, which is float32: ours goes next to it.
            content["mean"] = statistics.mean
            content["mu"] = statistics.mean.astype(np.float32)
            torch.save(content, temporary)
        else:
            np.savez(temporary, **content)


def _read_npz(path: Path) -> Mapping[str, Any]:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:  # a plain array holds no statistics; anything else is for numpy to judge
            read_header(file)
        return {}
    with zipfile.ZipFile(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        # Sample files are large: of other arrays, only the names are read.
        return {name: read_member(archive, member) if name in _KEYS else None for name, member in members.items()}


def _read_pt(path: Path) -> Mapping[str, Any]:
    # What an array and a number are pickled with; the functions' own names differ between versions of numpy.
    is_archive(path)
    kinds: list[Any] = [np.ndarray, np.dtype, np.zeros(1).__reduce__()[0], np.float64(0).__reduce__()[0]]
    kinds += [type(np.dtype(kind)) for kind in (np.float16, np.float32, np.float64, np.int64)]
    with torch.serialization.safe_globals(kinds):
        content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        return {}
    check_claims(path, content, harmless=2**20)
    return {**content, "mu": content["mean"]} if "mean" in content else content
