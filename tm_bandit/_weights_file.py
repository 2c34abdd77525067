"""Files of weights: written so that they can be read back, read so that nothing in them runs."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tm_bandit.errors import ArmError

#: Where a file that this package wrote says whose weights it holds.
SIGNATURE = "tm_bandit"

#: Modules of a network, and how deep they are nested: a hundred times and ten times what is usual.
_MOST_MODULES, _DEEPEST = 100_000, 100

#: Bytes up to which a tensor may repeat its numbers; the largest layer of VGG16, when expanded, has 0.4 GB.
_HARMLESS = 2**30

#: The end of an archive: what the format calls the end of its list in its large form, where that is, and in its first
#: form. Each says where the list begins.
_TAIL = struct.Struct("<4s44xQ4s4xQ4x4s12xI2x")

#: The functions that rebuild a tensor. Every other name in a file stands for an object that is not needed here.
_REBUILD = frozenset({"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter"})


class WeightsFile(NamedTuple):
    """What a file of weights holds.

    Args:
        weights: tensors by their names in the module's ``state_dict``.
        tag: their :func:`content_tag`; empty if the file does not say.
        run: identity of the training that wrote the file; empty if the file does not say.
    """

    weights: dict[str, Tensor]
    tag: str = ""
    run: str = ""


def content_tag(weights: Mapping[str, Tensor]) -> str:
    """Return a text that is the same for the same weights, and different for different ones.

    Args:
        weights: tensors by name. The prefix that ``torch.compile`` puts into names is ignored.

    Example:
        >>> one = content_tag({"a": torch.zeros(2), "b": torch.ones(())})
        >>> one == content_tag({"b": torch.ones(()), "a": torch.zeros(2)})
        True
        >>> one == content_tag({"a": torch.zeros(2), "b": torch.zeros(())})
        False
    """
    digest = hashlib.blake2b(digest_size=16)
    named = [(plain_name(name), tensor) for name, tensor in weights.items()]
    for name, tensor in sorted(named, key=lambda item: item[0]):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        for part in _parts(tensor.detach()):
            flat = part.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            if flat.numel():
                digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _parts(tensor: Tensor) -> list[Tensor]:
    """Return the dense tensors that a tensor of any layout is made of."""
    if tensor.is_quantized:
        return [tensor.int_repr(), torch.tensor([tensor.q_scale(), tensor.q_zero_point()], dtype=torch.float64)]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def plain_name(name: str) -> str:
    """Return the name of a tensor without the prefix that ``torch.compile`` puts into it."""
    return name.replace("_orig_mod.", "")


def sign(checkpoint: dict[str, Any], weights: Mapping[str, Tensor], tag: str, run: str) -> None:
    """Write into a checkpoint, before it is saved, whose weights it holds.

    A module's own hooks may rename, drop or convert what is in ``state_dict``. Whatever is not there under its own name
    as it is in the module is kept in the signature as well. A tensor that is merely renamed takes no extra space:
    ``torch.save`` writes shared memory only once.

    Args:
        checkpoint: what will be saved; it is changed.
        weights: the module's tensors by name, the same ones that the checkpoint was made from.
        tag: their :func:`content_tag`.
        run: identity of the training.
    """
    found = checkpoint.get("state_dict")
    found = found if isinstance(found, Mapping) else {}
    extra = {name: tensor.detach() for name, tensor in weights.items() if not _same(found.get(name), tensor)}
    checkpoint[SIGNATURE] = {"run": run, "tag": tag, "names": list(weights), "weights": extra}


def _same(one: Any, two: Tensor) -> bool:
    if not isinstance(one, Tensor) or one.shape != two.shape or one.dtype != two.dtype:
        return False
    if one.layout != torch.strided or two.layout != torch.strided:
        return one is two
    return one.data_ptr() == two.data_ptr() and one.stride() == two.stride()


def read_weights(path: str | os.PathLike[str], key: str = "state_dict") -> dict[str, Tensor]:
    """Read the weights of one checkpoint file; nothing in it is run.

    Args:
        path: a .ckpt file of Lightning, or a .pt or .safetensors file that holds a bare ``state_dict``.
        key: ``"state_dict"``, or ``"current_model_state"`` for the raw weights next to averaged ones.

    Raises:
        ArmError: if the file is missing, is not a checkpoint, cannot be read, or lacks ``key``.
    """
    return read_file(path, key).weights


def read_file(path: str | os.PathLike[str], key: str = "state_dict") -> WeightsFile:
    """Read the weights of one checkpoint file, and whose they are.

    The file is mapped into memory if its format allows it: processes that read the same arm share its pages, and
    what is not looked at is not read.

    Args:
        path: see :func:`read_weights`.
        key: see :func:`read_weights`.

    Raises:
        ArmError: see :func:`read_weights`.
    """
    path = Path(path)
    content = _load(path)
    if not isinstance(content, Mapping):
        raise ArmError(f"Expected a checkpoint with {key!r}, but {path} holds a {type(content).__name__}.")
    signature: Any = content.get(SIGNATURE)
    found = content.get(key, content if key == "state_dict" else None)
    # What is not a tensor (extra state, say) is not a weight: it is for `load_from_checkpoint`, not for an arm.
    weights = {str(n): t for n, t in found.items() if isinstance(t, Tensor)} if isinstance(found, Mapping) else {}
    if key == "state_dict" and _is_signature(signature):
        known = {**weights, **signature["weights"]}
        lost = [name for name in signature["names"] if name not in known]
        if lost:
            raise ArmError(f"Expected the weights {', '.join(lost[:3])} in {path}, but the file lacks them.")
        return WeightsFile({name: known[name] for name in signature["names"]}, signature["tag"], signature["run"])
    if not weights:
        raise ArmError(f"Expected a checkpoint with tensors under {key!r}, but {path} has {sorted(map(str, content))}.")
    return WeightsFile(weights)


def is_archive(path: str | os.PathLike[str]) -> bool:
    """Return whether a torch file is an archive, which can be mapped into memory; older ones cannot.

    Args:
        path: the file.

    Raises:
        ValueError: if something in it is packed. Torch packs nothing, and packed data can grow a thousandfold.
    """
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        if not _is_its_list(path, archive.start_dir):
            raise ValueError("it has more than one list of what is in it")
        for member in archive.infolist():
            _check_stored(member)
    return True


def _is_its_list(path: str | os.PathLike[str], start: int) -> bool:
    """Whether the list of an archive's content that begins at ``start`` is the one that any reader finds.

    Python takes the list that ends where the last part of the file begins, torch the one that this part points to.
    """
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(-min(end, _TAIL.size), os.SEEK_END)
        tail = file.read().rjust(_TAIL.size, b"\0")
    large, begin, locator, place, last, short = _TAIL.unpack(tail)
    if locator == b"PK\6\7":
        return (large, place, begin, last) == (b"PK\6\6", end - _TAIL.size, start, b"PK\5\6")
    return (last, short) == (b"PK\5\6", start)


def _check_stored(member: zipfile.ZipInfo) -> None:
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{member.filename} in it is packed, which torch never does")


def _stored(archive: zipfile.ZipFile, name: str) -> bytes:
    _check_stored(archive.getinfo(name))
    return archive.read(name)


def check_claims(path: str | os.PathLike[str], named: Mapping[Any, Any], harmless: int = _HARMLESS) -> None:
    """Refuse arrays that are together larger than their file: they may repeat their numbers, or have none at all.

    Args:
        path: the file, in which nothing is packed.
        named: what was read from it; all but arrays and tensors passes.
        harmless: bytes up to which they may be larger.

    Raises:
        ValueError: if their shapes claim more than the file holds.
    """
    held = os.path.getsize(path)
    left = max(held, harmless)
    for name, array in named.items():
        if isinstance(array, (np.ndarray, Tensor)):
            left -= array.itemsize * (array.size if isinstance(array, np.ndarray) else array.numel())
            if left < 0:
                raise ValueError(f"{name} claims shape {tuple(array.shape)}, but the file holds {held} bytes")


def read_script(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of a TorchScript archive by name, in the order of its ``state_dict``; its code is not run.

    Args:
        path: what ``torch.jit.save`` wrote.

    Raises:
        ValueError: if it holds no module, or if something in it is packed.
    """
    with zipfile.ZipFile(path) as archive:
        root = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
        if root is None:
            raise ValueError(f"{os.fspath(path)} is not a TorchScript archive")
        module = _ScriptUnpickler(archive, root.removesuffix("data.pkl")).load()
    if not isinstance(module, _Module):
        raise ValueError(f"{os.fspath(path)} holds no module")
    return dict(_named_tensors(module, count()))


