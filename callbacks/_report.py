"""What users see of a validation: logged scalars, one line, a progress bar, and the file of the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm

from tm_bandit._device import exact_device
from tm_bandit._files import atomic_write
from tm_bandit.callbacks._arms import TrainedArm
from tm_bandit.callbacks._folder import RunFolder
from tm_bandit.errors import brief
from tm_bandit.report.encoding import encode
from tm_bandit.report.result import SelectionResult, central_score, number, with_interval

RESULT = "selection.json"
#: Tells the user something, once for each kind, which comes second.
Say = Callable[[str, str], None]

#: Moves a progress bar on by a number of samples.
Advance = Callable[[int], object]


@dataclass(frozen=True)
class Summary:
    """What all ranks know after a validation.

    Args:
        values: the scalars to log.
        result: the selection so far.
        best_arm: name of the best arm; empty if there is none.
        best_path: its file.
        arms: names of the arms that stay.
        lost: names of the arms that were dropped by comparison.
        failures: in how many validations in a row arms have failed.
    """

    values: dict[str, float]
    result: SelectionResult
    best_arm: str
    best_path: str
    arms: tuple[str, ...]
    lost: tuple[str, ...] = ()
    failures: dict[str, int] = field(default_factory=dict)


def unscored(higher_is_better: bool) -> float:
    """Return the score of weights that have not been evaluated.

    Worse than any other, so that no monitor takes it for a success, but finite: ``EarlyStopping`` ends training at the
    first value that is not.

    Args:
        higher_is_better: direction of the metric.
    """
    worst = torch.finfo(torch.float32).max
    return -worst if higher_is_better else worst


def passed_over(values: Mapping[str, float], higher_is_better: bool) -> dict[str, float]:
    """Return what is logged at a skipped validation: the best is unchanged, the newest has no score.

    Args:
        values: what was logged at the last validation that was not skipped; empty if there was none.
        higher_is_better: direction of the metric.
    """
    worst = unscored(higher_is_better)
    known = {"best": values.get("best", worst), "best_step": values.get("best_step", -1.0)}
    return {"current": worst, "current_is_best": 0.0, **known}


def scalars(
    result: SelectionResult, arms: dict[str, TrainedArm], newest: int, failed: Container[str] = ()
) -> dict[str, float]:
    """Return what is logged, by name without the prefix.

    ``current`` is the score of the newest step (its best arm, if it has several) and is what a ModelCheckpoint or an
    EarlyStopping should monitor: a monitor of ``best`` would store the current weights whenever the estimate of an
    old arm improves. An arm whose samples are not numbers has an infinite score; one that could not be sampled is
    :func:`unscored`. ``raw``, ``avg`` and, with variants, ``raw/<variant>`` are the debiased scores of the newest step:
    one curve each over the training.

    Args:
        result: the selection so far.
        arms: the active arms by name.
        newest: the step of the newest arms.
        failed: the arms that could not be sampled in this validation.
    """
    nothing = unscored(result.higher_is_better)
    worst = -math.inf if result.higher_is_better else math.inf
    pick = max if result.higher_is_better else min
    rows = {row["arm"]: row for row in result.arms}
    scores = {name: _score(rows[name], nothing if name in failed else worst) for name in arms if name in rows}
    best = arms.get(result.best or "")
    values = {
        "current": pick((score for name, score in scores.items() if arms[name].step == newest), default=worst),
        "current_is_best": float(best is not None and best.step == newest),
        "best": nothing if best is None else scores[best.name],
        "best_step": -1.0 if best is None else float(best.step),
    }
    for name, score in scores.items():
        if arms[name].step == newest and name not in failed and math.isfinite(score):
            values[arms[name].kind] = score
    return values


def _score(row: dict[str, Any], worst: float) -> float:
    score = central_score(row)
    return worst if math.isnan(score) else score


def log_scalars(module: LightningModule, prefix: str, values: dict[str, float], unseen: bool = False) -> None:
    """Log on all ranks, which hold the same values.

    Args:
        module: the module whose hook is running.
        prefix: first part of the keys.
        values: scalars by name.
        unseen: keep the newest score from the loggers, where a placeholder would spoil the chart. The hook must then be
            another one: Lightning requires the same arguments for a key in each call of a hook.
    """
    dtype = torch.float64 if exact_device(module.device) == module.device else torch.float32
    # The maximum over ranks that agree is exact; a mean of three equal numbers need not be.
    log = partial(module.log, on_step=False, on_epoch=True, reduce_fx="max", sync_dist=True, batch_size=1)
    for name, value in values.items():
        # As double tensors: Python floats are logged in single precision, which cannot even count to 2**24 + 1.
        exact = torch.tensor(value, dtype=dtype, device=module.device)
        logger = False if unseen and name == "current" else None
        log(f"{prefix}/{name}", exact, prog_bar=name == "best", logger=logger, add_dataloader_idx=False)


def line(
    result: SelectionResult, prefix: str, newest: int, values: dict[str, float], drawn: int, said: set[str]
) -> str:
    """Return the one line that is printed per validation.

    Args:
        result: the selection so far.
        prefix: name of the callback.
        newest: the step of the newest arms.
        values: see :func:`scalars`.
        drawn: samples drawn in this validation.
        said: collects the notes of the result that are in the line; a note is not repeated.
    """
    if result.best is None:
        return f"{prefix}: step {newest}: no arm could be scored ({drawn} samples)."
    row = next(row for row in result.arms if row["arm"] == result.best)
    score = with_interval(values["best"], row["lower"], row["upper"])
    newcomer = "the newest" if values["current_is_best"] else f"the newest has {number(values['current'])}"
    words = {"won": "certified", "budget_exhausted": "not settled", "unfinished": "not settled"}
    verdict = "the only arm" if result.unrivalled else words.get(result.status, result.status)
    rivals = f" with {', '.join(result.tied)}" if result.tied else ""
    notes = [note for note in result.notes if note not in said]
    said.update(notes)
    text = (
        f"{prefix}: step {newest}: best {result.best}, {result.score_name} {score}, {newcomer}; {verdict}{rivals}; "
        f"{drawn} samples, {result.total_samples} in total."
    )
    return " ".join([text, *notes])


class HistoryText:
    """The history of a training run as JSON: only what is new is encoded, however long the run.

    Example:
        >>> text = HistoryText()
        >>> text.read({"n": [1], "best": [None]})
        '{"n": [1], "best": [null]}'
        >>> text.read({"n": [1, 2], "best": [None, "a"]})
        '{"n": [1, 2], "best": [null, "a"]}'
    """

    def __init__(self) -> None:
        self._length = 0
        self._columns: dict[str, str] = {}

    def read(self, columns: Mapping[str, list[Any]]) -> str:
        """Return the JSON of a history that begins with what was read before.

        Args:
            columns: one list per column.
        """
        start = self._length
        for name, values in columns.items():
            new = encode(values[start:])[1:-1]
            self._columns[name] = ", ".join(part for part in (self._columns.get(name), new) if part)
            self._length = len(values)
        return "{" + ", ".join(f"{encode(name)}: [{text}]" for name, text in self._columns.items()) + "}"


@contextmanager
def never_fatal(say: Say, what: str) -> Iterator[None]:
    """Let training continue when something that only reports fails.

    Args:
        say: tells the user, once for each ``what``.
        what: what has failed, as the start of a sentence.
    """
    try:
        yield
    except Exception as error:  # any: loggers raise what they like
        say(f"{what} ({brief(error)}); training continues.", what)


def write_result(folder: RunFolder, result: SelectionResult, history: str) -> None:
    """Write ``selection.json`` next to the arm files.

    Args:
        folder: the folder of the run.
        result: the selection so far.
        history: its history as JSON.
    """
    text = replace(result, history={}).to_json(indent=2)
    # A quotation mark inside a string is escaped, so these can only be the field itself and the end.
    text = text.replace('"history": {}', f'"history": {history}', 1)
    text = text.removesuffix("}").rstrip() + f',\n  "run": {encode(folder.run)}\n}}'
    with atomic_write(folder.path(RESULT)) as path:
        path.write_text(text, encoding="utf-8")


@contextmanager
def progress(trainer: Trainer, prefix: str, total: int) -> Iterator[Advance]:
    """Show how the budget is spent, in the style of the Trainer's own bar; nothing if it has none.

    Args:
        trainer: the running Trainer.
        prefix: name of the callback.
        total: samples to draw.
    """
    bar = trainer.progress_bar_callback
    if isinstance(bar, RichProgressBar) and bar.is_enabled and bar.progress is not None:
        rich = bar.progress
        style = f"[{bar.theme.description}]" if bar.theme.description else ""  # by default there is none
        task = rich.add_task(f"{style}{prefix}", total=total)

        def advance(samples: int) -> None:
            rich.update(task, advance=samples, visible=True)
            bar.refresh()

        try:
            yield advance
        finally:
            # Hidden, not removed: Lightning finds its own tasks by their position.
            rich.update(task, visible=False)
            bar.refresh()
    elif isinstance(bar, TQDMProgressBar) and bar.is_enabled:
        with Tqdm(desc=prefix, total=total, unit="sample", position=2 * bar.process_position + 2, leave=False) as tqdm:
            yield tqdm.update
    else:
        yield lambda samples: None
