"""What BanditCheckpoint costs besides sampling and feature extraction: the demo's own training, taken apart."""

from __future__ import annotations

import functools
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lightning.pytorch as pl
import torch

from tm_bandit import ModelSelector, OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit.callbacks import BanditCheckpoint, _commit, _report
from tm_bandit.callbacks._store import ArmStore
from tm_bandit.demo import story
from tm_bandit.demo.digits import DigitClassifier, train_classifier
from tm_bandit.demo.flow import DigitFlow, DigitsData
from tm_bandit.selection.arm import Arm

#: What is not the callback's own: it would cost the same whoever asked for the samples.
FOREIGN = ("sampling", "features")

#: Where the time of a validation goes; what is in none of these is "rest".
PARTS: dict[str, list[tuple[Any, str]]] = {
    "sampling": [(DigitFlow, "sample")],
    "features": [(OptimisticFID, "extract"), (OptimisticIS, "extract")],
    "metric algebra": [(Arm, "add"), (Arm, "fresh_stats")],
    "choice and verdict": [(ModelSelector, "ask"), (ModelSelector, "tell"), (ModelSelector, "result")],
    "files": [
        *((ArmStore, name) for name in ("write", "commit", "purge")),
        *((_commit, "write_sidecar"), (_report, "write_result")),
    ],
}


class Clock(pl.Callback):
    """Adds up CPU seconds, whatever else the machine does; a part inside another one counts for itself alone."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self.steps: list[float] = []
        self._open: list[str] = []
        self._since = 0.0

    def _turn(self) -> None:
        now = time.process_time()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of a block as ``name``; outside of validations nothing is counted."""
        if not self._open:
            yield
            return
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time is counted as ``name``."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return call

    def on_validation_start(self, *_: Any) -> None:  # noqa: D102
        self._open = ["rest"]
        self._since = time.process_time()

    def on_validation_end(self, *_: Any) -> None:  # noqa: D102
        self._turn()
        self._open = []

    def on_train_batch_start(self, *_: Any) -> None:  # noqa: D102
        self._since = time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:  # noqa: D102
        self.steps.append(time.process_time() - self._since)


def train(data: DigitsData, callbacks: list[BanditCheckpoint], scale: story.Scale) -> Clock:
    """Train as the demo does and return what it took."""
    clock = Clock()
    with ExitStack() as stack:
        for name, places in PARTS.items():
            for owner, attribute in places:
                timed = clock.timed(name, getattr(owner, attribute))
                stack.enter_context(patch.object(owner, attribute, timed))
        log = clock.timed("logging", _report.log_scalars)
        stack.enter_context(patch("tm_bandit.callbacks.bandit_checkpoint.log_scalars", log))
        story.fit(data, [clock, *callbacks], 0, scale)
    return clock


def train_with(data: DigitsData, classifier: DigitClassifier, scale: story.Scale, which: str = "") -> Clock:
    """Train with those callbacks of the demo that have ``which`` in their key."""
    reference = ReferenceStatistics.from_features(classifier(data.digits.images))
    with tempfile.TemporaryDirectory() as folder:
        callbacks = story.selectors(Path(folder), classifier, reference, 0, scale)
        return train(data, [callback for callback in callbacks if which in callback.key], scale)


def measure(
    data: DigitsData, classifier: DigitClassifier, scale: story.Scale, which: str, without: Clock
) -> dict[str, Any]:
    """Take the validations of a training apart; ``without`` is a training without callbacks."""
    seconds = train_with(data, classifier, scale, which).seconds
    validation = sum(seconds.values())
    own = {name: seconds[name] for name in (*PARTS, "logging", "rest") if name not in FOREIGN}
    own["rest"] -= without.seconds["rest"]  # what a validation costs anyway
    return {
        "callbacks": which or "both",
        "validations": scale.epochs // scale.every,
        "validation_s": validation,
        "parts_s": {name: seconds[name] for name in FOREIGN} | own,
        "own_share": sum(own.values()) / validation,
    }


def training_ratios(data: DigitsData, classifier: DigitClassifier, pairs: int) -> list[float]:
    """Compare training steps with both callbacks and without, in turn: a machine's speed changes within minutes."""
    scale = replace(story.FULL, epochs=2 * story.FULL.every)

    def ratio() -> float:
        steps = [train(data, [], scale).steps, train_with(data, classifier, scale).steps, train(data, [], scale).steps]
        before, between, after = map(statistics.median, steps)
        return 2 * between / (before + after)

    return [ratio() for _ in range(pairs)]


def table(rows: list[dict[str, Any]], ratios: list[float], scale: story.Scale) -> str:
    """Return the measurements as Markdown."""
    names = list(rows[0]["parts_s"])
    columns = ["callbacks", "a validation, ms", *(f"{name}, ms" for name in names), "own share"]
    lines = ["| " + " | ".join(columns) + " |", "|-" * len(columns) + "|"]
    for row in rows:
        count = row["validations"]
        cells = [row["callbacks"], f"{1e3 * row['validation_s'] / count:.0f}"]
        cells += [f"{1e3 * row['parts_s'][name] / count:.1f}" for name in names]
        cells.append(f"{row['own_share']:.1%}")
        lines.append("| " + " | ".join(cells) + " |")
    arms = 2 * len(story.VARIANTS) * rows[0]["validations"]
    return (
        f"The demo's training: {scale.budget:,} samples per validation and callback in pulls of {scale.batch_size}, "
        f"drawn in {' or '.join(story.VARIANTS)}; {arms} arms at the end. CPU time of one thread, per validation. Own "
        "is all but sampling and features."
        "\n\n" + "\n".join(lines) + "\n\n"
        f"The median training step with both callbacks takes {statistics.median(ratios):.2f} times as long as without "
        f"({min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} trainings, each between two without callbacks).\n"
    )


def main(full: bool, out: Path) -> dict[str, Any]:
    """Measure the callback's own share of the validations and print it.

    Args:
        full: the whole training of the demo, not only its first validations.
        out: folder for ``callback.json`` and ``callback.md``.
    """
    scale = story.FULL if full else replace(story.FULL, epochs=2 * story.FULL.every)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # CPU time of waiting threads says nothing
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    try:
        data = DigitsData()
        classifier = train_classifier(data.digits)
        train(data, [], story.FAST)  # the first training of a process is slower than the others
        without = train(data, [], scale)
        rows = [measure(data, classifier, scale, which, without) for which in ("fid", "is", "")]
        ratios = training_ratios(data, classifier, 5 if full else 1)
    finally:
        torch.set_num_threads(threads)
    text = table(rows, ratios, scale)
    print(text)
    out.mkdir(parents=True, exist_ok=True)
    (out / "callback.md").write_text(text, encoding="utf-8")
    result = {"scale": vars(scale), "rows": rows, "training_ratios": ratios}
    (out / "callback.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    main(full=False, out=Path(__file__).parent / "results" / "short")
