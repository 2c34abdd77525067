"""What others get to see: logged scalars, a table and a plot for the loggers, one line and a progress bar."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from lightning.pytorch.loggers import CSVLogger
from lightning_utilities.core.imports import RequirementCache

from tm_bandit._device import exact_device
from tm_bandit._files import atomic_write
from tm_bandit.report.encoding import encode
from tm_bandit.report.result import COLUMNS, SelectionResult

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from tm_bandit.callbacks._arms import Arm

_MATPLOTLIB = RequirementCache("matplotlib")

RESULT = "selection.json"
PLOT = "selection.png"


@dataclass(frozen=True)
class Summary:
    """What all ranks know after a validation.

    Args:
        values: the scalars to log.
        result: the selection so far; ``None`` if there is none.
        best_arm: name of the best arm; empty if there is none.
        best_path: its file.
        arms: names of the arms that stay.
    """

    values: dict[str, float]
    result: SelectionResult | None
    best_arm: str
    best_path: str
    arms: tuple[str, ...]


def scalars(result: SelectionResult, arms: dict[str, Arm], newest: int) -> dict[str, float]:
    """Return what is logged, by name without the prefix.

    ``current`` is the score of the newest step (its best arm, if it has several) and is what a ModelCheckpoint or an
    EarlyStopping should monitor: a monitor of ``best`` would store the current weights whenever the estimate of an
    old arm improves. An arm that failed has the worst possible score.

    Args:
        result: the selection so far.
        arms: the active arms by name.
        newest: the step of the newest arms.
    """
    worst = -math.inf if result.higher_is_better else math.inf
    pick = max if result.higher_is_better else min
    rows = {row["arm"]: row for row in result.arms}
    scores = {name: _score(rows[name], worst) for name in arms if name in rows}
    best = arms.get(result.best or "")
    values = {
        "current": pick((score for name, score in scores.items() if arms[name].step == newest), default=worst),
        "current_is_best": float(best is not None and best.step == newest),
        "best": worst if best is None else scores[best.name],
        "best_step": -1.0 if best is None else float(best.step),
    }
    for name in scores:
        for column in ("estimate", "lower", "upper", "n"):
            value = float(rows[name][column])
            if math.isfinite(value):
                values[f"{name}/{column}"] = value
    return values


def _score(row: dict[str, Any], worst: float) -> float:
    score = float(row["estimate"] if math.isnan(row["debiased"]) else row["debiased"])
    return worst if math.isnan(score) else score


def log_scalars(module: LightningModule, prefix: str, values: dict[str, float], known: dict[str, float]) -> None:
    """Log on all ranks, which hold the same values.

    Values of single arms are logged when they change: an arm that got no samples has the same ones as before, and
    Lightning spends as much on a key as a small network on a sample.

    Args:
        module: the module whose hook is running.
        prefix: first part of the keys.
        values: scalars by name.
        known: what was logged last.
    """
    dtype = torch.float64 if exact_device(module.device) == module.device else torch.float32
    for name, value in values.items():
        if "/" in name and known.get(name) == value:
            continue
        # As double tensors: Python floats are logged in single precision, which cannot even count to 2**24 + 1. The
        # maximum over ranks that agree is exact; a mean of three equal numbers need not be.
        module.log(
            f"{prefix}/{name}",
            torch.tensor(value, dtype=dtype, device=module.device),
            prog_bar=name == "best",
            on_step=False,
            on_epoch=True,
            reduce_fx="max",
            sync_dist=True,
            add_dataloader_idx=False,
            batch_size=1,
        )


def line(result: SelectionResult, prefix: str, newest: int, values: dict[str, float], drawn: int) -> str:
    """Return the one line that is printed per validation.

    Args:
        result: the selection so far.
        prefix: name of the callback.
        newest: the step of the newest arms.
        values: see :func:`scalars`.
        drawn: samples drawn in this validation.
    """
    if result.best is None:
        return f"{prefix}: step {newest}: no arm could be scored ({drawn} samples)."
    row = next(row for row in result.arms if row["arm"] == result.best)
    interval = f"{_number(row['lower'])}..{_number(row['upper'])}"
    newcomer = "it is the newest" if values["current_is_best"] else f"newest {_number(values['current'])}"
    verdict = {"won": "certified", "budget_exhausted": "not settled", "unfinished": "not settled"}.get(
        result.status, result.status
    )
    if result.unrivalled:
        verdict = "the only arm"
    rivals = f" with {', '.join(result.tied)}" if result.tied else ""
    metric = result.metric.removeprefix("Optimistic")
    return (
        f"{prefix}: step {newest}: best {result.best} {metric} {_number(values['best'])} ({interval}), "
        f"{newcomer}; {verdict}{rivals}; {drawn} samples, {result.total_samples} in all."
    )


def _number(value: float) -> str:
    return "?" if math.isnan(value) else f"{value:.4g}"


class HistoryText:
    """The history of a training as JSON: only what is new is encoded, however long the training.

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


