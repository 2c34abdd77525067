"""One training as the bandit sees it: the arms, where they live, and what is known about them."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from tm_bandit.callbacks import _report
from tm_bandit.callbacks._arms import Arm, losers, surplus
from tm_bandit.callbacks._distributed import Ranks
from tm_bandit.callbacks._pulls import PullLoop
from tm_bandit.callbacks._reference import (
    REFERENCE,
    ReferenceCollector,
    lacks_reference,
    validation_loaders,
)
from tm_bandit.callbacks._report import HistoryText, Summary
from tm_bandit.callbacks._sampling import RowSampler
from tm_bandit.callbacks._store import ArmStore, check_shared, read_stats, restrict, write_stats
from tm_bandit.callbacks._weights import BorrowedModule, Weights, averaged_weights
from tm_bandit.errors import InputError
from tm_bandit.execution.rng import preserved_rng
from tm_bandit.metrics.fid import OptimisticFID
from tm_bandit.reference import ReferenceStatistics
from tm_bandit.selection.result import SelectionResult
from tm_bandit.selection.selector import ModelSelector

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from tm_bandit.callbacks.bandit_checkpoint import BanditCheckpoint

STATE_VERSION = 1


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
        self._known: list[str] = []
        self._selector: ModelSelector | None = None
        self._collector: ReferenceCollector | None = None
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

    def open(self, saved: dict[str, Any] | None) -> Summary | None:
        """Prepare everything and refuse what would fail later; return what a resumed training already knows.

        Args:
            saved: what :meth:`state_dict` returned in the training that is resumed.

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
        run = self.ranks.tell(secrets.token_hex(8)) if saved is None else saved["run"]
        self.store = ArmStore(self._folder(saved), run, self.settings.store, active=not _is_dev_run(self.trainer))
        if self.store.active:
            check_shared(self.store.folder, self.ranks, everywhere=self.settings.store == "disk")
        if saved is not None:
            self._restore(saved)
        if lacks_reference(self.settings.metric):
            self._collector = ReferenceCollector(self.settings.metric, self.settings.real)
        self._rehearse()
        if self._collector is None:
            self._start_selector(saved)
        return self._summary

    def _folder(self, saved: dict[str, Any] | None) -> Path:
        given = self.settings.dirpath
        base = self.trainer.log_dir or self.trainer.default_root_dir  # asks all ranks, so it is not left out below
        if given is None:
            earlier = None if saved is None else saved["folder"]
            if self.ranks.tell(earlier is not None and os.path.isdir(earlier)):
                return Path(str(earlier))
            return Path(base) / self.settings.key
        others = [c for c in self.trainer.checkpoint_callbacks if c is not self.settings]
        shared = any(getattr(c, "dirpath", None) == given and isinstance(c, type(self.settings)) for c in others)
        return Path(given).absolute() / self.settings.key if shared else Path(given).absolute()

    def _rehearse(self) -> None:
        """Draw from the sampler and look at a validation batch, so that a mistake costs seconds, not an epoch."""
        error: Exception | None = None
        with preserved_rng(), torch.inference_mode(False), torch.no_grad(), BorrowedModule(self.module):
            try:
                if self._collector is not None and self.trainer.enable_validation:
                    self._collector.check(validation_loaders(self.trainer), self.module.device)
                self._rows.rehearse(self.trainer, self.module)
            except Exception as reason:  # any: the other ranks must hear of it before all of them stop
                error = reason
        self.ranks.agree(error)

    def _restore(self, saved: dict[str, Any]) -> None:
        if saved["version"] != STATE_VERSION:
            raise InputError(f"Expected version {STATE_VERSION} of the state, but got {saved['version']}.")
        arms = [Arm(**values) for values in saved["arms"]]
        self.arms = {arm.name: arm for arm in arms if arm.variant in self.settings.variants}
        self._known = list(saved["known"])
        self.done_step = saved["step"]
        self.store.relocate(saved["files"])
        cached = self.store.folder / REFERENCE
        found = self.ranks.tell(bool(saved["reference"]) and cached.exists())
        if found and lacks_reference(self.settings.metric):
            self._lend_reference(self.settings.metric, ReferenceStatistics.load(cached))

    def _start_selector(self, saved: dict[str, Any] | None = None) -> None:
        """Make the selector, which needs the reference, and give it the arms of a resumed training."""
        outcome: Summary | None = None
        error: Exception | None = None
        if self.ranks.is_zero:
            try:
                outcome = self._make_selector(saved)
            except Exception as reason:  # any: the other ranks must hear of it before they wait for the arms
                error = reason
        self.ranks.agree(error)
        self.arms = self.ranks.tell(self.arms)
        self._summary = self.ranks.tell(outcome)

    def _make_selector(self, saved: dict[str, Any] | None) -> Summary | None:
        """Make the selector on the rank that owns it, and return what it knows already."""
        self._selector = self.settings.new_selector(self.settings.newcomers(self.trainer))
        if saved is not None:
            self._load_stats(saved)
        for name in self.arms:
            if name not in self._selector.arms and name not in self._selector.retired:
                self._selector.add_arm(name)
        active = self._selector.arms
        self.arms = {name: arm for name, arm in self.arms.items() if name in active}
        if not self.arms or self._selector.spent == 0:
            return None
        return self._summarise(self._selector.result(), tuple(self.arms))

    def _load_stats(self, saved: dict[str, Any]) -> None:
        assert self._selector is not None
        stats = read_stats(self.store.folder, self.store.run, self.done_step)
        if stats is None:
            if saved["arms"]:
                rank_zero_warn(
                    f"The statistics of the arms are missing in {self.store.folder}; the arms are kept and are sampled "
                    "anew."
                )
            return
        self._selector.load_state_dict(restrict(stats["selector"], set(self._known)))
        self.store.sweep(set(stats["files"]))

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
            reference.save(self.store.folder / REFERENCE)
        self._lend_reference(collector.metric, reference)
        self._start_selector()

    def _lend_reference(self, metric: OptimisticFID, reference: ReferenceStatistics) -> None:
        metric.use_reference(reference)
        self._borrower = metric

    def close(self) -> None:
        """Take back what was lent to the user's metric, before another training begins."""
        if self._borrower is not None:
            self._borrower.use_reference(None)

    # ---- one validation ---------------------------------------------------------------------------------------

    def evaluate(self) -> Summary:
        """Admit the current weights, spend the budget, and return what is known then."""
        step = self.trainer.global_step
        with (
            preserved_rng(),
            torch.inference_mode(False),
            torch.no_grad(),
            BorrowedModule(self.module) as borrowed,
        ):
            self._drop_missing()
            self._admit(step, borrowed)
            drawn = self._spend(borrowed)
            summary = self.ranks.tell(self._conclude(step, drawn) if self.ranks.is_zero else None)
            assert summary is not None
            summary = self._tidy(summary, borrowed)
        self.done_step = step
        if self.ranks.is_zero:
            self._write(summary)
        self._summary = summary
        return summary

    def _drop_missing(self) -> None:
        for weights in self.store.missing({arm.weights for arm in self.arms.values()}, self.ranks):
            for arm in [arm for arm in self.arms.values() if arm.weights == weights]:
                del self.arms[arm.name]
                self._retire(arm.name, f"its weights {self.store.files.get(weights, weights)} are gone")

    def _admit(self, step: int, borrowed: BorrowedModule[LightningModule]) -> None:
        sources: dict[bool, Weights] = {False: borrowed.live()}
        if self.settings.averaged and (average := averaged_weights(self.trainer)) is not None:
            sources[True] = average
        for averaged, weights in sources.items():
            arms = [Arm(step, averaged, variant) for variant in self.settings.variants]
            arms = [arm for arm in arms if arm.name not in self._known]
            if arms:
                self.store.add(arms[0].weights, weights, self.trainer, borrowed, self.ranks)
            for arm in arms:
                self.arms[arm.name] = arm
                self._known.append(arm.name)
                if self._selector is not None:
                    self._selector.add_arm(arm.name)

    def _spend(self, borrowed: BorrowedModule[LightningModule]) -> int:
        pulls = 2 if _is_dev_run(self.trainer) else self.settings.budget // self.settings.batch_size
        loop = PullLoop(self._rows, self.store, self.arms, self.settings.batch_size, self.ranks)
        with _report.progress(self.trainer, self.settings.key, pulls * self.settings.batch_size) as advance:
            return loop.run(self.trainer, borrowed, self._selector, pulls, self._retire, advance)

    def _retire(self, name: str, reason: str) -> None:
        if self._selector is not None:
            self._selector.retire_arm(name, reason)
        if reason not in self._said:
            self._said.add(reason)
            rank_zero_warn(f"{self.settings.key}: the arm {name} is retired: {reason}")

    def _conclude(self, step: int, drawn: int) -> Summary:
        """Say what is known, then drop the surplus of arms; on rank 0."""
        selector = self._selector
        assert selector is not None
        active = {name: arm for name, arm in self.arms.items() if name in selector.arms}
        result = selector.result()
        values = _report.scalars(result, active, step)
        rank_zero_info(_report.line(result, self.settings.key, step, values, drawn))
        if result.best is not None:
            order = losers([selector.stats(name) for name in active], selector.stats(result.best))
            dropped = surplus(active.values(), order, result.best, self.settings.max_arms)
            for arm in dropped:
                del active[arm.name]
                selector.retire_arm(arm.name, "dropped to make room for better arms")
            if dropped:
                result = selector.result()
        return self._summarise(result, tuple(active), values)

    def _summarise(
        self, result: SelectionResult, active: tuple[str, ...], values: dict[str, float] | None = None
    ) -> Summary:
        arms = {name: self.arms[name] for name in active}
        if values is None:
            values = _report.scalars(result, arms, max(arm.step for arm in arms.values()))
        best = arms.get(result.best or "")
        if best is None:
            return Summary(values, result, "", "", active)
        return Summary(values, result, best.name, self.store.files.get(best.weights, ""), active)

    def _tidy(self, summary: Summary, borrowed: BorrowedModule[LightningModule]) -> Summary:
        """Let go of what no remaining arm needs, and say where the best one is; on all ranks."""
        kept = {name: self.arms[name] for name in summary.arms}
        for weights in {arm.weights for arm in self.arms.values()} - {arm.weights for arm in kept.values()}:
            self.store.remove(weights, self.trainer)
        self.arms = kept
        if not summary.best_arm:
            return summary
        best = kept[summary.best_arm].weights
        self.store.write(best, self.trainer, borrowed, self.ranks)
        self.store.settle(best, self.trainer, self.ranks)
        return replace(summary, best_path=self.store.files.get(best, ""))

    def _write(self, summary: Summary) -> None:
        if not self.store.active:
            return
        assert self._selector is not None
        assert summary.result is not None
        history = self._history.read(summary.result.history)
        state = {"run": self.store.run, "step": self.done_step, "files": list(self.store.files.values())}
        write_stats(self.store.folder, state, self._selector.state_dict(), history)
        _report.write_result(self.store.folder, summary.result, history)
        _report.publish(self.trainer, self.settings.key, summary.result, None, plot=False)

    # ---- the end, and the state -------------------------------------------------------------------------------

    def publish(self) -> None:
        """Draw the plot for the folder and the loggers; on rank 0."""
        result = None if self._summary is None else self._summary.result
        if self.ranks.is_zero and result is not None and self.store.active:
            _report.publish(self.trainer, self.settings.key, result, self.store.folder, plot=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the metadata for Lightning's checkpoint: names and paths, no statistics."""
        return {
            "version": STATE_VERSION,
            "run": self.store.run,
            "step": self.done_step,
            "folder": str(self.store.folder),
            "files": dict(self.store.files),
            "arms": [arm.to_dict() for arm in self.arms.values()],
            "known": list(self._known),
            "reference": self._borrower is not None,
        }


def _is_dev_run(trainer: Trainer) -> bool:
    return bool(getattr(trainer, "fast_dev_run", False))  # Lightning sets it without declaring it
