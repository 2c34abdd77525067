"""The demo from end to end, told line by line."""

from __future__ import annotations

import functools
import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import Tensor

from tm_bandit import OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.demo import truth as check
from tm_bandit.demo.digits import DigitClassifier, Logits, train_classifier
from tm_bandit.demo.flow import DigitFlow, DigitsData
from tm_bandit.demo.picture import draw_picture
from tm_bandit.report.result import SelectionResult


@dataclass(frozen=True)
class Scale:
    """How long the demo takes.

    Args:
        classifier_steps: batches that the classifier is trained on.
        epochs: of the generative model.
        every: epochs between validations.
        budget: samples per validation and metric.
        batch_size: samples per pull.
        burn_in: samples that every newcomer gets, so that an unlucky first batch does not shut it out.
        truth: samples per arm for the check.
        repeats: of the comparison with uniform evaluation.
    """

    classifier_steps: int = 600
    epochs: int = 280
    every: int = 40
    budget: int = 1_600
    batch_size: int = 80
    burn_in: int = 80
    truth: int = 5_000
    repeats: int = 10


class Choice(NamedTuple):
    """What one callback found, and the file of its winner."""

    result: SelectionResult
    path: Path


#: Two ways to sample from each set of weights, in a hundred steps, as such models usually are, or in two.
VARIANTS: dict[str, dict[str, Any]] = {"100 steps": {"steps": 100}, "2 steps": {"steps": 2}}

FULL = Scale()
FAST = Scale(classifier_steps=60, epochs=4, every=2, budget=120, batch_size=10, burn_in=20, truth=400, repeats=2)


def run(out: Path, seed: int = 0, scale: Scale = FULL, as_json: bool = False) -> dict[str, Any]:
    """Train, select, check against the truth, and write the files.

    Args:
        out: folder for what is made.
        seed: seed of everything random.
        scale: how long it takes.
        as_json: print the figures as JSON, and tell the story on stderr.

    Returns:
        The figures that are printed and written to ``figures.json``.
    """
    start = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    tell_all = functools.partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)

    def say(text: str) -> None:
        tell_all(f"[{time.perf_counter() - start:5.1f} s] {text}")

    data = DigitsData(seed=seed)
    classifier = train_classifier(data.digits, seed=seed, steps=scale.classifier_steps)
    accuracy = classifier.accuracy(data.digits.test_images, data.digits.test_labels)
    say(f"1/4 classifier trained: it is right about {accuracy:.1%} of {len(data.digits.test_labels)} held-out digits")

    say(f"2/4 training a flow-matching model for {scale.epochs} epochs, two callbacks choose among its checkpoints")
    reference = ReferenceStatistics.from_features(classifier(data.digits.images))
    by_fid, by_is = train(out, data, classifier, reference, seed, scale)
    for choice, title in ((by_fid, "FID"), (by_is, "Inception Score")):
        tell_all(f"\nChosen by {title}:\n\n{choice.result}\n")

    names = [row["arm"] for row in by_fid.result.arms]
    say(f"3/4 the truth: {scale.truth:,} samples from each of {len(names)} arms")
    truths = measure_all(out / "fid", names, classifier, reference, scale.truth, seed)
    figures = compare(by_fid.result, by_is.result, truths, reference, scale) | {"classifier_accuracy": accuracy}
    tell_all("\n" + tell(figures, truths) + "\n")

    files = write_files(out, by_fid, by_is, truths, figures, seed)
    say("4/4 done. Files:\n" + "\n".join(f"    {path}" for path in files))
    if as_json:
        print(json.dumps(figures))
    return figures


def train(
    out: Path, data: DigitsData, classifier: DigitClassifier, reference: ReferenceStatistics, seed: int, scale: Scale
) -> tuple[Choice, Choice]:
    """Train the generative model with a callback for each metric; every checkpoint is kept for the check."""
    callbacks = selectors(out, classifier, reference, seed, scale)
    fit(data, callbacks, seed, scale)
    choices = [Choice(c.result, Path(c.best_model_path)) for c in callbacks if c.result is not None]
    return choices[0], choices[1]