def write_result(folder: Path, result: SelectionResult, history: str) -> None:
    """Write ``selection.json`` beside the arm files.

    Args:
        folder: where the arms are.
        result: the selection so far.
        history: its history as JSON.
    """
    text = replace(result, history={}).to_json(indent=2)
    with atomic_write(folder / RESULT) as path:
        # A quotation mark inside a string is escaped, so this can only be the field itself.
        path.write_text(text.replace('"history": {}', f'"history": {history}', 1), encoding="utf-8")


def publish(trainer: Trainer, prefix: str, result: SelectionResult, folder: Path | None, *, plot: bool) -> None:
    """Give the table, and at the end the plot, to the loggers that can show them; on rank 0.

    Args:
        trainer: the running Trainer.
        prefix: name of the callback.
        result: the selection so far.
        folder: where the plot is written beside the arm files; ``None`` writes nothing.
        plot: whether to draw (it takes a moment, so it is done once).
    """
    picture = None
    figure = result.plot() if plot and _MATPLOTLIB and result.history["arm"] else None
    if figure is not None and folder is not None:
        picture = folder / PLOT
        _save(figure, picture)
    for logger in trainer.loggers:
        _show_table(logger, prefix, result, trainer.global_step)
        if figure is not None:
            _show_figure(logger, prefix, figure, picture, trainer.global_step)
    if figure is not None:
        import matplotlib.pyplot as plt

        plt.close(figure)


def _show_table(logger: Any, prefix: str, result: SelectionResult, step: int) -> None:
    rows = [[row[column] for column in COLUMNS] for row in result.table()]
    if isinstance(logger, CSVLogger):
        target = Path(logger.log_dir) / f"{prefix}.csv"
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as path, path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
    elif hasattr(logger, "log_table"):  # Weights & Biases; no step, because it drops steps that do not increase
        logger.log_table(key=f"{prefix}/selection", columns=list(COLUMNS), data=rows)
    elif hasattr(logger.experiment, "add_text"):  # TensorBoard
        logger.experiment.add_text(f"{prefix}/selection", result.to_markdown(), global_step=step)


def _show_figure(logger: Any, prefix: str, figure: Any, picture: Path | None, step: int) -> None:
    if isinstance(logger, CSVLogger):
        _save(figure, Path(logger.log_dir) / f"{prefix}.png")
    elif hasattr(logger, "log_image") and picture is not None:  # Weights & Biases
        logger.log_image(key=f"{prefix}/selection_plot", images=[str(picture)])
    elif hasattr(logger.experiment, "add_figure"):  # TensorBoard
        logger.experiment.add_figure(f"{prefix}/selection", figure, global_step=step, close=False)
    elif hasattr(logger.experiment, "log_figure"):  # MLflow (first argument: the run), Comet
        run = (logger.run_id,) if hasattr(logger, "run_id") else ()
        logger.experiment.log_figure(*run, figure, f"{prefix}.png")


def _save(figure: Any, target: Path) -> None:
    with atomic_write(target) as path:
        figure.savefig(path, dpi=120, bbox_inches="tight")


class Advance(Protocol):
    """Moves a progress bar on by a number of samples."""

    def __call__(self, samples: int) -> None: ...


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
        task = rich.add_task(f"[{bar.theme.description}]{prefix}", total=total)

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
            yield lambda samples: tqdm.update(samples) and None
    else:
        yield lambda samples: None
