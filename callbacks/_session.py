"""One training run as the bandit sees it: the arms, where they live, and what is known about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from tm_bandit._guards import preserved_rng
from tm_bandit._weights_file import content_tag
from tm_bandit.callbacks import _reference, _report
from tm_bandit.callbacks._also import Companions
from tm_bandit.callbacks._arms import TrainedArm, losers, note_variant, surplus
from tm_bandit.callbacks._books import STRIKES, Books
from tm_bandit.callbacks._checkpoint import is_on_disk
from tm_bandit.callbacks._commit import Commit
from tm_bandit.callbacks._distributed import check_shared, ranks_of
from tm_bandit.callbacks._folder import disown
from tm_bandit.callbacks._loggers import PLOT, publish
from tm_bandit.callbacks._opening import is_dev_run, is_validation_next, open_folder, warn_of_idle_ranks
from tm_bandit.callbacks._pulls import Outcome, PullLoop
from tm_bandit.callbacks._report import Summary
from tm_bandit.callbacks._resume import ResumePoint, checked, take_up
from tm_bandit.callbacks._sampling import RowSampler
from tm_bandit.callbacks._store import ArmStore
from tm_bandit.callbacks._weights import Borrowed, BorrowedModule, Weights, averaged_weights, persistent_tensors
from tm_bandit.errors import InputError
from tm_bandit.execution.conditions import Conditions
from tm_bandit.metrics.referenced_metric import ReferencedMetric
from tm_bandit.reference import ReferenceStatistics
from tm_bandit.report.result import SelectionResult
from tm_bandit.selection.selector import ModelSelector

if TYPE_CHECKING:
    from tm_bandit.callbacks.bandit_checkpoint import BanditCheckpoint


class Session:
    """Admits arms, spends the budget, keeps the books; one per training run, on all ranks.

    Rank 0 owns the statistics and decides. The others hold weights, draw their share of each pull, and are told.

    Args:
        settings: the callback.
        trainer: the running Trainer.
        module: the module that is being trained.
    """

    def __init__(self, settings: BanditCheckpoint, trainer: Trainer, module: LightningModule) -> None:
        self.settings = settings
        self.trainer = trainer
        self.module = module
        self.ranks = ranks_of(trainer)
        self.books = Books()
        self.store: ArmStore
        self.cut_off = False
        self._state: dict[str, Any] = {}
        self._borrowed: Borrowed | None = None
        self._selector: ModelSelector | None = None
        self._resumed: ResumePoint | None = None
        self._live_tag = ""
        self._missed: tuple[int, dict[bool, Weights]] | None = None
        self._collector: _reference.ReferenceCollector | None = None
        self._borrower: ReferencedMetric | None = None
        self._summary: Summary | None = None
        given = (settings.sampler, settings.metric, settings.variants, settings.chunk_size)
        self._rows = RowSampler(*given, Conditions.of(settings.conditions))
        self._said: set[str] = set()
        self._companions = Companions(settings.also, self._say)

    def open(self, point: ResumePoint | None) -> Summary | None:
        """Prepare everything and refuse what would fail later; return what a resumed training run already knows.

        Args:
            point: the resumed checkpoint, if any.

        Raises:
            InputError: if something cannot work.
        """
        self.settings.metric.to(self.module.device)
        warn_of_idle_ranks(self.settings, self.ranks)
        if point is not None:
            point = replace(point, state=checked(point.state))
        folder, found = open_folder(self.settings, self.trainer, self.ranks, point)
        if found:
            self._resumed = point
            with suppress(Exception):  # tensors of a kind that has no bytes
                self._live_tag = content_tag(persistent_tensors(self.module)) if self.ranks.is_zero else ""
        active = not is_dev_run(self.trainer)
        self.store = ArmStore(folder, self.settings.store, self.trainer, self.ranks, active)
        self._disk = Commit(self.store, self.trainer, self.settings.key, self._say)
        try:
            if self.store.active:
                check_shared(folder.root, self.ranks, everywhere=self.settings.store == "disk")
            if self._resumed is not None:
                self._find_reference(self._resumed.state)
            if _reference.lacks_reference(self.settings.metric):
                self._collector = _reference.ReferenceCollector(self.settings.metric, self.settings.real)
            self._rehearse()
            if self._collector is None:
                self._start_selector()
        except BaseException:
            folder.unlock()
            if self.store.active and self.ranks.is_zero and point is None:
                disown(folder.root, folder.run)
            raise
        return self._summary

    def _rehearse(self) -> None:
        """Draw a sample, look at a validation batch, write the weights: a mistake costs seconds, not an epoch."""
        with self._borrowing() as borrowed:
            with self.ranks.agreed():
                if self._collector is not None and self.trainer.enable_validation:
                    self._collector.check(_reference.validation_loaders(self.trainer), self.module.device)
                self._rows.rehearse(self.trainer, self.module, self.settings.batch_size)
            self.store.rehearse(borrowed)

    def _find_reference(self, state: dict[str, Any]) -> None:
        """Restore the reference that was collected before the interruption, if it is unchanged."""
        # Before the first validation has ended, no checkpoint knows of a reference that is already there.
        there = not state["number"] and self.store.folder.has(_reference.REFERENCE)
        expected = state["reference"] or ("unknown" if there else "")
        if not self.ranks.tell(expected) or not _reference.lacks_reference(self.settings.metric):
            return
        found: ReferenceStatistics | None = None
        path = self.store.folder.root / _reference.REFERENCE
        if self.ranks.is_zero and self.store.folder.has(_reference.REFERENCE):
            with suppress(InputError):
                kept = ReferenceStatistics.load(path)
                found = kept if expected in ("unknown", _reference.reference_tag(kept)) else None
        found = self.ranks.tell(found)
        if found is None:
            rank_zero_warn(
                f"The reference of the resumed run is missing in {path.parent}, or it is another one. It is collected "
                "again in the next validation. Unless it comes out the same, all arms are sampled again."
            )
            return
        self._lend_reference(self.settings.metric, found)

    def _start_selector(self) -> None:
        """Make the selector, which needs the reference, and give it the arms of a resumed training run."""
        with self.ranks.agreed():
            outcome = self._make_selector() if self.ranks.is_zero else None
        tables = ("files", "tags", "born", "dropped")
        self.books, self.cut_off, self._summary, found = self.ranks.tell(
            (self.books, self.cut_off, outcome, {name: getattr(self.store, name) for name in tables})
        )
        vars(self.store).update(found)
        self._resumed = None
        self._state = self.books.describe(self.store, self.store.planned())

    def _make_selector(self) -> Summary | None:
        """Make the selector on the rank that owns it, and return what it already knows."""
        self._selector = self.settings.new_selector(self.settings.newcomers(self.trainer))
        if self._resumed is None:
            return None
        resumed = take_up(self.store, self._selector, self._resumed, self._live_tag, self.books.reference)
        self.books.go_on(resumed, self._resumed, self.settings.variants)
        self.cut_off = resumed.cut_off
        for name in self.books.arms:
            if name not in self._selector.arms and name not in self._selector.retired:
                self._selector.add_arm(name)
        for name in [name for name in self._selector.arms if name not in self.books.arms]:
            self._retire(name, "its variant is no longer listed")
        active = self._selector.arms
        self.books.arms = {name: arm for name, arm in self.books.arms.items() if name in active}
        if not self.books.arms or self._selector.spent == 0:
            return None
        summary = self._summarise(self._selector.result(), tuple(self.books.arms))
        if self.store.active:
            self._disk.write_result(summary.result)  # the process may have been killed before it could
        return summary

    def collect(self, batch: Any) -> None:
        """Add the real images of a validation batch, while the metric has no reference."""
        if self._collector is not None:
            with preserved_rng(), torch.inference_mode(False), torch.no_grad():
                self._collector.add(batch, self.module.device)

    def finish_reference(self) -> None:
        """Make the reference from what was collected on all ranks; do nothing if there already is one."""
        if self._collector is None:
            return
        collector, self._collector = self._collector, None
        reference = collector.finish(self.ranks)
        if self.store.active and self.ranks.is_zero:
            try:
                reference.save(self.store.folder.path(_reference.REFERENCE))
            except (OSError, InputError) as error:
                rank_zero_warn(f"The reference could not be written ({error}); a resumed run collects it again.")
        self._lend_reference(collector.metric, reference)
        self._start_selector()

    def _lend_reference(self, metric: ReferencedMetric, reference: ReferenceStatistics) -> None:
        metric.use_reference(reference)
        self._borrower, self.books.reference = metric, _reference.reference_tag(reference)

    def close(self) -> None:
        """Take back what was lent to the user's metric, before another training run begins."""
        self.release()
        if self._borrower is not None:
            self._borrower.use_reference(None)

    def remember(self) -> None:
        """Keep the weights of a checkpoint whose validation was cut off until there is a reference to score them by."""
        point = self._resumed
        if self._collector is not None and point is not None and point.state.get("due"):
            raw = {name: t.detach().to("cpu", copy=True) for name, t in persistent_tensors(self.module).items()}
            self._missed = point.step, self._sources(raw)

    def _sources(self, raw: Weights) -> dict[bool, Weights]:
        """Return the raw weights and, if there are any, the averaged ones."""
        average = averaged_weights(self.trainer) if self.settings.averaged else None
        return {False: raw} if average is None else {False: raw, True: average}

    def make_up(self) -> Summary | None:
        """Evaluate what :meth:`remember` has kept, if anything."""
        if self._missed is None or not self.cut_off:
            return None
        (step, sources), self._missed = self._missed, None
        return self.evaluate(step, sources)

    def evaluate(self, step: int | None = None, sources: dict[bool, Weights] | None = None) -> Summary:
        """Admit weights, spend the budget, and return what is known then.

        Args:
            step: the ``global_step`` of the weights; the present one by default.
            sources: the raw and the averaged weights; the present ones by default.
        """
        step = self.trainer.global_step if step is None else step
        self._confirm()
        with self._borrowing() as borrowed:
            self._drop_missing()
            self.books.admitted = self._admit(step, sources or self._sources(borrowed.live()), borrowed)
            outcome = self._spend(borrowed)
            summary = self.ranks.tell(self._conclude(step, outcome) if self.ranks.is_zero else None)
            assert summary is not None
            summary = self._companions.extend(summary, step, self.books.arms, self.module.device)
            self._tidy(summary, borrowed)
        self.books.turn_page(step)
        self.cut_off = False
        return self._commit(summary)

    @contextmanager
    def _borrowing(self) -> Iterator[Borrowed]:
        with preserved_rng(), torch.inference_mode(False), torch.no_grad(), BorrowedModule(self.module) as borrowed:
            self._borrowed = borrowed
            try:
                yield borrowed
            finally:
                self._borrowed = None

    def _confirm(self) -> None:
        """Find out whether the checkpoint that Lightning wrote last is on disk; on all ranks."""
        if self.books.dumped != self.books.confirmed and self.ranks.tell(is_on_disk(self.trainer)):
            self.books.confirmed = self.books.dumped

    def _drop_missing(self) -> None:
        for weights in self.store.missing({arm.weights for arm in self.books.arms.values()}):
            for arm in [arm for arm in self.books.arms.values() if arm.weights == weights]:
                del self.books.arms[arm.name]
                file = self.store.files.get(weights, weights)
                self._retire(arm.name, f"its weights {file} are gone, or the file holds others")
            self.store.forget(weights)

    def _admit(self, step: int, sources: dict[bool, Weights], borrowed: Borrowed) -> dict[str, str]:
        """Add weights, and return their tags by name."""
        if self.store.kind == "disk":
            for name in self.store.unwritten():  # an earlier attempt failed
                self.store.write(name, borrowed)
        names = []
        for averaged, weights in sources.items():
            arms = [TrainedArm(step, averaged, variant) for variant in self.settings.variants]
            arms = [arm for arm in arms if arm.name not in self.books.known]
            if arms:
                names.append(arms[0].weights)
                self.store.add(arms[0].weights, weights, self.books.number + 1, borrowed)
            for arm in arms:
                self.books.admit(arm)
                if self._selector is not None:
                    self._selector.add_arm(arm.name)
        return {name: self.store.tags[name] for name in names}

    def _spend(self, borrowed: Borrowed) -> Outcome:
        pulls = 2 if is_dev_run(self.trainer) else self.settings.budget // self.settings.batch_size
        loop = PullLoop(self._rows, self.store, self.books.arms, self.settings.batch_size, self._companions)
        with _report.progress(self.trainer, self.settings.key, pulls * self.settings.batch_size) as advance:
            return loop.run(borrowed, self._selector, pulls, advance)

    def _retire(self, name: str, reason: str) -> None:
        if self._selector is not None:
            self._selector.retire_arm(name, reason)
        self._say(f"the arm {name} is retired: {reason}")

    def _say(self, text: str, kind: str = "") -> None:
        """Warn, once for each text, or once for each kind of text."""
        if (kind or text) not in self._said:
            self._said.add(kind or text)
            rank_zero_warn(f"{self.settings.key}: {text}")

    def _count_failures(self, selector: ModelSelector, reasons: dict[str, str]) -> bool:
        """Retire the arms that keep failing while others do not; return whether all failed. On rank 0.

        If every arm fails, the arms are not at fault: they stay, and the next validation tries again.
        """
        if reasons and set(selector.arms) <= set(reasons):
            self._say(
                f"no arm could be sampled in this validation ({next(iter(reasons.values()))}). All of them stay, the "
                "best one is the last known one, and the next validation tries again.",
                kind="no arm",
            )
            return True
        known = {name for name in selector.arms if selector.stats(name).num_samples >= selector.burn_in}
        for name in self.books.strike(selector.arms, reasons, known):
            self._retire(name, f"it failed in {STRIKES} validations in a row: {reasons[name]}")
        for name in self.books.failures.keys() & reasons.keys():
            self._say(f"the arm {name} is left out of this validation: {reasons[name]}")
        return False

    def _conclude(self, step: int, outcome: Outcome) -> Summary:
        """Say what is known, then drop the surplus of arms; on rank 0."""
        selector = self._selector
        assert selector is not None
        # All numbers are derived from the samples again, as after an interruption: a resumed training run must equal
        # one that was not interrupted, and long running sums differ in their last bits.
        with _report.never_fatal(self._say, "the numbers could not be derived again"):
            selector.load_state_dict(selector.state_dict())
        failed = self._count_failures(selector, outcome.reasons)
        active = {name: arm for name, arm in self.books.arms.items() if name in selector.arms}
        result = selector.result()
        values = _report.scalars(result, active, step, set(outcome.failed))
        rank_zero_info(_report.line(result, self.settings.key, step, values, outcome.samples, self._said))
        lost: tuple[str, ...] = ()
        best = self.books.arms.get(result.best or "")
        # If the best arm could not be written, those that were written are all there is after an interruption.
        safe = best is not None and (self.store.kind == "memory" or self.store.has_file(best.weights))
        if result.best is not None and not failed and (safe or not self.store.active):
            order = losers(result.arms, result.best)
            dropped = surplus(active.values(), order, result.best, self.settings.max_arms)
            for arm in dropped:
                del active[arm.name]
                selector.retire_arm(arm.name, "dropped to make room for better arms")
            lost = tuple(arm.name for arm in dropped)
            if dropped:
                result = selector.result()
        return replace(self._summarise(result, tuple(active), values), lost=lost, failures=dict(self.books.failures))

    def _summarise(
        self, result: SelectionResult, active: tuple[str, ...], values: dict[str, float] | None = None
    ) -> Summary:
        arms = {name: self.books.arms[name] for name in active}
        note_variant(result, self.settings.variants)
        if values is None:
            values = _report.scalars(result, arms, max(arm.step for arm in arms.values()))
        best = arms.get(result.best or "")
        name, path = ("", "") if best is None else (best.name, self.store.path(best.weights))
        return Summary(values, result, name, path, active)

    def _tidy(self, summary: Summary, borrowed: Borrowed) -> None:
        """Drop what no remaining arm needs, and make sure that the best one has a file; on all ranks."""
        kept = {name: self.books.arms[name] for name in summary.arms}
        lost = {self.books.arms[name].weights for name in summary.lost}
        number = self.books.number + 1
        for weights in {arm.weights for arm in self.books.arms.values()} - {arm.weights for arm in kept.values()}:
            if weights in lost:
                self.store.drop(weights, number)
            else:
                self.store.forget(weights)  # they failed, but their file is still a model
        self.books.arms = kept
        self.books.failures = summary.failures
        if not summary.best_arm:
            return
        best = kept[summary.best_arm].weights
        self.store.write(best, borrowed)
        if self.store.kind == "memory" and self.store.has_file(best):
            for name in self.store.in_both():
                if name != best:
                    self.store.drop_file(name, number)

    def _commit(self, summary: Summary) -> Summary:
        """Put what is known on disk; once it is there, any checkpoint that Lightning writes says so."""
        self._summary, self._state = self._disk.write(summary, self._summary, self.books, self._selector)
        if self.ranks.is_zero and self.store.active:
            self._disk.write_result(self._summary.result)
        self._disk.let_go(self._summary, self.books)
        return self._summary

    # ---- the end, and the state -------------------------------------------------------------------------------

    def last_chance(self) -> Summary | None:
        """Write once more what could not be written before; return what is known then, if anything was."""
        best = self.books.arms.get("" if self._summary is None else self._summary.best_arm)
        names = self.store.unwritten()
        if self.store.kind == "memory":
            names = [name for name in names if best is not None and name == best.weights]
        if not self.store.active or not (names or self.store.unnamed()):
            return None
        with self._borrowing() as borrowed:
            for name in names:
                self.store.write(name, borrowed)
        return None if self._summary is None else self._commit(self._summary)

    def publish(self) -> None:
        """Draw the plot for the folder and the loggers; on rank 0."""
        if self.ranks.is_zero and self._summary is not None and self.store.active:
            picture, run = self.store.folder.path(PLOT), self.store.folder.run
            publish(self.trainer, self.settings.key, self._summary.result, self._say, picture, run)

    def finish(self) -> None:
        """Delete what was dropped: training has ended, and all checkpoints are on disk."""
        if self.store.active and self.books.lineage and self._resumed is None:
            if not self.store.folder.has(PLOT):
                self.publish()  # a run resumed at its very end does not reach `on_train_end`
            self.books.close()
            if self.ranks.is_zero and self._disk.is_safe(self._summary, self.books):
                for part in self.store.folder.parts():
                    self.store.folder.delete(part)
            self._disk.let_go(self._summary, self.books, alone=True)
        self.release()

    def hold(self) -> None:
        """Keep other processes from training in the folder of the run; on all ranks."""
        with self.ranks.agreed():
            if self.store.active and self.ranks.is_zero:
                self.store.folder.lock()

    def release(self) -> None:
        """Let other processes train in the folder of the run."""
        self.store.folder.unlock()

    def note_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remember that Lightning is writing a checkpoint, and what it knows.

        Args:
            checkpoint: what it writes. If that happens while an arm is in the module (a signal, an exception), the
                weights being trained replace the arm's.
        """
        state = self.state_dict()
        self.books.note_checkpoint(state, self.trainer.global_step)
        if self._borrowed is not None:
            key = "current_model_state" if "current_model_state" in checkpoint else "state_dict"
            live = self._borrowed.live_by_alias()
            checkpoint[key] = {name: live.get(name, value) for name, value in checkpoint[key].items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the metadata for Lightning's checkpoint: names and tags, no statistics.

        They are those of the last validation that has ended, even while the next one is under way.
        """
        if self._resumed is not None:
            return self._resumed.state  # nothing has been resumed yet
        trainer, step = self.trainer, self.books.step
        due = self._borrowed is not None or (self.settings.counts(trainer) and is_validation_next(trainer, step))
        return {**(self._state or self.books.describe(self.store, {})), "due": due}
