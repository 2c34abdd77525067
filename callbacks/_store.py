"""Where arms live between validations: files of weights, and a sidecar with their statistics."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from tm_bandit._exceptions import ArmError, InputError
from tm_bandit._files import atomic_write
from tm_bandit.callbacks._weights import BorrowedModule, Weights
from tm_bandit.report.encoding import decode_history
from tm_bandit.selection.checkpoints import read_weights

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from tm_bandit.callbacks._distributed import Ranks

STATS = "stats.pt"
PREVIOUS = "stats.previous.pt"
JOURNAL = "files.json"

#: Tensors of fewer elements are joined before they are written: each one by itself is a file in a zip archive.
_SMALL = 2**16
_TENSOR = "__tensor__"


class ArmStore:
    """Keeps the weights of the arms, as files or in memory.

    Files are written through the Trainer with ``weights_only=True``: such a file holds exactly what is in the module
    (no callback exchanges raw and averaged weights in it), so its ``state_dict`` is the arm, and
    ``load_from_checkpoint`` takes it.

    Args:
        folder: where the files go.
        run: identity of the training, by which files of other trainings in the folder are told apart.
        kind: ``"disk"``, or ``"memory"``, where only the best arm is written to a file.
        active: ``False`` writes nothing at all (``fast_dev_run``).
    """

    def __init__(self, folder: Path, run: str, kind: Literal["disk", "memory"], active: bool = True) -> None:
        self.folder = folder
        self.run = run
        self.kind = kind
        self.active = active
        self.files: dict[str, str] = {}
        self._memory: dict[str, Weights] = {}

    def add(
        self, name: str, weights: Weights, trainer: Trainer, borrowed: BorrowedModule[LightningModule], ranks: Ranks
    ) -> None:
        """Take new weights in; on all ranks.

        Args:
            name: name of the weights.
            weights: the tensors, which are kept and must not change any more.
            trainer: the running Trainer.
            borrowed: the live module.
            ranks: the processes.
        """
        self._memory[name] = weights
        if self.kind == "disk":
            self.write(name, trainer, borrowed, ranks)

    def write(self, name: str, trainer: Trainer, borrowed: BorrowedModule[LightningModule], ranks: Ranks) -> None:
        """Write weights to a file unless they have one; on all ranks, because the Trainer waits for all of them.

        Args:
            name: name of the weights.
            trainer: the running Trainer.
            borrowed: the live module.
            ranks: the processes.
        """
        if not self.active or name in self.files:
            return
        self.files[name] = ranks.tell(str(self._free_path(name)))
        if ranks.is_zero:
            # Before the file itself: a file that a crash leaves behind must be known for ours.
            with atomic_write(self.folder / JOURNAL) as path:
                path.write_text(json.dumps({"run": self.run, "files": self.files}), encoding="utf-8")
        borrowed.put(borrowed.fit(self.read(name)))
        trainer.save_checkpoint(self.files[name], weights_only=True)

    def read(self, name: str) -> Weights:
        """Return the weights of an arm.

        Args:
            name: name of the weights.

        Raises:
            ArmError: if their file is gone or cannot be read.
        """
        if name in self._memory:
            return self._memory[name]
        if name not in self.files:
            raise ArmError(f"Expected the weights {name} in memory, but they were lost with the earlier process.")
        return read_weights(self.files[name])

    def settle(self, best: str, trainer: Trainer, ranks: Ranks) -> None:
        """Keep each of the weights in one place.

        Those in memory whose file is there by now are let go of (an asynchronous writer may take a while); with
        ``"memory"``, only the best ones keep their file.

        Args:
            best: name of the best weights.
            trainer: the running Trainer.
            ranks: the processes.
        """
        if self.kind == "disk":
            for name in ranks.tell([name for name in self._memory if os.path.exists(self.files.get(name, ""))]):
                self._memory.pop(name, None)
        else:
            for name in [name for name in self.files if name != best and name in self._memory]:
                self._delete(name, trainer)

    def missing(self, names: set[str], ranks: Ranks) -> list[str]:
        """Return the weights that can no longer be had, the same list on all ranks.

        Args:
            names: names of weights.
            ranks: the processes.
        """
        gone = {name for name in names if name not in self._memory and not os.path.exists(self.files.get(name, ""))}
        return ranks.tell(sorted(gone))

    def remove(self, name: str, trainer: Trainer) -> None:
        """Forget weights and delete their file.

        Args:
            name: name of the weights.
            trainer: the running Trainer.
        """
        self._memory.pop(name, None)
        self._delete(name, trainer)

    def _delete(self, name: str, trainer: Trainer) -> None:
        path = self.files.pop(name, None)
        if path is not None and os.path.exists(path):
            trainer.strategy.remove_checkpoint(path)  # acts on rank 0 only

    def relocate(self, files: dict[str, str]) -> None:
        """Take over the files of an interrupted run, which may have been moved together with this folder.

        Args:
            files: paths by name of the weights.
        """
        for name, path in files.items():
            beside = self.folder / Path(path).name
            self.files[name] = str(beside) if not os.path.exists(path) and beside.exists() else path

    def sweep(self, finished: Container[str]) -> None:
        """Delete what a validation that was cut off has left behind; on rank 0.

        Args:
            finished: paths that belong to validations that did end, whether or not they are arms now.
        """
        try:
            journal = json.loads((self.folder / JOURNAL).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if journal["run"] == self.run:
            for path in journal["files"].values():
                if path not in finished and path not in self.files.values() and os.path.exists(path):
                    os.remove(path)

    def _free_path(self, name: str) -> Path:
        # Files of an earlier run in the same folder are somebody's models: never written over.
        taken = set(self.files.values())
        path, version = self.folder / f"{name}.ckpt", 0
        while path.exists() or str(path) in taken:
            version += 1
            path = self.folder / f"{name}-v{version}.ckpt"
        return path


def write_stats(folder: Path, header: dict[str, Any], selector: dict[str, Any], history: str) -> None:
    """Write the sidecar atomically and keep the one before it.

    A process may die after the sidecar of a validation is written but before Lightning's checkpoint of the same
    validation is. The checkpoint that is then resumed from belongs to the earlier sidecar.

    Args:
        folder: where the arms are.
        header: plain values, with ``"run"`` and ``"step"``.
        selector: what ``ModelSelector.state_dict`` returned.
        history: the history in it, as JSON.
    """
    current = folder / STATS
    state = {**selector, "arms": pack(selector["arms"]), "history": history}
    with atomic_write(current) as path:
        torch.save({**header, "selector": state}, path)
        if current.exists():
            os.replace(current, folder / PREVIOUS)


def read_stats(folder: Path, run: str, step: int) -> dict[str, Any] | None:
    """Return the sidecar of one run: that of ``step`` if it is still there, else the newest one, else ``None``.

    Args:
        folder: where the arms are.
        run: identity of the run; another run's sidecar in the same folder is not touched.
        step: the step at which the resumed checkpoint was written.

    Returns:
        The header that was written, and under ``"selector"`` what ``ModelSelector.load_state_dict`` takes.
    """
    found: list[dict[str, Any]] = []
    for name in (STATS, PREVIOUS):
        try:
            state = torch.load(folder / name, map_location="cpu", weights_only=True)
        except Exception:  # missing, or cut off by a crash of the machine: the arms then start with zero statistics
            continue
        if isinstance(state, dict) and state.get("run") == run:
            found.append(state)
    if not found:
        return None
    state = next((state for state in found if state["step"] == step), found[0])
    selector = state["selector"]
    history = decode_history(json.loads(selector["history"]))
    return {**state, "selector": {**selector, "arms": unpack(selector["arms"]), "history": history}}


def pack(value: Any) -> dict[str, Any]:
    """Return plain values with tensors among them as one text and few tensors, which ``torch.save`` takes faster.

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
            tensors.append(packed["large"][index])
            continue
        start, position[dtype] = position[dtype], position[dtype] + math.prod(shape)
        # A clone: a part of a larger tensor would keep all of it in memory.
        tensors.append(packed["small"][dtype][start : position[dtype]].reshape(shape).clone())
    return json.loads(packed["text"], object_hook=lambda item: tensors[item[_TENSOR]] if _TENSOR in item else item)


