"""The books of a training run: its arms, its validations so far, and what Lightning's checkpoints know."""

from __future__ import annotations

from collections.abc import Container, Iterable
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Any

from tm_bandit.callbacks._arms import TrainedArm
from tm_bandit.callbacks._resume import STATE_VERSION, Resumed, ResumePoint
from tm_bandit.callbacks._sidecar import sidecar_name, validation_id
from tm_bandit.callbacks._store import ArmStore

#: An arm that fails in this many validations in a row, while others do not, is out: one error may pass, two do not.
STRIKES = 2

#: What is saved and resumed as it is.
_AS_IT_IS = ("number", "step", "known", "failures", "admitted")


@dataclass
class Books:
    """What all ranks know about a training run, and what is saved so that it can be resumed.

    Args:
        arms: the active arms by name.
        known: names of all arms there ever were.
        failures: in how many validations in a row arms have failed.
        admitted: content tags by name of the weights that the last validation admitted.
        lineage: the validations so far, as :func:`~tm_bandit.callbacks._sidecar.validation_id` names them.
        number: how many validations there were.
        step: the ``global_step`` of the last one; -1 if there was none.
        reference: tag of the reference, if it was collected from a validation.
        dumped: number and name of the last validation that the newest checkpoint knows; ``None`` without a checkpoint.
        dumped_step: the ``global_step`` of that checkpoint.
        confirmed: as ``dumped``, for the newest checkpoint that is known to be on disk.
    """

    arms: dict[str, TrainedArm] = field(default_factory=dict)
    known: list[str] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    admitted: dict[str, str] = field(default_factory=dict)
    lineage: list[str] = field(default_factory=list)
    number: int = 0
    step: int = -1
    reference: str = ""
    dumped: tuple[int, str] | None = None
    dumped_step: int = -1
    confirmed: tuple[int, str] | None = None

    @property
    def validation(self) -> str:
        """Name of the last validation; empty if there was none."""
        return self.lineage[-1] if self.lineage else ""

    def admit(self, arm: TrainedArm) -> None:
        """Add a new arm."""
        self.arms[arm.name] = arm
        self.known.append(arm.name)

    def strike(self, arms: Iterable[str], failed: Container[str], known: Container[str]) -> list[str]:
        """Count the arms that failed in a validation in which others did not, and return those that are now out.

        Args:
            arms: the arms that took part.
            failed: those that failed.
            known: those about which something is known. That stays true even if an arm cannot be sampled: it may still
                be the best, so these are never out.
        """
        out = []
        for name in arms:
            count = self.failures.pop(name, 0) + 1
            if name in failed and (count < STRIKES or name in known):
                self.failures[name] = count
            elif name in failed:
                out.append(name)
        return out

    def turn_page(self, step: int) -> None:
        """Note that the validation of a step has ended."""
        self.lineage.append(validation_id(self.validation, step, self.admitted))
        self.number += 1
        self.step = step

    def note_checkpoint(self, state: dict[str, Any], step: int) -> None:
        """Note that Lightning is writing a checkpoint.

        Args:
            state: what :meth:`describe` returned for it.
            step: its ``global_step``.
        """
        self.dumped, self.dumped_step = (state["number"], state["validation"]), step

    def close(self) -> None:
        """Note that training has ended, and that all checkpoints are on disk."""
        self.confirmed = self.dumped
        if self.dumped is not None and self.dumped_step == self.step:
            # A checkpoint that was written just before the last validation is resumed after it.
            self.confirmed = (self.number, self.dumped[1])

    def superseded(self) -> Iterable[str]:
        """Return the sidecars that no checkpoint can ask for: neither its own validation's nor the next one's."""
        needed = {point[1] for point in (self.dumped, self.confirmed) if point is not None}
        for before, validation in zip(["", *self.lineage], self.lineage[:-1], strict=False):
            if validation not in needed and before not in needed:
                yield sidecar_name(validation)

    def describe(self, store: ArmStore, files: dict[str, dict[str, str]]) -> dict[str, Any]:
        """Return the metadata for the sidecar and for Lightning's checkpoint: names and tags, no statistics.

        Args:
            store: the weights of the arms.
            files: file and tag of each of them.
        """
        return {
            "version": STATE_VERSION,
            "run": store.folder.run,
            "folder": str(store.folder.root),
            "files": files,
            "born": dict(store.born),
            "dropped": [dict(item) for item in store.dropped],
            "validation": self.validation,
            "arms": [asdict(arm) for arm in self.arms.values()],
            "reference": self.reference,
            **{name: copy(getattr(self, name)) for name in _AS_IT_IS},
        }

    def go_on(self, resumed: Resumed, point: ResumePoint, variants: Iterable[str]) -> None:
        """Take up the books of an interrupted training run.

        Args:
            resumed: where it continues.
            point: the checkpoint that is resumed, which is on disk.
            variants: names of the sampler variants that are listed now.
        """
        state, listed = resumed.state, set(variants)
        arms = [TrainedArm(**values) for values in state["arms"]]
        self.arms = {arm.name: arm for arm in arms if arm.variant in listed}
        self.lineage = list(resumed.lineage)
        vars(self).update({name: copy(state[name]) for name in _AS_IT_IS})
        self.dumped = self.confirmed = (point.state["number"], point.state["validation"])
        self.dumped_step = point.step
