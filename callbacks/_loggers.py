"""The result for the loggers of a Trainer: each gets the table, the plot and the samples in the way that it knows."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning_utilities.core.imports import RequirementCache

from tm_bandit._files import atomic_write
from tm_bandit.callbacks._report import Say, never_fatal
from tm_bandit.report.result import COLUMNS, SelectionResult
from tm_bandit.report.thumbnails import sheet

_MATPLOTLIB = RequirementCache("matplotlib")

PLOT = "selection.png"


def publish(
    trainer: Trainer, prefix: str, result: SelectionResult, say: Say, picture: Path | None = None, run: str = ""
) -> None:
    """Give the table, and at the end the plot and samples of the best, to the loggers; on rank 0. It never raises.

    Args:
        trainer: the running Trainer.
        prefix: name of the callback.
        result: the selection so far.
        say: tells the user what failed.
        picture: file of the plot next to the arm files; ``None`` draws nothing (it takes a moment, so it is done once).
        run: the run that the file belongs to, if that is recorded in it.
    """
    figure, drawn = None, None
    if picture is not None and _MATPLOTLIB and result.history["arm"]:
        with never_fatal(say, "the plot could not be drawn"):
            figure = result.plot()
            _save(figure, picture, run)
            drawn = picture
    for logger in trainer.loggers:
        kind = type(logger).__name__
        with never_fatal(say, f"{kind} does not take the table"):
            _show_table(logger, prefix, result, trainer.global_step)
        if figure is not None:
            with never_fatal(say, f"{kind} does not take the plot"):
                _show_figure(logger, prefix, figure, drawn, trainer.global_step)
        if picture is not None and result.best in result.pictures:
            with never_fatal(say, f"{kind} does not take the samples"):
                _show_samples(logger, prefix, sheet(result.pictures[result.best]), trainer.global_step)


def _show_table(logger: Any, prefix: str, result: SelectionResult, step: int) -> None:
    rows = [[row[column] for column in COLUMNS] for row in result.table()]
    if isinstance(logger, CSVLogger):
        target = Path(logger.log_dir) / f"{prefix}.csv"
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as path, path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
    elif hasattr(logger, "log_table"):  # Weights & Biases; no step, because it drops steps that do not increase
        logger.log_table(key=f"{prefix}/selection", columns=list(COLUMNS), data=rows)
    elif hasattr(_experiment(logger), "add_text"):  # TensorBoard
        logger.experiment.add_text(f"{prefix}/selection", result.to_markdown(), global_step=step)
    elif hasattr(_experiment(logger), "log_text") and hasattr(logger, "run_id"):  # MLflow
        logger.experiment.log_text(logger.run_id, result.to_markdown(), f"{prefix}.md")


def _show_figure(logger: Any, prefix: str, figure: Any, picture: Path | None, step: int) -> None:
    experiment = _experiment(logger)
    if isinstance(logger, CSVLogger):
        _save(figure, Path(logger.log_dir) / f"{prefix}.png")
    elif hasattr(logger, "log_image") and picture is not None:  # Weights & Biases
        logger.log_image(key=f"{prefix}/selection_plot", images=[str(picture)])
    elif hasattr(experiment, "add_figure"):  # TensorBoard
        experiment.add_figure(f"{prefix}/selection", figure, global_step=step, close=False)
    elif hasattr(experiment, "log_figure") and hasattr(logger, "run_id"):  # MLflow
        experiment.log_figure(logger.run_id, figure, f"{prefix}.png")
    elif hasattr(experiment, "log_figure"):  # Comet
        experiment.log_figure(figure_name=f"{prefix}/selection", figure=figure, step=step)


def _show_samples(logger: Any, prefix: str, samples: Any, step: int) -> None:
    experiment = _experiment(logger)
    if isinstance(logger, CSVLogger):
        with atomic_write(Path(logger.log_dir) / f"{prefix}_samples.png") as path:
            samples.save(path, "PNG")
    elif hasattr(logger, "log_image"):  # Weights & Biases
        logger.log_image(key=f"{prefix}/samples", images=[samples])
    elif hasattr(experiment, "add_image"):  # TensorBoard
        experiment.add_image(f"{prefix}/samples", np.asarray(samples), global_step=step, dataformats="HWC")
    elif hasattr(experiment, "log_image") and hasattr(logger, "run_id"):  # MLflow
        experiment.log_image(logger.run_id, samples, f"{prefix}_samples.png")
    elif hasattr(experiment, "log_image"):  # Comet
        experiment.log_image(samples, name=f"{prefix}/samples", step=step)


def _experiment(logger: Any) -> Any:
    # Lightning allows a logger to have none.
    return getattr(logger, "experiment", None)


def _save(figure: Any, target: Path, run: str = "") -> None:
    metadata = {"tm_bandit run": run} if run else {}
    with atomic_write(target) as path:
        figure.savefig(path, dpi=120, bbox_inches="tight", metadata=metadata)
