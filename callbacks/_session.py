"""One training as the bandit sees it: the arms, where they live, and what is known about them."""

from __future__ import annotations

import math
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from tm_bandit._weights_file import content_tag
from tm_bandit.callbacks import _report
from tm_bandit.callbacks._arms import Arm, losers, surplus
from tm_bandit.callbacks._distributed import Ranks, check_shared
from tm_bandit.callbacks._folder import RunFolder, claim, default_root, disown, find
from tm_bandit.callbacks._pulls import Outcome, PullLoop
from tm_bandit.callbacks._reference import (
    REFERENCE,
    ReferenceCollector,
    lacks_reference,
    reference_tag,
    validation_loaders,
)
from tm_bandit.callbacks._report import HistoryText, Summary
from tm_bandit.callbacks._resume import STATE_VERSION, ResumePoint, checked, take_up
from tm_bandit.callbacks._sampling import RowSampler
from tm_bandit.callbacks._sidecar import sidecar_name, validation_id, write_sidecar
from tm_bandit.callbacks._store import ArmStore, is_on_disk
from tm_bandit.callbacks._weights import BorrowedModule, Weights, averaged_weights, persistent_tensors
from tm_bandit.errors import InputError
from tm_bandit.execution.rng import preserved_rng
from tm_bandit.metrics.fid import OptimisticFID
from tm_bandit.reference import ReferenceStatistics
from tm_bandit.report.result import SelectionResult
from tm_bandit.selection.selector import ModelSelector

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from tm_bandit.callbacks.bandit_checkpoint import BanditCheckpoint

#: An arm that fails in so many validations in a row, while others do not, is out: one error may pass, two do not.
_STRIKES = 2

#: What version 0.1 left in the folder, which nobody needs once a checkpoint of this version is on disk.
_LEFT_BY_01 = ("stats.pt", "stats.previous.pt", "files.json")