def _named_tensors(module: Any, modules: Iterator[int], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    # Parts may be shared, which multiplies their names, or hold each other, which never ends.
    if prefix.count(".") > _DEEPEST or next(modules) > _MOST_MODULES:
        raise ValueError("its modules hold each other")
    parts = module.parts
    yield from ((prefix + name, part) for name, part in parts.items() if isinstance(part, Tensor))
    for name, part in parts.items():
        if isinstance(part, _Module):
            yield from _named_tensors(part, modules, f"{prefix}{name}.")


def _is_signature(value: Any) -> bool:
    kinds = {"tag": str, "run": str, "names": list, "weights": Mapping}
    if not isinstance(value, Mapping) or not all(isinstance(value.get(name), kind) for name, kind in kinds.items()):
        return False
    named = all(isinstance(name, str) for name in [*value["names"], *value["weights"]])
    return named and all(isinstance(tensor, Tensor) for tensor in value["weights"].values())


def _load(path: Path) -> Any:
    if os.path.exists(path) and not os.path.isfile(path):  # opening a pipe would wait forever
        raise ArmError(f"Expected the checkpoint {path}, but it is not a regular file.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive(path))
    except FileNotFoundError as error:
        raise ArmError(f"Expected the checkpoint {path}, but the file is gone.") from error
    except ImportError:
        raise ArmError(f"Expected safetensors for {path}, but it is missing; run `pip install safetensors`.") from None
    except pickle.UnpicklingError as error:
        # Ordinary hyperparameters (a path, an enum, a numpy number) are enough for torch to refuse the whole file.
        try:
            if not tarfile.is_tarfile(path):  # torch unpacks those to disk
                mmap = is_archive(path)
                return torch.load(path, map_location="cpu", weights_only=False, mmap=mmap, pickle_module=_TensorsOnly)
        except Exception as other:  # torch raises many kinds for files that are cut off
            raise _unreadable(path, other) from error
        raise _unreadable(path, error) from error
    except Exception as error:  # torch raises many kinds for files that are cut off, or are not checkpoints
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ArmError:
    reason = f"{type(error).__name__}: " + " ".join(str(error).split()).split(". ")[0]
    return ArmError(f"Expected a checkpoint file that can be read without running code, but got {path} ({reason}).")


class _Inert:
    """Stands for an object of any class but a tensor's: it takes whatever a pickle does to it, and does nothing."""

    def __new__(cls, *args: Any, **kwargs: Any) -> _Inert:
        return object.__new__(cls)

    def __call__(self, *args: Any, **kwargs: Any) -> _Inert:
        return _Inert()

    def __setstate__(self, state: Any) -> None:
        pass

    append = extend = add = update = __setitem__ = __call__


class _Rebuild(_Inert):
    """Rebuilds a tensor. Unlike a function, it has no source and takes no attributes, which torch might act upon."""

    def __init__(self, name: str) -> None:
        self._rebuild = getattr(torch._utils, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._rebuild(*args)


# Python's own class and not the one in C, which makes as much room for remembered objects as a file asks for.
class _TensorUnpickler(pickle._Unpickler):
    """Rebuilds tensors and plain containers. It looks up no other name, so nothing that a file names can run."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in _REBUILD:
            return _Rebuild(name)
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and isinstance(getattr(torch, name, None), (torch.dtype, torch.layout)):
            return getattr(torch, name)
        return _Inert


class _Module(_Inert):
    """Stands for a module of a TorchScript archive, of which the file may name any class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.parts: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.parts = state if isinstance(state, dict) else {}


class _ScriptUnpickler(_TensorUnpickler):
    """Rebuilds the tree of modules of a TorchScript archive, in which tensors are separate files."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(_stored(archive, f"{root}data.pkl")))
        self._read = lambda key: _stored(archive, f"{root}data/{key}")

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("__torch__"):
            return _Module
        if module == "torch" and name.endswith("Storage"):
            return torch.serialization.StorageType(name).dtype  # type: ignore[no-untyped-call]
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        _, dtype, key, _, _ = pid
        read = self._read(key)  # type: ignore[no-untyped-call]
        flat = torch.frombuffer(bytearray(read), dtype=torch.uint8) if read else torch.empty(0, dtype=torch.uint8)
        content = flat.untyped_storage()
        return torch.storage.TypedStorage(wrap_storage=content, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


class _TensorsOnly:
    """What ``torch.load`` needs of a pickle module."""

    __name__ = "tm_bandit tensors"
    Unpickler = _TensorUnpickler

    @staticmethod
    def load(file: IO[bytes], **options: Any) -> Any:
        return _TensorUnpickler(file, **options).load()

    UnpicklingError = pickle.UnpicklingError
