"""The end of a validation: what is known goes to disk, and what can no longer be asked for is deleted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from lightning.pytorch import Trainer

from tm_bandit.callbacks import _report
from tm_bandit.callbacks._books import Books
from tm_bandit.callbacks._loggers import publish
from tm_bandit.callbacks._report import HistoryText, Say, Summary
from tm_bandit.callbacks._sidecar import write_sidecar
from tm_bandit.callbacks._store import ArmStore
from tm_bandit.report.result import SelectionResult
from tm_bandit.selection.selector import ModelSelector

#: What version 0.1 left in the folder, which is no longer needed once a checkpoint of this version is on disk.
_LEFT_BY_01 = ("stats.pt", "stats.previous.pt", "files.json")


@dataclass(eq=False)
class Commit:
    """Writes and deletes in an order in which a kill at any moment loses nothing; one per training run, on all ranks.

    Args:
        store: where the weights are.
        trainer: the running Trainer, for its loggers.
        key: name of the callback.
        say: warns the user, once for each kind of text.
    """

    store: ArmStore
    trainer: Trainer
    key: str
    say: Say
    _written: bool = field(default=True, init=False)
    _history: HistoryText = field(default_factory=HistoryText, init=False)

    def write(
        self, summary: Summary, before: Summary | None, books: Books, selector: ModelSelector | None
    ) -> tuple[Summary, dict[str, Any]]:
        """Put what is known on disk; return it with the path of the best arm, and what a checkpoint should say.

        Args:
            summary: what is known.
            before: what was known after the last validation.
            books: the books.
            selector: the selector, on the rank that has it.
        """
        ranks = self.store.ranks
        planned = ranks.tell(self.store.planned() if ranks.is_zero else {})
        state = books.describe(self.store, planned)
        if self.store.active:
            self._written = ranks.tell(selector is not None and self._sidecar(summary, books, state, selector))
        self.store.commit(planned)
        path = self.store.path(books.arms[summary.best_arm].weights) if summary.best_arm else ""
        # If the best arm could not be written yet, the last one that was written stays.
        known = replace(summary, best_path=path or ("" if before is None else before.best_path))
        return known, state

    def _sidecar(self, summary: Summary, books: Books, state: dict[str, Any], selector: ModelSelector) -> bool:
        try:
            history = self._history.read(summary.result.history)
            write_sidecar(self.store.folder, books.lineage, state, selector.state_dict(), history)
        except Exception as error:  # torch reports a full disk as a RuntimeError; the other ranks wait for an answer
            text = f"the statistics could not be written ({error}). Nothing is deleted until they can be."
            self.say(text, "statistics")
            return False
        return True

    def write_result(self, result: SelectionResult) -> None:
        """Write the result next to the arm files and give it to the loggers; on rank 0.

        Args:
            result: the selection so far.
        """
        with _report.never_fatal(self.say, "the result could not be written"):
            _report.write_result(self.store.folder, result, self._history.read(result.history))
        publish(self.trainer, self.key, result, self.say)

    def is_safe(self, summary: Summary | None, books: Books) -> bool:
        """Whether the file of the best arm is there under its name."""
        best = "" if summary is None else summary.best_arm
        return not best or books.arms[best].weights in self.store.files

    def let_go(self, summary: Summary | None, books: Books, alone: bool = False) -> None:
        """Delete what the newest checkpoint on disk can no longer ask for.

        Args:
            summary: what is known.
            books: the books.
            alone: do not tell the other ranks; at the end of training they may be gone.
        """
        if not (self._written and self.is_safe(summary, books)):
            return
        newest, confirmed = (None if point is None else point[0] for point in (books.dumped, books.confirmed))
        self.store.purge(newest, confirmed, alone)
        if self.store.ranks.is_zero:
            old = _LEFT_BY_01 if books.confirmed is not None and books.confirmed[1] else ()
            for name in (*books.superseded(), *old):
                self.store.folder.delete(name)
