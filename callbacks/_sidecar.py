"""The statistics of the arms on disk: one sidecar file per validation, and which of them a resumed run uses."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from tm_bandit._files import atomic_write
from tm_bandit.callbacks._folder import RunFolder
from tm_bandit.errors import brief
from tm_bandit.report.encoding import decode_history
from tm_bandit.selection.verdict import Verdict

#: The sidecars of version 0.1: the newest, and the one before it.
_OLD = ("stats.pt", "stats.previous.pt")

_RUN = re.compile(r"[0-9a-f]{16}")

#: Tensors with fewer elements are joined before they are written: each one by itself is a file in a zip archive.
_SMALL = 2**16
_TENSOR = "__tensor__"


@dataclass(frozen=True)
class Sidecar:
    """What was known at the end of one validation.

    Args:
        name: name of its file.
        lineage: the validations that led to this one, and itself, as :func:`validation_id` names them; empty for a
            file of version 0.1.
        state: the metadata of the run, as in Lightning's checkpoint.
        selector: the packed state of the selector.
    """

    name: str
    lineage: tuple[str, ...]
    state: dict[str, Any]
    selector: dict[str, Any]

    @property
    def id(self) -> str:
        """Name of the validation."""
        return self.lineage[-1] if self.lineage else ""

    @property
    def tags(self) -> dict[str, str]:
        """Content tags by name of the weights; empty for a file of version 0.1, which has none."""
        return {name: filed["tag"] for name, filed in self.state["files"].items()} if self.lineage else {}

    def statistics(self) -> dict[str, Any]:
        """Return what ``ModelSelector.load_state_dict`` takes."""
        history = decode_history(json.loads(self.selector["history"]))
        return {**self.selector, "arms": unpack(self.selector["arms"]), "history": history}


def validation_id(parent: str, step: int, tags: Mapping[str, str]) -> str:
    """Name a validation after the one before it and the weights that it admits.

    A validation that is repeated after a kill has the same name, and overwrites what the first attempt left. One that
    another branch of the run makes at the same step has another name.

    Args:
        parent: the validation before; empty if there is none.
        step: the ``global_step``.
        tags: content tags of the new weights by name.
    """
    text = json.dumps([parent, step, sorted(tags.items())])
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def sidecar_name(validation: str) -> str:
    """Return the name of the file of a validation."""
    return f"stats-{validation}.pt"


def write_sidecar(
    folder: RunFolder, lineage: Sequence[str], state: dict[str, Any], selector: dict[str, Any], history: str
) -> None:
    """Write the sidecar of a validation, in full or not at all.

    Args:
        folder: where the arms are.
        lineage: see :class:`Sidecar`.
        state: metadata, plain values.
        selector: what ``ModelSelector.state_dict`` returned.
        history: the history in it, as JSON.
    """
    content = {"run": folder.run, "lineage": list(lineage), "state": state}
    packed = {**selector, "arms": pack(selector["arms"]), "history": history}
    with atomic_write(folder.path(sidecar_name(lineage[-1]))) as path:
        torch.save({**content, "selector": packed}, path)


def read_sidecars(folder: RunFolder) -> list[Sidecar]:
    """Return the sidecars of the run, those of version 0.1 last. What cannot be read is left out with a warning.

    Args:
        folder: where the arms are.
    """
    names = [*folder.names("stats-*.pt"), *filter(folder.has, _OLD)]
    return [sidecar for sidecar in (_read(folder, name) for name in names) if sidecar is not None]


def _read(folder: RunFolder, name: str) -> Sidecar | None:
    try:
        content = torch.load(folder.path(name), map_location="cpu", weights_only=True, mmap=True)
        if content["run"] == folder.run:
            if name not in _OLD:
                return _check(name, content)
            return Sidecar(name, (), {"step": int(content["step"])}, dict(content["selector"]))
    except Exception as error:  # cut off, not a torch file, or of another shape
        rank_zero_warn(f"The statistics in {folder.path(name)} cannot be read ({brief(error)}); they are left alone.")
    return None


def _check(name: str, content: Any) -> Sidecar:
    state, lineage = content["state"], tuple(content["lineage"])
    if not lineage or not all(isinstance(part, str) for part in lineage):
        raise ValueError("it names no validation")
    if not {"version", "arms", "history"} <= set(content["selector"]):
        raise ValueError("it holds no statistics")
    check_state(state)
    return Sidecar(name, lineage, dict(state), dict(content["selector"]))


def check_state(state: Mapping[str, Any]) -> None:
    """Raise ``ValueError``, ``TypeError`` or ``KeyError`` unless the metadata of a run have the right shape.

    Args:
        state: what is in a sidecar or in Lightning's checkpoint.
    """
    if not _RUN.fullmatch(state["run"]):
        raise ValueError(f"{state['run']!r} is not a run")
    _check_kinds("state", state, {"step": int, "number": int, "validation": str, "folder": str, "reference": str})
    for arm in state["arms"]:
        _check_kinds("arm", arm, {"step": int, "averaged": bool, "variant": str})
        if len(arm) != 3:
            raise ValueError(f"{arm!r} is not an arm")
    for filed in state["files"].values():
        _check_kinds("file", filed, {"file": str, "tag": str})
    for item in state["dropped"]:
        _check_kinds("file", item, {"file": str, "tag": str, "since": int, "born": int})
    for kind, values in {"born": state["born"], "failures": state["failures"]}.items():
        _check_kinds(kind, values, dict.fromkeys(values, int))
    _check_kinds("tags", state["admitted"], dict.fromkeys(state["admitted"], str))
    if not isinstance(state["known"], list) or not all(isinstance(name, str) for name in state["known"]):
        raise TypeError("known arms have no names")


def _check_kinds(what: str, values: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    for name, kind in kinds.items():
        if type(values[name]) is not kind:
            raise TypeError(f"{name} of a {what} is {values[name]!r}")


def choose(
    sidecars: Iterable[Sidecar], state: Mapping[str, Any], live: tuple[int, str]
) -> tuple[Sidecar, Literal["next", "same", "alike"]] | None:
    """Return the sidecar that a resumed run continues from and how the two are related, or ``None``.

    - ``"next"``: a checkpoint may be written just before the validation of the same step, which Lightning does not
      repeat. If that validation did end, and the weights that it admitted are those of the checkpoint, it counts.
    - ``"same"``: the validation that the checkpoint knows last. If an old checkpoint is resumed, that one may be gone;
      the newest of the same branch has statistics of all arms that the checkpoint knows.
    - ``"alike"``: any other validation that saw some of the same weights.

    Args:
        sidecars: all that there are.
        state: the metadata in the checkpoint.
        live: ``global_step`` of the checkpoint and the content tag of its weights.
    """
    sidecars = list(sidecars)
    last, (step, tag) = state["validation"], live
    for sidecar in sidecars:
        parent = "".join(sidecar.lineage[-2:-1])
        is_next = bool(sidecar.lineage) and parent == last and sidecar.state["step"] == step != state["step"]
        if is_next and sidecar.state["admitted"].get(f"step{step}") == tag:
            return sidecar, "next"
    later = [sidecar for sidecar in sidecars if last in sidecar.lineage]
    if later:
        return max(later, key=lambda sidecar: (sidecar.id == last, len(sidecar.lineage))), "same"
    if not last:
        # The checkpoint is one of version 0.1, whose sidecars are identified by their step alone.
        old = [sidecar for sidecar in sidecars if not sidecar.lineage]
        exact = [sidecar for sidecar in old if sidecar.state["step"] == state["step"]]
        return ((exact or old)[0], "same") if old else None
    mine = {(name, filed["tag"]) for name, filed in state["files"].items()}
    alike = [sidecar for sidecar in sidecars if mine & set(sidecar.tags.items())]
    if not alike:
        return None
    return max(alike, key=lambda sidecar: (len(mine & set(sidecar.tags.items())), len(sidecar.lineage))), "alike"


def restrict(state: dict[str, Any], known: Container[str]) -> dict[str, Any]:
    """Return a selector's state without the arms that the resumed checkpoint does not know.

    Training continues from an earlier step than that of the sidecar: arms of later steps will be made again, with other
    weights, and their old statistics would belong to other arms.

    Args:
        state: what ``ModelSelector.state_dict`` returned.
        known: names of all arms that the checkpoint knows, retired ones included.
    """
    history = state["history"]
    kept = [index for index, name in enumerate(history["arm"]) if name in known]
    said = state.get("verdict")  # version 0.1 did not keep it
    return {
        **state,
        "verdict": None if said is None else asdict(Verdict(**said).among(known)),
        "arms": [arm for arm in state["arms"] if arm["name"] in known],
        "history": {column: [values[index] for index in kept] for column, values in history.items()},
    }


def pack(value: Any) -> dict[str, Any]:
    """Return plain values with tensors among them as one string and few tensors, which ``torch.save`` writes faster.

    Args:
        value: dictionaries, lists, strings, numbers and tensors.

    Example:
        >>> packed = pack([{"name": "a", "rows": [torch.ones(2), torch.zeros(1, 1)]}])
        >>> unpack(packed)
        [{'name': 'a', 'rows': [tensor([1., 1.]), tensor([[0.]])]}]
    """
    tensors: list[Tensor] = []

    def number(tensor: Tensor) -> dict[str, int]:
        tensors.append(tensor)
        return {_TENSOR: len(tensors) - 1}

    text = json.dumps(value, default=number)
    small: dict[str, list[Tensor]] = {}
    large: dict[int, Tensor] = {}
    for index, tensor in enumerate(tensors):
        if tensor.numel() < _SMALL:
            small.setdefault(str(tensor.dtype), []).append(tensor.flatten())
        else:
            large[index] = tensor
    kinds = [[str(tensor.dtype), *tensor.shape] for tensor in tensors]
    return {
        "text": text,
        "kinds": json.dumps(kinds),
        "small": {dtype: torch.cat(parts) for dtype, parts in small.items()},
        "large": large,
    }


def unpack(packed: dict[str, Any]) -> Any:
    """Return what :func:`pack` was given.

    Args:
        packed: what it returned.
    """
    tensors: list[Tensor] = []
    position = dict.fromkeys(packed["small"], 0)
    for index, (dtype, *shape) in enumerate(json.loads(packed["kinds"])):
        if index in packed["large"]:
            tensors.append(packed["large"][index].clone())  # read into memory: the file may be gone tomorrow
            continue
        start, position[dtype] = position[dtype], position[dtype] + math.prod(shape)
        # A clone: a part of a larger tensor would keep all of it in memory.
        tensors.append(packed["small"][dtype][start : position[dtype]].reshape(shape).clone())
    return json.loads(packed["text"], object_hook=lambda item: tensors[item[_TENSOR]] if _TENSOR in item else item)