class Session:
    """Admits arms, spends the budget, keeps the books; one per training, on all ranks.

    Rank 0 owns the statistics and decides. The others hold the arms' weights, draw their share of each pull, and are
    told the outcome.

    Args:
        settings: the callback.
        trainer: the running Trainer.
        module: the module that is being trained.
    """

    def __init__(self, settings: BanditCheckpoint, trainer: Trainer, module: LightningModule) -> None:
        self.settings = settings
        self.trainer = trainer
        self.module = module
        self.ranks = Ranks(trainer)
        self.done_step = -1
        self.arms: dict[str, Arm] = {}
        self.store: ArmStore
        self.cut_off = False
        self._known: list[str] = []
        self._failures: dict[str, int] = {}
        self._lineage: list[str] = []
        self._number = 0
        self._dumped: tuple[int, str] | None = None
        self._confirmed: tuple[int, str] | None = None
        self._selector: ModelSelector | None = None
        self._resumed: ResumePoint | None = None
        self._live_tag = ""
        self._collector: ReferenceCollector | None = None
        self._reference = ""
        self._borrower: OptimisticFID | None = None
        self._summary: Summary | None = None
        self._rows = self.row_sampler(settings)
        self._history = HistoryText()
        self._said: set[str] = set()

    @staticmethod
    def row_sampler(settings: BanditCheckpoint) -> RowSampler:
        """Return what draws rows the way the callback says."""
        return RowSampler(settings.sampler, settings.metric, settings.variants, settings.chunk_size)

    # ---- the start of a training ------------------------------------------------------------------------------

    def open(self, point: ResumePoint | None) -> Summary | None:
        """Prepare everything and refuse what would fail later; return what a resumed training already knows.

        Args:
            point: the checkpoint that is resumed, if any.

        Raises:
            InputError: if something cannot work.
        """
        self.settings.metric.to(self.module.device)
        chunks = -(-self.settings.batch_size // self.settings.chunk_size)
        if chunks < self.ranks.world_size:
            rank_zero_warn(
                f"{self.settings.key}: a pull of {self.settings.batch_size} samples is drawn in {chunks} calls of the "
                f"sampler, so {self.ranks.world_size - chunks} of {self.ranks.world_size} ranks draw samples that are "
                f"thrown away; give chunk_size={max(1, self.settings.batch_size // self.ranks.world_size)}."
            )
        if point is not None:
            point = replace(point, state=checked(point.state))
        folder = self._open_folder(point)
        self.store = ArmStore(folder, self.settings.store, active=not _is_dev_run(self.trainer))
        try:
            if self.store.active:
                check_shared(folder.root, self.ranks, everywhere=self.settings.store == "disk")
            if self._resumed is not None:
                self._find_reference(self._resumed.state)
            if lacks_reference(self.settings.metric):
                self._collector = ReferenceCollector(self.settings.metric, self.settings.real)
            self._rehearse()
            if self._collector is None:
                self._start_selector()
        except BaseException:
            if self.store.active and self.ranks.is_zero and point is None:
                disown(folder.root, folder.run)
            raise
        return self._summary

    def _open_folder(self, point: ResumePoint | None) -> RunFolder:
        """Find the folder of the run that is resumed, or take a new one; on all ranks."""
        run = self.ranks.tell(secrets.token_hex(8)) if point is None else point.state["run"]
        error: Exception | None = None
        root, found = self._wanted_folder(), None
        if self.ranks.is_zero and not _is_dev_run(self.trainer):
            try:
                if point is not None:
                    found = find(root, run, point.state["folder"], point.path, point.in_place)
                root = claim(found or root, run)
            except Exception as reason:  # the other ranks must hear of it
                error = reason
        self.ranks.agree(error)
        root, found = self.ranks.tell((root, found))
        if point is not None and found is not None:
            self._resumed = point
            weights = persistent_tensors(self.module)
            self._live_tag = content_tag(weights) if self.ranks.is_zero else ""
        elif point is not None and point.state["arms"]:
            rank_zero_warn(
                f"The arms of the run that is resumed were in {point.state['folder']}. They are neither in {root} nor "
                "beside the checkpoint, so they are left alone and the selection starts anew. To go on with them, give "
                "dirpath= their folder."
            )
        return RunFolder(root, run)

    def _wanted_folder(self) -> Path:
        given = self.settings.dirpath
        if given is None:
            return self.ranks.tell(default_root(self.trainer, self.settings.key))
        others = [c for c in self.trainer.checkpoint_callbacks if c is not self.settings]
        shared = any(getattr(c, "dirpath", None) == given and isinstance(c, type(self.settings)) for c in others)
        root = Path(given).expanduser().absolute()
        return root / self.settings.key if shared else root

    def _rehearse(self) -> None:
        """Draw from the sampler, look at a validation batch, write the weights: a mistake costs seconds, no epoch."""
        error: Exception | None = None
        with preserved_rng(), torch.inference_mode(False), torch.no_grad(), BorrowedModule(self.module) as borrowed:
            try:
                if self._collector is not None and self.trainer.enable_validation:
                    self._collector.check(validation_loaders(self.trainer), self.module.device)
                self._rows.rehearse(self.trainer, self.module)
            except Exception as reason:  # any: the other ranks must hear of it before all of them stop
                error = reason
            self.ranks.agree(error)
            self.store.rehearse(self.trainer, borrowed, self.ranks)

    def _find_reference(self, state: dict[str, Any]) -> None:
        """Take back the reference that was collected before the interruption, if it is still what it was."""
        if not state["reference"] or not lacks_reference(self.settings.metric):
            return
        found: ReferenceStatistics | None = None
        path = self.store.folder.root / REFERENCE
        if self.ranks.is_zero and self.store.folder.has(REFERENCE):
            try:
                found = ReferenceStatistics.load(path)
            except InputError:
                found = None
            if found is not None and state["reference"] not in ("unknown", reference_tag(found)):
                found = None
        found = self.ranks.tell(found)
        if found is None:
            rank_zero_warn(
                f"The reference of the run that is resumed is missing in {path.parent}, or it is another one. It is "
                "collected anew in the next validation. Unless it comes out the same, all arms are sampled anew."
            )
            return
        self._lend_reference(self.settings.metric, found)

    def _start_selector(self) -> None:
        """Make the selector, which needs the reference, and give it the arms of a resumed training."""
        outcome: Summary | None = None
        error: Exception | None = None
        if self.ranks.is_zero:
            try:
                outcome = self._make_selector()
            except Exception as reason:  # any: the other ranks must hear of it before they wait for the arms
                error = reason
        self.ranks.agree(error)
        self._take_over(self.ranks.tell(self._books()))
        self._summary = self.ranks.tell(outcome)
        self._resumed = None

    def _make_selector(self) -> Summary | None:
        """Make the selector on the rank that owns it, and return what it knows already."""
        self._selector = self.settings.new_selector(self.settings.newcomers(self.trainer))
        if self._resumed is None:
            return None
        self._go_on(self._resumed)
        for name in self.arms:
            if name not in self._selector.arms and name not in self._selector.retired:
                self._selector.add_arm(name)
        active = self._selector.arms
        self.arms = {name: arm for name, arm in self.arms.items() if name in active}
        if not self.arms or self._selector.spent == 0:
            return None
        return self._summarise(self._selector.result(), tuple(self.arms))

    def _go_on(self, point: ResumePoint) -> None:
        assert self._selector is not None
        resumed = take_up(self.store, self._selector, point, self._live_tag, self._reference)
        state = resumed.state
        arms = [Arm(**values) for values in state["arms"]]
        self.arms = {arm.name: arm for arm in arms if arm.variant in self.settings.variants}
        self._known = list(state["known"])
        self._failures = dict(state["failures"])
        self.done_step, self._number = state["step"], state["number"]
        self._lineage, self.cut_off = list(resumed.lineage), resumed.cut_off
        # The checkpoint that is resumed is on disk.
        self._dumped = self._confirmed = (point.state["number"], point.state["validation"])

    def _books(self) -> dict[str, Any]:
        """Return what rank 0 has to tell the others when it has found it out alone."""
        names = ("arms", "cut_off", "done_step", "_known", "_failures", "_lineage", "_number", "_dumped", "_confirmed")
        files = {"files": self.store.files, "tags": self.store.tags, "dropped": self.store.dropped}
        return {"session": {name: getattr(self, name) for name in names}, "store": files}

    def _take_over(self, books: dict[str, Any]) -> None:
        vars(self).update(books["session"])
        vars(self.store).update(books["store"])

    # ---- the reference ----------------------------------------------------------------------------------------

    def collect(self, batch: Any) -> None:
        """Take the real images of a validation batch in, while the metric has no reference."""
        if self._collector is not None:
            with preserved_rng(), torch.inference_mode(False), torch.no_grad():
                self._collector.add(batch, self.module.device)

    def finish_reference(self) -> None:
        """Make the reference of what was collected over all ranks; nothing if there is one already."""
        if self._collector is None:
            return
        collector, self._collector = self._collector, None
        reference = collector.finish(self.ranks)
        if self.store.active and self.ranks.is_zero:
            try:
                reference.save(self.store.folder.path(REFERENCE))
            except (OSError, InputError) as error:
                rank_zero_warn(f"The reference could not be written ({error}); a resumed training collects it anew.")
        self._lend_reference(collector.metric, reference)
        self._start_selector()

    def _lend_reference(self, metric: OptimisticFID, reference: ReferenceStatistics) -> None:
        metric.use_reference(reference)
        self._borrower, self._reference = metric, reference_tag(reference)

    def close(self) -> None:
        """Take back what was lent to the user's metric, before another training begins."""
        if self._borrower is not None:
            self._borrower.use_reference(None)

    # ---- one validation ---------------------------------------------------------------------------------------

    def evaluate(self) -> Summary:
        """Admit the current weights, spend the budget, and return what is known then."""
        step = self.trainer.global_step
        self._confirm()
        with (
            preserved_rng(),
            torch.inference_mode(False),
            torch.no_grad(),
            BorrowedModule(self.module) as borrowed,
        ):
            self._drop_missing()
            newcomers = self._admit(step, borrowed)
            outcome = self._spend(borrowed)
            summary = self.ranks.tell(self._conclude(step, outcome) if self.ranks.is_zero else None)
            assert summary is not None
            self._tidy(summary, borrowed)
        self.done_step, self.cut_off = step, False
        self._number += 1
        tags = {name: self.store.tags[name] for name in newcomers if name in self.store.tags}
        self._lineage.append(validation_id(self._lineage[-1] if self._lineage else "", step, tags))
        return self._commit(summary)

    def _confirm(self) -> None:
        """Learn whether the checkpoint that Lightning wrote last is on disk; on all ranks."""
        if self._dumped != self._confirmed and self.ranks.tell(is_on_disk(self.trainer)):
            self._confirmed = self._dumped

    def _drop_missing(self) -> None:
        for weights in self.store.missing({arm.weights for arm in self.arms.values()}, self.ranks):
            for arm in [arm for arm in self.arms.values() if arm.weights == weights]:
                del self.arms[arm.name]
                self._retire(arm.name, f"its weights {self.store.files.get(weights, weights)} are gone")
            self.store.forget(weights)

    def _admit(self, step: int, borrowed: BorrowedModule[LightningModule]) -> list[str]:
        """Take the current weights in, and return their names."""
        sources: dict[bool, Weights] = {False: borrowed.live()}
        if self.settings.averaged and (average := averaged_weights(self.trainer)) is not None:
            sources[True] = average
        if self.store.kind == "disk":
            for name in self.store.unwritten():  # an earlier attempt failed
                self.store.write(name, self.trainer, borrowed, self.ranks)
        names = []
        for averaged, weights in sources.items():
            arms = [Arm(step, averaged, variant) for variant in self.settings.variants]
            arms = [arm for arm in arms if arm.name not in self._known]
            if arms:
                names.append(arms[0].weights)
                self.store.add(arms[0].weights, weights, self.trainer, borrowed, self.ranks)
            for arm in arms:
                self.arms[arm.name] = arm
                self._known.append(arm.name)
                if self._selector is not None:
                    self._selector.add_arm(arm.name)
        return names

    def _spend(self, borrowed: BorrowedModule[LightningModule]) -> Outcome:
        pulls = 2 if _is_dev_run(self.trainer) else self.settings.budget // self.settings.batch_size
        loop = PullLoop(self._rows, self.store, self.arms, self.settings.batch_size, self.ranks)
        with _report.progress(self.trainer, self.settings.key, pulls * self.settings.batch_size) as advance:
            return loop.run(self.trainer, borrowed, self._selector, pulls, advance)

    def _retire(self, name: str, reason: str) -> None:
        if self._selector is not None:
            self._selector.retire_arm(name, reason)
        self._say(f"the arm {name} is retired: {reason}")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            rank_zero_warn(f"{self.settings.key}: {text}")

    def _count_failures(self, outcome: Outcome) -> None:
        """Retire the arms that keep failing while others do not; on rank 0.

        If every arm fails, it is not the arms that are at fault: they stay, and the next validation tries again.
        """
        assert self._selector is not None
        reasons = outcome.reasons
        if reasons and set(self._selector.arms) <= set(reasons):
            self._say(
                f"no arm could be sampled in this validation ({next(iter(reasons.values()))}). All of them stay, the "
                "best one is the last known one, and the next validation tries again."
            )
            return
        for name in self._selector.arms:
            if name not in reasons:
                self._failures.pop(name, None)
                continue
            self._failures[name] = self._failures.get(name, 0) + 1
            if self._failures[name] < _STRIKES:
                self._say(f"the arm {name} is left out of this validation: {reasons[name]}")
            else:
                del self._failures[name]
                self._retire(name, f"it failed in {_STRIKES} validations in a row: {reasons[name]}")

    def _conclude(self, step: int, outcome: Outcome) -> Summary:
        """Say what is known, then drop the surplus of arms; on rank 0."""
        selector = self._selector
        assert selector is not None
        failed = bool(outcome.reasons) and set(selector.arms) <= set(outcome.reasons)
        self._count_failures(outcome)
        active = {name: arm for name, arm in self.arms.items() if name in selector.arms}
        result = selector.result()
        values = _report.scalars(result, active, step, set(outcome.failed))
        rank_zero_info(_report.line(result, self.settings.key, step, values, outcome.samples))
        lost: tuple[str, ...] = ()
        if result.best is not None and not failed:
            order = losers([selector.stats(name) for name in active], selector.stats(result.best))
            dropped = surplus(active.values(), order, result.best, self.settings.max_arms)
            for arm in dropped:
                del active[arm.name]
                selector.retire_arm(arm.name, "dropped to make room for better arms")
            lost = tuple(arm.name for arm in dropped)
            if dropped:
                result = selector.result()
        return replace(self._summarise(result, tuple(active), values), lost=lost, failures=self._failures)

    def _summarise(
        self, result: SelectionResult, active: tuple[str, ...], values: dict[str, float] | None = None
    ) -> Summary:
        arms = {name: self.arms[name] for name in active}
        if values is None:
            values = _report.scalars(result, arms, max(arm.step for arm in arms.values()))
        best = arms.get(result.best or "")
        if best is None:
            return Summary(values, result, "", "", active)
        return Summary(values, result, best.name, self.store.path(best.weights), active)

    def _tidy(self, summary: Summary, borrowed: BorrowedModule[LightningModule]) -> None:
        """Let go of what no remaining arm needs, and see to it that the best one has a file; on all ranks."""
        kept = {name: self.arms[name] for name in summary.arms}
        lost = {self.arms[name].weights for name in summary.lost}
        number = self._number + 1
        for weights in {arm.weights for arm in self.arms.values()} - {arm.weights for arm in kept.values()}:
            if weights in lost:
                self.store.drop(weights, number, self.ranks)
            else:
                self.store.forget(weights)  # they failed; their file is somebody's model all the same
        self.arms = kept
        self._failures = summary.failures
        if not summary.best_arm:
            return
        best = kept[summary.best_arm].weights
        self.store.write(best, self.trainer, borrowed, self.ranks)
        if self.store.kind == "memory" and self.store.has_file(best):
            for name in self.store.in_both():
                if name != best:
                    self.store.drop_file(name, number)

    def _commit(self, summary: Summary) -> Summary:
        """Put what is known on disk, in an order in which a kill at any moment loses nothing; on all ranks."""
        written = False
        planned = self.ranks.tell(self.store.planned() if self.ranks.is_zero else {})
        if self.ranks.is_zero and self.store.active:
            written = self._write_sidecar(summary, planned)
        self.store.commit(planned, self.ranks)
        summary = replace(summary, best_path=self._best_path(summary))
        if self.ranks.is_zero and self.store.active:
            self._write_result(summary)
        if self.ranks.tell(written):
            self._let_go()
        self._summary = summary
        return summary

    def _best_path(self, summary: Summary) -> str:
        path = self.store.path(self.arms[summary.best_arm].weights) if summary.best_arm else ""
        before = "" if self._summary is None else self._summary.best_path
        # A best arm that could not be written yet leaves the last one that was.
        return path or before

    def _write_sidecar(self, summary: Summary, planned: dict[str, dict[str, str]]) -> bool:
        assert self._selector is not None
        assert summary.result is not None
        state = {**self.state_dict(), "files": planned}
        try:
            history = self._history.read(summary.result.history)
            write_sidecar(self.store.folder, self._lineage, state, self._selector.state_dict(), history)
        except (OSError, RuntimeError, InputError) as error:  # torch reports a full disk as a RuntimeError
            self._say(f"the statistics could not be written ({error}). Nothing is deleted until they can be.")
            return False
        return True

    def _write_result(self, summary: Summary) -> None:
        result = summary.result
        assert result is not None
        with _report.never_fatal(self._say, "the result could not be written"):
            _report.write_result(self.store.folder, result, self._history.read(result.history))
        _report.publish(self.trainer, self.settings.key, result, None, self._say, plot=False)

    def _let_go(self) -> None:
        """Delete what the newest checkpoint on disk cannot ask for any more; on all ranks."""
        confirmed = -1 if self._confirmed is None else self._confirmed[0]
        # As long as there is no checkpoint at all, there is nothing to resume from.
        self.store.purge(math.inf if self._dumped is None else confirmed, self.ranks)
        if not self.ranks.is_zero:
            return
        needed = {point[1] for point in (self._dumped, self._confirmed) if point is not None}
        for before, validation in zip(["", *self._lineage], self._lineage[:-1], strict=False):
            if validation not in needed and before not in needed:
                self.store.folder.delete(sidecar_name(validation))
        if self._confirmed is not None and self._confirmed[1]:
            for name in _LEFT_BY_01:
                self.store.folder.delete(name)

    # ---- the end, and the state -------------------------------------------------------------------------------

    def publish(self) -> None:
        """Draw the plot for the folder and the loggers; on rank 0."""
        result = None if self._summary is None else self._summary.result
        if self.ranks.is_zero and result is not None and self.store.active:
            folder = self.store.folder
            _report.publish(self.trainer, self.settings.key, result, folder, self._say, plot=True)

    def finish(self) -> None:
        """Delete what was dropped: the training has ended, and all checkpoints are on disk."""
        if self.store.active and self._lineage:
            self._confirmed = self._dumped
            self._let_go()

    def note_checkpoint(self) -> None:
        """Remember that Lightning is writing a checkpoint, and what it knows."""
        self._dumped = (self._number, self._lineage[-1] if self._lineage else "")

    def state_dict(self) -> dict[str, Any]:
        """Return the metadata for Lightning's checkpoint: names and tags, no statistics."""
        if self._resumed is not None:
            return self._resumed.state  # nothing has been taken up yet
        return {
            "version": STATE_VERSION,
            "run": self.store.folder.run,
            "validation": self._lineage[-1] if self._lineage else "",
            "number": self._number,
            "step": self.done_step,
            "folder": str(self.store.folder.root),
            "files": self.store.planned(),
            "dropped": [dict(item) for item in self.store.dropped],
            "arms": [arm.to_dict() for arm in self.arms.values()],
            "known": list(self._known),
            "failures": dict(self._failures),
            "reference": self._reference,
        }


def _is_dev_run(trainer: Trainer) -> bool:
    return bool(getattr(trainer, "fast_dev_run", False))  # Lightning sets it without declaring it