def restrict(state: dict[str, Any], known: Container[str]) -> dict[str, Any]:
    """Return a selector's state without the arms that the resumed checkpoint does not know.

    Training goes on from an earlier step than that of the sidecar: arms of later steps will be made anew, with other
    weights, and their old statistics would be somebody else's.

    Args:
        state: what ``ModelSelector.state_dict`` returned.
        known: names of all arms that the checkpoint knows, retired ones included.
    """
    history = state["history"]
    kept = [index for index, name in enumerate(history["arm"]) if name in known]
    return {
        **state,
        "arms": [arm for arm in state["arms"] if arm["name"] in known],
        "history": {column: [values[index] for index in kept] for column, values in history.items()},
    }


def check_shared(folder: Path, ranks: Ranks, everywhere: bool) -> None:
    """Make the folder on rank 0 and see whether all ranks see it.

    Args:
        folder: where the arms go.
        ranks: the processes.
        everywhere: whether all ranks need it.

    Raises:
        InputError: on all ranks, if the folder cannot be made or is not shared.
    """
    error: Exception | None = None
    if ranks.is_zero:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as reason:
            error = InputError(f"Expected a folder for the arms at {folder}, but got this: {reason}; give dirpath=.")
    ranks.agree(error)
    if everywhere and not folder.is_dir():
        error = InputError(
            f"Expected {folder} on a file system that all nodes share, but rank {ranks.rank} does not see it; give "
            "another dirpath=, or store='memory'."
        )
    ranks.agree(error)
