"""What an interrupted training run left behind, and where a resumed one continues."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from tm_bandit.callbacks._arms import TrainedArm
from tm_bandit.callbacks._folder import RunFolder
from tm_bandit.callbacks._sidecar import Sidecar, check_state, choose, read_sidecars, restrict
from tm_bandit.callbacks._store import ArmStore
from tm_bandit.errors import BrokenStateError, InputError, brief
from tm_bandit.selection.selector import ModelSelector

#: Version of what the callback keeps in a training checkpoint. 1: of version 0.1, which is read too.
STATE_VERSION = 2


@dataclass(frozen=True)
class ResumePoint:
    """The Lightning checkpoint that training is resumed from.

    Args:
        state: what the callback had put there.
        step: its ``global_step``.
        path: its file.
        in_place: whether the file is where a checkpoint callback writes.
    """

    state: dict[str, Any]
    step: int
    path: str
    in_place: bool


@dataclass(frozen=True)
class Resumed:
    """Where training continues.

    Args:
        state: the metadata of the validation that it continues from.
        lineage: the validations that led to it, and itself.
        cut_off: whether the checkpoint's own weights were being validated, or about to be, when the process was killed.
    """

    state: dict[str, Any]
    lineage: tuple[str, ...]
    cut_off: bool = False


def checked(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of Lightning's checkpoint in the current form.

    Args:
        saved: what this version or version 0.1 put there.

    Raises:
        InputError: if they are of another version, or broken.
    """
    version = saved.get("version")
    try:
        if version in (1, STATE_VERSION):
            state = _from_version_1(saved) if version == 1 else dict(saved)
            check_state(state)
            return state
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"Expected the state of a BanditCheckpoint in the checkpoint, but got a broken one ({error!r}); resume "
            "from another checkpoint, or without this callback."
        ) from error
    raise InputError(f"Expected version {STATE_VERSION} of a callback's state, but got {version!r}; update tm_bandit.")


def _from_version_1(saved: Mapping[str, Any]) -> dict[str, Any]:
    files = {str(name): {"file": os.path.basename(path), "tag": ""} for name, path in saved["files"].items()}
    kept = {"step": saved["step"], "run": str(saved["run"]), "folder": str(saved["folder"]), "files": files}
    arms = {"arms": list(saved["arms"]), "known": list(saved["known"])}
    unknown: dict[str, Any] = {"validation": "", "number": 0, "dropped": [], "failures": {}, "born": {}, "admitted": {}}
    reference = "unknown" if saved["reference"] else ""
    return {"version": STATE_VERSION, "reference": reference, **kept, **arms, **unknown}


def take_up(store: ArmStore, selector: ModelSelector, point: ResumePoint, live: str, reference: str) -> Resumed:
    """Find the statistics and the files of an interrupted training run; on rank 0.

    Args:
        store: gets the files.
        selector: gets the statistics.
        point: the checkpoint, with a state that was :func:`checked`.
        live: content tag of the weights in the checkpoint.
        reference: tag of the reference in use, if it was collected.
    """
    folder, saved = store.folder, point.state
    sidecars = read_sidecars(folder)
    folder.sweep()
    wanted = [filed for sidecar in sidecars if sidecar.lineage for filed in sidecar.state["files"].values()]
    cut_off = store.promote({filed["tag"]: filed["file"] for filed in wanted if filed["file"]})
    resumed = None
    if saved["reference"] in ("", "unknown", reference):
        resumed = _load(sidecars, store, selector, saved, (point.step, live))
    else:
        rank_zero_warn(f"The reference is not the same as before: all arms in {folder.root} are sampled again.")
    if resumed is None:
        _recover(store, saved)
        resumed = Resumed(saved, (saved["validation"],) if saved["validation"] else ())
    state = resumed.state
    missed = live in cut_off or bool(saved.get("due", False))
    return Resumed(state, resumed.lineage, cut_off=missed and state["step"] != point.step)


def _recover(store: ArmStore, state: Mapping[str, Any]) -> None:
    if state["validation"]:
        store.recover(state)
    else:
        store.adopt_untagged({name: filed["file"] for name, filed in state["files"].items()})


def _load(
    sidecars: list[Sidecar], store: ArmStore, selector: ModelSelector, saved: dict[str, Any], live: tuple[int, str]
) -> Resumed | None:
    """Give the selector the statistics of the right validation, and return where to continue."""
    folder, left = store.folder, list(sidecars)
    while (found := choose(left, saved, live)) is not None:
        sidecar, relation = found
        left.remove(sidecar)
        state = sidecar.state if relation == "next" else saved
        known = _same_weights(sidecar, saved) if relation == "alike" else set(state["known"])
        try:
            statistics = sidecar.statistics()
            dropped = {arm["name"] for arm in statistics["arms"] if arm["retired"] is not None}
            _recover(store, state)
            arms = [TrainedArm(**values) for values in state["arms"]]
            # Arms of this checkpoint that were dropped later come back if their files are still there.
            back = [arm.name for arm in arms if arm.name in dropped and arm.weights in store.files]
            selector.load_state_dict(restrict(statistics, known - set(back)))
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if isinstance(error, InputError) and not isinstance(error, BrokenStateError):
                raise  # of another kind of run: a setting has changed
            rank_zero_warn(f"The statistics in {folder.root / sidecar.name} cannot be used ({brief(error)}).")
            continue
        _say_what_is_lost(folder, arms, back, selector)
        if relation == "next":
            return Resumed(state, sidecar.lineage)
        before: tuple[str, ...] = (saved["validation"],) if saved["validation"] else ()
        if before and relation == "same":
            before = sidecar.lineage[: sidecar.lineage.index(before[0]) + 1]
        return Resumed(saved, before)
    if saved["arms"]:
        rank_zero_warn(f"The statistics of the arms are missing in {folder.root}; the arms are kept and sampled again.")
    return None


def _say_what_is_lost(folder: RunFolder, arms: list[TrainedArm], back: list[str], selector: ModelSelector) -> None:
    gone = [arm.name for arm in arms if arm.name in selector.retired]
    if gone:
        rank_zero_warn(
            f"Training has already been continued from this checkpoint, and has dropped {', '.join(gone)} "
            f"since; their files in {folder.root} are gone."
        )
    anew = [arm.name for arm in arms if arm.name not in selector.arms and arm.name not in selector.retired]
    others = [name for name in anew if name not in back]
    if others:
        rank_zero_warn(
            f"The statistics in {folder.root} do not belong to the weights of {', '.join(others)} in this checkpoint; "
            "these arms are sampled again."
        )


def _same_weights(sidecar: Sidecar, saved: Mapping[str, Any]) -> set[str]:
    """Return the arms of the checkpoint whose weights the sidecar has seen."""
    tags = sidecar.tags
    mine = {name for name, filed in saved["files"].items() if filed["tag"] and tags.get(name) == filed["tag"]}
    return {arm.name for arm in (TrainedArm(**values) for values in saved["arms"]) if arm.weights in mine}