def selectors(
    out: Path, classifier: DigitClassifier, reference: ReferenceStatistics, seed: int, scale: Scale
) -> list[BanditCheckpoint]:
    """Return the callbacks that choose, by FID and by Inception Score."""
    arms = 2 * len(VARIANTS) * (scale.epochs // scale.every)
    common: dict[str, Any] = {
        "budget": scale.budget,
        "batch_size": scale.batch_size,
        "burn_in": scale.burn_in,
        "goal": "identify",
        "variants": VARIANTS,
        "max_arms": arms,
        "seed": seed,
    }
    fid = OptimisticFID(feature=classifier, reference=reference, normalize=True)
    inception = OptimisticIS(feature=Logits(classifier), normalize=True)
    return [
        BanditCheckpoint(metric=fid, key="fid", dirpath=out / "fid", **common),
        BanditCheckpoint(metric=inception, key="is", dirpath=out / "is", **common),
    ]


def fit(data: DigitsData, callbacks: Sequence[pl.Callback], seed: int, scale: Scale) -> None:
    """Train the generative model, with the average of its weights beside it."""
    with _quiet(), torch.random.fork_rng(devices=[]):
        pl.seed_everything(seed, verbose=False)
        trainer = pl.Trainer(
            max_epochs=scale.epochs,
            check_val_every_n_epoch=scale.every,
            callbacks=[EMAWeightAveraging(decay=0.995), *callbacks],
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=any(isinstance(callback, BanditCheckpoint) for callback in callbacks),
            num_sanity_val_steps=0,
        )
        trainer.fit(DigitFlow(lr=3e-3, cycle=800), data)


def measure_all(
    folder: Path, names: Sequence[str], classifier: DigitClassifier, reference: ReferenceStatistics, num: int, seed: int
) -> dict[str, check.Truth]:
    """Score every arm by many samples, all arms from the same noise, which makes their differences more exact."""
    elsewhere = 1_000_003 * (seed + 1)  # nothing to do with the seeds of the selection
    return {
        name: check.measure(_sampler(folder, name), classifier, Logits(classifier), reference, num, seed=elsewhere)
        for name in names
    }


def compare(
    fid: SelectionResult,
    inception: SelectionResult,
    truths: dict[str, check.Truth],
    reference: ReferenceStatistics,
    scale: Scale,
) -> dict[str, Any]:
    """Measure how the selection did, and what uniform evaluation needs to be right as often."""
    spent, arms = fid.total_samples, len(truths)
    share = check.bandit_share(truths, reference, spent, scale.batch_size, scale.burn_in, scale.repeats)
    sizes = sorted({spent // arms, *(50 * 2**k for k in range(8) if 50 * 2**k <= scale.truth / 2)})
    best = min(truths, key=lambda name: truths[name].fid)
    last = [name for name in truths if name.endswith(f"/{next(iter(VARIANTS))}") and "avg" not in name][-1]
    best_is = max(truths, key=lambda name: truths[name].inception_score)
    return {
        "arms": arms,
        "chosen_by_fid": fid.best,
        "chosen_fid": truths[str(fid.best)].fid,
        "best_by_fid": best,
        "best_fid": truths[best].fid,
        "stderr": truths[best].stderr,
        "last_fid": truths[last].fid,
        "samples_fid": spent,
        "chosen_by_is": inception.best,
        "chosen_is": truths[str(inception.best)].inception_score,
        "best_by_is": best_is,
        "best_is": truths[best_is].inception_score,
        "samples_is": inception.total_samples,
        "bandit_share": share,
        "uniform_share": check.uniform_share(truths, reference, max(2, spent // arms), scale.repeats),
        "uniform_need": check.uniform_need(truths, reference, share, scale.repeats, sizes),
        "uniform_most": sizes[-1] * arms if sizes else 0,
        "repeats": scale.repeats,
        "tolerance": check.TOLERANCE,
        "true_samples": scale.truth,
    }


def tell(figures: dict[str, Any], truths: dict[str, check.Truth]) -> str:
    """Put the figures into words."""
    f = figures
    chosen = {f["chosen_by_fid"]: "chosen by FID", f["chosen_by_is"]: "chosen by IS"}
    if len(chosen) == 1:
        chosen[f["chosen_by_fid"]] = "chosen by FID and by IS"
    lines = [f"{'arm':22} {'true FID':>9} {'true IS':>8}"]
    for name, truth in sorted(truths.items(), key=lambda item: item[1].fid):
        lines.append(f"{name:22} {truth.fid:9.2f} {truth.inception_score:8.3f}  {chosen.get(name, '')}".rstrip())
    need = f"and with {f['uniform_most']:,} samples it is still right less often."
    if f["uniform_need"]:
        ratio = f["uniform_need"] / f["samples_fid"]
        need = f"and to be right as often it needs {f['uniform_need']:,} samples, {ratio:.1f} times as many."
    lines += [
        "",
        f"FID: {f['chosen_by_fid']} was chosen, its true FID is {f['chosen_fid']:.2f}.",
        f"     The best is {f['best_by_fid']} with {f['best_fid']:.2f} +- {f['stderr']:.2f}; the last weights "
        f"have {f['last_fid']:.2f}.",
        f"IS:  {f['chosen_by_is']} was chosen, its true IS is {f['chosen_is']:.3f}.",
        f"     The best is {f['best_by_is']} with {f['best_is']:.3f}.",
        "",
        f"The selection by FID drew {f['samples_fid']:,} samples for {f['arms']} arms. Repeated {f['repeats']} times "
        "after training, with all arms",
        "at hand and as many samples,",
        f"it picks an arm within {f['tolerance']:.0%} of the best FID in {f['bandit_share']:.0%} of the runs.",
        f"Uniform evaluation by the plain FID does so in {f['uniform_share']:.0%} of the runs with as many samples,",
        need,
    ]
    return "\n".join(lines)


def write_files(
    out: Path,
    by_fid: Choice,
    by_is: Choice,
    truths: dict[str, check.Truth],
    figures: dict[str, Any],
    seed: int,
) -> list[Path]:
    """Write the picture, the reports and the figures; return the paths, the most interesting first."""
    best, worst = str(by_fid.result.best), max(truths, key=lambda name: truths[name].fid)
    images = {name: _sampler(out / "fid", name)(48, torch.Generator().manual_seed(seed)) for name in (best, worst)}
    true_fid = {name: truth.fid for name, truth in truths.items()}
    draw_picture(out / "demo.png", by_fid.result, true_fid, (best, images[best]), (worst, images[worst]))
    by_fid.result.to_html(out / "report_fid.html")
    by_is.result.to_html(out / "report_is.html")
    scores = {name: {"fid": t.fid, "stderr": t.stderr, "is": t.inception_score} for name, t in truths.items()}
    (out / "figures.json").write_text(json.dumps(figures | {"truth": scores}, indent=2), encoding="utf-8")
    (out / "table.md").write_text(by_fid.result.to_markdown(), encoding="utf-8")
    made = [out / name for name in ("demo.png", "report_fid.html", "report_is.html", "table.md", "figures.json")]
    return [*made, by_fid.path, by_is.path]


def _sampler(folder: Path, arm: str) -> Any:
    weights, variant = arm.split("/")
    model = DigitFlow.load_from_checkpoint(folder / f"{weights}.ckpt", map_location="cpu").eval()

    def draw(num_samples: int, generator: torch.Generator) -> Tensor:
        return model.sample(num_samples, generator=generator, **VARIANTS[variant])

    return draw


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what Lightning itself says about devices, workers and its cloud; lines of the callbacks are shown."""
    lightning = str(Path(pl.__file__).parent)
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")

    def of_others(record: logging.LogRecord) -> bool:
        return not record.pathname.startswith(lightning)

    logger.addFilter(of_others)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=PossibleUserWarning)
            warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # of torch to Lightning
            yield
    finally:
        logger.removeFilter(of_others)
