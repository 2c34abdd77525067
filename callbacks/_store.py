"""Where the weights of the arms live between validations, and the rules by which their files come and go."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from tm_bandit._weights_file import WeightsFile, content_tag, read_file, sign
from tm_bandit.callbacks._checkpoint import bare, dump, write
from tm_bandit.callbacks._folder import RunFolder
from tm_bandit.callbacks._weights import Borrowed, Weights, persistent_tensors
from tm_bandit.errors import ArmError
from tm_bandit.execution.ranks import Ranks

#: How a file of an arm is made: as the Trainer makes a checkpoint, or from the weights alone.
Form = Literal["checkpoint", "bare"]

_REHEARSAL = "rehearsal"


class ArmStore:
    """Keeps the weights of the arms, as files or in memory.

    The rules:

    1. A run has its own folder. Nothing outside of it is read by a stored path, overwritten or deleted.
    2. Weights are identified by their content. Their tag is in their file, in the sidecar and in Lightning's
       checkpoint; a file is the arm's if the tags agree, whatever it is called.
    3. A file under way is hidden. It gets its name when it has been read back and the sidecar of its validation is on
       disk. So every ``.ckpt`` in the folder belongs to a validation that ended.
    4. A file is deleted only when its arm was dropped by comparison, never because sampling failed, and only when the
       newest Lightning checkpoint on disk no longer refers to the arm.
    5. What cannot be written, or read back, stays in memory, with a warning.

    Files are written through the Trainer with ``weights_only=True``: such a file holds exactly what is in the module
    (no callback exchanges raw and averaged weights in it), so its ``state_dict`` is the arm, and
    ``load_from_checkpoint`` takes it. If a module cannot be written that way, its weights are written alone.

    Args:
        folder: the folder of the run.
        kind: ``"disk"``, or ``"memory"``, which writes only the best arm to a file.
        trainer: the running Trainer.
        ranks: the processes.
        active: ``False`` writes nothing at all (``fast_dev_run``).
    """

    def __init__(
        self, folder: RunFolder, kind: Literal["disk", "memory"], trainer: Trainer, ranks: Ranks, active: bool = True
    ) -> None:
        self.folder = folder
        self.kind = kind
        self.trainer = trainer
        self.ranks = ranks
        self.active = active
        self.form: Form = "checkpoint"
        self.tags: dict[str, str] = {}
        self.born: dict[str, int] = {}
        self.files: dict[str, str] = {}
        self.dropped: list[dict[str, Any]] = []
        self._memory: dict[str, Weights] = {}
        self._parts: dict[str, str] = {}
        self._discarded: list[str] = []
        self._said = False

    # ---- adding weights ---------------------------------------------------------------------------------------

    def rehearse(self, borrowed: Borrowed) -> None:
        """Write the weights as they are, read them back, and choose a form of file that can be relied on; on all ranks.

        Args:
            borrowed: the live module.
        """
        if not self.active:
            return
        name = self.folder.part(_REHEARSAL)
        module = type(borrowed.module).__name__
        weights = borrowed.live()
        tag = self._tag(weights)
        reason = self._save(name, weights, tag, self.form, borrowed)
        if reason is not None:
            self.form = "bare"
            rank_zero_warn(
                f"A checkpoint of {module} cannot be written and read back ({reason}). The files of the arms will hold "
                f"the weights alone: give `load_from_checkpoint` the arguments of {module} yourself."
            )
            reason = self._save(name, weights, tag, self.form, borrowed)
        if reason is not None and self.kind == "disk":
            self.kind = "memory"
            rank_zero_warn(
                f"The weights of {module} cannot be written to {self.folder.root} and read back ({reason}). The arms "
                "are kept in memory and are lost if training is interrupted."
            )
        if self.ranks.is_zero:
            self._clean(name)

    def _clean(self, part: str) -> None:
        """Delete a file under way, or the folder that some writers make of it."""
        self.folder.delete(part)
        path = self.folder.root / part
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)

    def _tag(self, weights: Weights) -> str:
        tag = ""
        if self.ranks.is_zero:
            try:
                tag = content_tag(weights)
            except Exception:  # tensors of a kind that has no bytes: they have a name, but no file can prove it
                tag = secrets.token_hex(16)
        return self.ranks.tell(tag)

    def add(self, name: str, weights: Weights, number: int, borrowed: Borrowed) -> None:
        """Add new weights; on all ranks.

        Args:
            name: name of the weights.
            weights: the tensors, which are kept and must not change afterwards.
            number: number of the validation that admits them.
            borrowed: the live module.
        """
        self._memory[name] = weights
        self.tags[name] = self._tag(weights)
        self.born[name] = number
        if self.kind == "disk":
            self.write(name, borrowed)

    def write(self, name: str, borrowed: Borrowed) -> None:
        """Write weights to a file under way, unless they have a file; on all ranks, as the Trainer waits for all.

        If that fails, they stay in memory, and the next validation tries again.

        Args:
            name: name of the weights.
            borrowed: the live module.
        """
        if not self.active or name in self.files or name in self._parts:
            return
        names = self.folder.names(f"{name}*.ckpt") if self.ranks.is_zero else []
        file = self.ranks.tell(next((file for file in names if self._tag_of(file) == self.tags[name]), None))
        if file is not None:  # a validation that is repeated finds what its first attempt wrote
            self.files[name] = file
            return
        part, reason = self.folder.part(name), None
        forms: tuple[Form, ...] = ("checkpoint", "bare")
        for form in forms[forms.index(self.form) :]:  # weights alone are better than no file, whatever a hook ran into
            failure = self._save(part, self._memory[name], self.tags[name], form, borrowed)
            reason = reason or failure
            if failure is None:
                self._parts[name] = part
                break
        if reason is not None and not self._said:
            self._said = True
            kept = "The file holds the weights alone" if name in self._parts else "They are kept in memory"
            rank_zero_warn(
                f"The weights {name} could not be written to {self.folder.root} as usual ({reason}). {kept}; the next "
                "validation tries again."
            )

    def _save(self, file: str, weights: Weights, tag: str, form: Form, borrowed: Borrowed) -> str | None:
        """Write a file and read it back; return what went wrong, the same on all ranks."""
        checkpoint: dict[str, Any] = {}
        error: Exception | None = None
        try:
            borrowed.put(borrowed.fit(weights))
            checkpoint = dump(self.trainer) if form == "checkpoint" else bare(self.trainer)
        except Exception as failure:  # a hook of the module
            error = failure
        reason = self.ranks.first_error(error)
        if reason is None and self.ranks.is_zero:
            try:
                path = self.folder.path(file)
                sign(checkpoint, persistent_tensors(borrowed.module), tag, self.folder.run)
                write(self.trainer, checkpoint, path)
                self._verify(file, tag)
            except Exception as failure:  # any: what cannot be read back is not relied on
                error = failure
                self._clean(file)
        return reason or self.ranks.first_error(error)

    def _verify(self, file: str, tag: str) -> None:
        path = self.folder.path(file)
        with path.open("rb+") as stream:
            os.fsync(stream.fileno())
        found = read_file(path)
        if found.tag != tag or content_tag(found.weights) != tag:
            raise ArmError("what was read back is not what was written")

    # ---- the end of a validation ------------------------------------------------------------------------------

    def planned(self) -> dict[str, dict[str, str]]:
        """Return file and tag of all weights as they will be after :meth:`commit`; no file means memory only."""
        names = {**self.files, **{name: self._free(name) for name in self._parts}}
        return {name: {"file": names.get(name, ""), "tag": tag} for name, tag in self.tags.items()}

    def commit(self, planned: Mapping[str, Mapping[str, str]]) -> None:
        """Give the files under way their names; the sidecar that knows them is on disk. On all ranks.

        Args:
            planned: what :meth:`planned` returned on rank 0.
        """
        first = self.ranks.is_zero
        done = [name for name in self._parts if first and self._rename(name, planned[name]["file"])]
        for name in self.ranks.tell(done):
            self.files[name] = planned[name]["file"]
            self._parts.pop(name, None)
        for part in self._discarded if first else ():
            self.folder.delete(part)
        self._discarded = []
        if self.kind == "disk":
            # Kept until now, so that nothing was read from a file that might have turned out bad.
            for name in self.files.keys() & self._memory.keys():
                del self._memory[name]

    def _rename(self, name: str, file: str) -> bool:
        try:
            self.folder.path(self._parts[name]).replace(self.folder.path(file))
        except OSError as error:
            rank_zero_warn(f"The file of {name} could not be renamed ({error}); the next validation tries again.")
            return False
        return True

    def _free(self, name: str) -> str:
        # The files of another branch, or of someone else, are models too: never overwritten.
        taken, file, version = set(self.files.values()), f"{name}.ckpt", 0
        while file in taken or os.path.lexists(self.folder.root / file):
            version += 1
            file = f"{name}-v{version}.ckpt"
        return file

    # ---- using weights ----------------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        """Return the path of a file of weights, or an empty string if they have none."""
        return str(self.folder.path(self.files[name])) if name in self.files else ""

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
        found = read_file(self.folder.path(self.files[name]))
        if found.tag not in ("", self.tags[name]):
            raise ArmError(f"Expected the weights {name} in {self.path(name)}, but others have been put there.")
        return found.weights

    def has_file(self, name: str) -> bool:
        """Whether weights have a file, even if it is under way."""
        return name in self.files or name in self._parts

    def in_both(self) -> list[str]:
        """Return the weights that have a file and are in memory as well."""
        return [name for name in self.files if name in self._memory]

    def unwritten(self) -> list[str]:
        """Return the weights that are in memory alone."""
        return [name for name in self._memory if not self.has_file(name)]

    def unnamed(self) -> list[str]:
        """Return the weights whose file is still under way."""
        return list(self._parts)

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return the weights that are no longer available, the same list on all ranks.

        Args:
            names: names of weights.
        """
        return self.ranks.tell(sorted(n for n in names if n not in self._memory and not self._is_there(n)))

    def _is_there(self, name: str) -> bool:
        """Whether the file of some weights can be read and holds them."""
        found = self._look(self.files.get(name, ""))
        return found is not None and found.tag in ("", self.tags[name])  # version 0.1 wrote no tags

    def _look(self, file: str) -> WeightsFile | None:
        """Return what a file holds; ``None`` if it is gone or cannot be read."""
        with suppress(ArmError):
            return read_file(self.folder.path(file)) if self.folder.has(file) else None
        return None

    # ---- letting go -------------------------------------------------------------------------------------------

    def forget(self, name: str) -> None:
        """Forget weights and leave their file alone.

        Args:
            name: name of the weights.
        """
        for table in (self._memory, self.tags, self.born, self.files):
            table.pop(name, None)

    def drop(self, name: str, since: int) -> None:
        """Forget weights that lost; their file is deleted when no checkpoint needs it.

        Args:
            name: name of the weights.
            since: number of the validation at which they were dropped.
        """
        self.drop_file(name, since)
        if name in self._parts:
            # Until the sidecar is on disk, this file shows that the validation was cut off.
            self._discarded.append(self._parts.pop(name))
        self.forget(name)

    def drop_file(self, name: str, since: int) -> None:
        """Note that the file of some weights is no longer needed.

        Args:
            name: name of the weights.
            since: number of the validation from which on it is not.
        """
        if name in self.files:
            file, tag, born = self.files.pop(name), self.tags[name], self.born.get(name, 0)
            self.dropped.append({"file": file, "tag": tag, "since": since, "born": born})

    def purge(self, newest: int | None, confirmed: int | None, alone: bool = False) -> None:
        """Delete the files that were dropped and that no checkpoint can ask for; on all ranks.

        Args:
            newest: number of the last validation known to the newest checkpoint that Lightning has begun to write;
                ``None`` if there is none, and so nothing to resume from.
            confirmed: the same for the newest checkpoint on disk.
            alone: do not tell the other ranks what could not be deleted.
        """

        def is_needed(item: dict[str, Any]) -> bool:
            if newest is None:
                return False
            # A checkpoint may be resumed together with the validation that came right after it, but no later one.
            return not (confirmed is not None and item["since"] <= confirmed) and item["born"] <= newest + 1

        left = [item for item in self.dropped if is_needed(item) or not self._delete(item)]
        self.dropped = left if alone else self.ranks.tell(left)

    def _delete(self, item: dict[str, Any]) -> bool:
        if not self.ranks.is_zero or item["file"] in self.files.values() or not item["tag"]:
            return True
        # By the tag: meanwhile another branch of the training may have put other weights under that name.
        return self._tag_of(item["file"], unsigned=True) != item["tag"] or self.folder.delete(item["file"])

    # ---- resuming ---------------------------------------------------------------------------------------------

    def recover(self, state: Mapping[str, Any]) -> None:
        """Find the files of the arms of an interrupted run by their tags; on rank 0.

        Args:
            state: its metadata: the weights that it had, and the files that it no longer needed.
        """
        self.files, self.tags, self.born = {}, {}, {}
        everywhere = {self._tag_of(file): file for file in self.folder.names("*.ckpt")}
        for name, filed in state["files"].items():
            file, tag = filed["file"], filed["tag"]
            if self._tag_of(file, unsigned=True) != tag:
                file = everywhere.get(tag, "")
            if tag and file:
                self.files[name], self.tags[name], self.born[name] = file, tag, state["born"].get(name, 0)
        self.dropped = [{key: item[key] for key in ("file", "tag", "since", "born")} for item in state["dropped"]]

    def adopt_untagged(self, files: Mapping[str, str]) -> None:
        """Take over the files of a run of version 0.1, which have no tags, by their names; on rank 0.

        Args:
            files: paths by name of the weights, of which only the last part counts.
        """
        for name, path in files.items():
            file = os.path.basename(str(path))
            found = self._look(file)
            if found is not None:
                self.tags[name], self.files[name], self.born[name] = content_tag(found.weights), file, 0

    def _tag_of(self, file: str, unsigned: bool = False) -> str:
        """Return the tag of the weights in a file of this run; empty for any other file.

        Args:
            file: its name.
            unsigned: take a file that does not say whose weights it holds, as version 0.1 wrote them.
        """
        found = self._look(file)
        if found is not None and found.run == self.folder.run:
            return found.tag
        return content_tag(found.weights) if found is not None and unsigned and not found.run else ""

    def promote(self, wanted: Mapping[str, str]) -> set[str]:
        """Give files that were under way their names if a sidecar knows them, and delete the others; on rank 0.

        Args:
            wanted: names of files by the tags of their weights.

        Returns:
            The tags of those that were deleted: they belong to a validation that was cut off.
        """
        cut_off = set()
        for part in self.folder.parts():
            tag = self._tag_of(part)
            file = wanted.get(tag)
            if file is not None and not os.path.lexists(self.folder.root / file):
                self.folder.path(part).replace(self.folder.path(file))
            else:
                cut_off.add(tag)
                self.folder.delete(part)
        return cut_off - {""} - set(wanted)
