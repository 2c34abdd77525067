"""What BanditCheckpoint costs besides sampling and feature extraction, in the demo's training."""

from __future__ import annotations

import json
import logging
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from tm_bandit import OptimisticFID, ReferenceStatistics
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.demo.digits import DigitClassifier, train_classifier
from tm_bandit.demo.flow import DigitFlow, DigitsData


class Clock(pl.Callback):
    """Adds up the CPU seconds of training steps and of validations, whatever else the machine does."""

    def __init__(self):
        self.seconds: dict[str, float] = defaultdict(float)
        self._since: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of a block to ``name``."""
        start = time.process_time()
        try:
            yield
        finally:
            self.seconds[name] += time.process_time() - start

    def on_validation_start(self, *_: Any) -> None:  # noqa: D102
        self._since["validation"] = time.process_time()

    def on_validation_end(self, *_: Any) -> None:  # noqa: D102
        self.seconds["validation"] += time.process_time() - self._since["validation"]

    def on_train_batch_start(self, *_: Any) -> None:  # noqa: D102
        self._since["training"] = time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:  # noqa: D102
        self.seconds["training"] += time.process_time() - self._since["training"]


class TimedMetric(OptimisticFID):
    """Reports how long its feature network takes."""

    clock: Clock | None = None

    def extract(self, inputs):  # noqa: D102
        if self.clock is None:
            return super().extract(inputs)
        with self.clock.measure("features"):
            return super().extract(inputs)


def train(data: DigitsData, metric: TimedMetric | None, folder: str, epochs: int, batch_size: int) -> dict[str, float]:
    """Train once and return the seconds by part."""
    clock = Clock()
    callbacks: list[pl.Callback] = [clock]
    if metric is not None:
        metric.clock = clock

        def sampler(module, num_samples, *, generator):
            with clock.measure("sampling"):
                return module.sample(num_samples, generator=generator)

        callbacks.append(BanditCheckpoint(metric, sampler, budget=400, batch_size=batch_size, dirpath=folder))
    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        max_epochs=epochs,
        check_val_every_n_epoch=5,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=metric is not None,
        num_sanity_val_steps=0,
        callbacks=callbacks,
    )
    trainer.fit(DigitFlow(), data)
    if metric is not None:
        clock.seconds["steps"] = float(trainer.global_step)
    return dict(clock.seconds)


def make_metric(classifier: DigitClassifier, data: DigitsData) -> TimedMetric:
    reference = ReferenceStatistics.from_features(classifier(data.digits.images))
    return TimedMetric(feature=classifier, reference=reference)


def main(full: bool, out: Path) -> dict[str, Any]:
    """Measure the callback's own share of the validations and print it.

    Args:
        full: more epochs and more repetitions.
        out: folder for ``callback.json``.
    """
    epochs, repeats = (60, 5) if full else (30, 2)
    data = DigitsData()
    classifier = train_classifier(data.digits, steps=300)
    rows = []
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        train(data, None, folder, 5, 10)  # the first training of a process is slower than the others
        for batch_size in (10, 50):
            for repeat in range(repeats):
                bare = train(data, None, folder, epochs, batch_size)
                name = f"{folder}/{batch_size}/{repeat}"
                seconds = train(data, make_metric(classifier, data), name, epochs, batch_size)
                own = seconds["validation"] - seconds["sampling"] - seconds["features"]
                rows.append(
                    {
                        "batch_size": batch_size,
                        "validation_s": seconds["validation"],
                        "sampling_s": seconds["sampling"],
                        "features_s": seconds["features"],
                        "own_share": own / seconds["validation"],
                        "validation_without_s": bare["validation"],
                        "training_ratio": seconds["training"] / bare["training"],
                    }
                )
    print("callback, demo's model, budget 400 per validation; own = besides sampling and features")
    print(" ".join(f"{name:>20}" for name in rows[0]))
    for row in rows:
        print(" ".join(f"{value:>20.3f}" for value in row.values()))
    result = {"threads": torch.get_num_threads(), "epochs": epochs, "rows": rows}
    out.mkdir(parents=True, exist_ok=True)
    (out / "callback.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    main(full=False, out=Path("benchmarks/results"))
