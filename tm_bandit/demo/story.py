"""The demo from end to end, told line by line."""

from __future__ import annotations

import functools
import json
import logging
import statistics
import sys
import textwrap
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
from tm_bandit._guards import preserved_rng
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
        budget: the most samples per validation and metric.
        batch_size: samples per pull during training.
        pool: samples per arm that the selections after training draw from.
        samples: what the paired race and uniform evaluation are compared at.
        limit: samples after which a race that has not stopped by itself is ended.
        repeats: of that comparison.
    """

    classifier_steps: int = 600
    epochs: int = 280
    every: int = 40
    budget: int = 400
    batch_size: int = 20
    pool: int = 3_000
    samples: int = 2_500
    limit: int = 6_000
    repeats: int = 20


class Choice(NamedTuple):
    """What one callback found, and the file of its winner."""

    result: SelectionResult
    path: Path


#: Every arm's pool of samples and its true scores.
Truths = dict[str, check.Truth]


class Trials(NamedTuple):
    """The selections after training.

    Args:
        races: paired races with different samples.
        uniform: by samples per arm, the scores of all arms in each uniform evaluation.
    """

    races: list[SelectionResult]
    uniform: dict[int, list[dict[str, float]]]


#: Two ways to sample from each set of weights: in twenty steps, beyond which more make no difference, or in two.
VARIANTS: dict[str, dict[str, Any]] = {"20 steps": {"steps": 20}, "2 steps": {"steps": 2}}

FULL = Scale()
#: As small as it runs: nothing is to be learnt from its figures.
FAST = Scale(60, epochs=4, every=2, budget=120, batch_size=10, pool=400, samples=400, limit=800, repeats=2)


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

    arms = scale.epochs // scale.every * 2 * len(VARIANTS)
    tell_all(
        f"Which of {arms} candidates is the best, when the best ones are nearly tied? This demo trains a small\n"
        f"generative model, finds the best candidate with {scale.samples:,} samples, and checks the answer.\n"
        "The last lines say how it went.\n"
    )
    data = DigitsData(seed=seed)
    classifier = train_classifier(data.digits, seed=seed, steps=scale.classifier_steps)
    accuracy = classifier.accuracy(data.digits.test_images, data.digits.test_labels)
    say(f"1/5 classifier trained: it is right about {accuracy:.1%} of {len(data.digits.test_labels)} held-out digits")

    say(f"2/5 training a flow-matching model for {scale.epochs} epochs, two callbacks choose among its checkpoints")
    reference = ReferenceStatistics.from_features(classifier(data.digits.images))
    choices = train(out, data, classifier, reference, seed, scale)
    by_fid, by_is = (choice.result for choice in choices)

    names = [row["arm"] for row in by_fid.arms]
    say(f"3/5 training is over: {scale.pool:,} samples from each of {len(names)} candidates, all from the same noise")
    truths = measure_all(out / "fid", names, classifier, reference, scale.pool, seed)

    say(f"4/5 choosing among all of them {scale.repeats} times: the paired race, and all equally by the plain FID")
    trials = try_out(truths, reference, scale)
    figures = compare(by_fid, by_is, truths, trials, scale) | {"classifier_accuracy": accuracy}
    tell_all(f"\nThe first race:\n\n{trials.races[0]}\n")

    files = write_files(out, choices, truths, trials, figures, seed)
    say("5/5 done. Files:\n" + "\n".join(f"    {path}" for path in files))
    tell_all("\n" + tell(figures))
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
    spent: dict[str, Any] = {"budget": scale.budget, "batch_size": scale.batch_size}
    common = spent | {"variants": VARIANTS, "max_arms": arms, "seed": seed}
    fid = OptimisticFID(feature=classifier, reference=reference, normalize=True)
    inception = OptimisticIS(feature=Logits(classifier), normalize=True)
    return [
        BanditCheckpoint(metric=fid, key="fid", dirpath=out / "fid", **common),
        BanditCheckpoint(metric=inception, key="is", dirpath=out / "is", **common),
    ]


def fit(data: DigitsData, callbacks: Sequence[pl.Callback], seed: int, scale: Scale) -> None:
    """Train the generative model, and keep the average of its weights."""
    with _quiet(), preserved_rng(seed):
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
) -> Truths:
    """Draw a pool of samples from every arm, all from the same noise, and score it."""
    elsewhere = 1_000_003 * (seed + 1)  # unrelated to the seeds of training
    return {
        name: check.measure(_sampler(folder, name), classifier, Logits(classifier), reference, num, seed=elsewhere)
        for name in names
    }


def try_out(truths: Truths, reference: ReferenceStatistics, scale: Scale) -> Trials:
    """Choose among all arms again and again: by the paired race, and by evaluating them equally."""
    races = [check.race(truths, reference, scale.limit, seed) for seed in range(scale.repeats)]
    sizes = [scale.samples // len(truths)]
    while 2 * sizes[-1] < scale.pool:
        sizes.append(2 * sizes[-1])
    return Trials(races, {each: check.uniform(truths, reference, each, scale.repeats) for each in (*sizes, scale.pool)})


def compare(
    fid: SelectionResult, inception: SelectionResult, truths: Truths, trials: Trials, scale: Scale
) -> dict[str, Any]:
    """Count how often each way is right, and put the headline first."""
    arms = len(truths)
    best, second = sorted(truths, key=lambda name: truths[name].fid)[:2]
    last = [name for name in truths if name.endswith(f"/{next(iter(VARIANTS))}") and "avg" not in name][-1]
    best_is = max(truths, key=lambda name: truths[name].inception_score)
    hits = sum(check.right(check.pick_within(race, scale.samples), truths) for race in trials.races)
    uniform = [
        (each * arms, sum(check.right(min(scores, key=scores.__getitem__), truths) for scores in evaluations))
        for each, evaluations in trials.uniform.items()
    ]
    figures = {
        "arms": arms,
        "samples": scale.samples,
        "repeats": scale.repeats,
        "tolerance": check.TOLERANCE,
        "race_right": hits,
        "race_ends_at": int(statistics.median(race.total_samples for race in trials.races)),
        "race_ends_at_most": max(race.total_samples for race in trials.races),
        "race_right_at_end": sum(check.right(race.best, truths) for race in trials.races),
        "race_decided": sum(race.stopped_by == "stop" for race in trials.races),
        "uniform": [{"samples": samples, "right": right} for samples, right in uniform],
        "uniform_need": check.smallest_that_stays(uniform, hits),
        "uniform_most": uniform[-1][0],
        "chosen_by_fid": fid.best,
        "chosen_fid": truths[str(fid.best)].fid,
        "best_by_fid": best,
        "best_fid": truths[best].fid,
        "second_fid": truths[second].fid,
        "last_fid": truths[last].fid,
        "samples_fid": fid.total_samples,
        "chosen_by_is": inception.best,
        "chosen_is": truths[str(inception.best)].inception_score,
        "best_by_is": best_is,
        "best_is": truths[best_is].inception_score,
        "samples_is": inception.total_samples,
        "true_samples": scale.pool,
    }
    return {"headline": headline(figures)} | figures


def headline(figures: dict[str, Any]) -> str:
    """Say the outcome in a sentence."""
    f = figures
    return (
        f"The best of {f['arms']} candidates, or one within {f['tolerance']:.0%} of its FID, with {f['samples']:,} "
        f"samples: the paired race finds it in {f['race_right']} of {f['repeats']} runs, evaluating all candidates "
        f"equally by the plain FID in {f['uniform'][0]['right']} of {f['repeats']}."
    )


def table(figures: dict[str, Any]) -> str:
    """Return how often each way was right, as Markdown."""
    f = figures
    rows = [
        ("paired race, cut off", f"{f['samples']:,}", f["race_right"]),
        ("paired race, until it stops by itself", f"{f['race_ends_at']:,} (median)", f["race_right_at_end"]),
        *(("equally, by the plain FID", f"{row['samples']:,}", row["right"]) for row in f["uniform"]),
    ]
    cells = [("evaluation", "samples in all", f"right within {f['tolerance']:.0%}")]
    cells += [(way, samples, f"{hits} of {f['repeats']}") for way, samples, hits in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [f"| {a:{widths[0]}} | {b:>{widths[1]}} | {c:>{widths[2]}} |" for a, b, c in cells]
    rule = f"|{'-' * (widths[0] + 2)}|{'-' * (widths[1] + 1)}:|{'-' * (widths[2] + 1)}:|"
    return "\n".join([lines[0], rule, *lines[1:]])


def tell(figures: dict[str, Any]) -> str:
    """Put the figures into words, the headline first."""
    f = figures
    most = f["uniform_most"]
    needed, ratio = f["uniform_need"], most / f["samples"]
    need = f"With {most:,} samples, {ratio:.0f} times as many, equal evaluation is still right less often."
    if needed:
        ratio = needed / f["samples"]
        need = f"To be right as often, equal evaluation needs {needed:,} samples, {ratio:.1f} times as many."
    lines = [
        *textwrap.wrap(f["headline"], 110),
        "",
        table(f),
        "",
        need,
        f"The best one is {f['best_by_fid']}, with a true FID of {f['best_fid']:.2f}; the next is only "
        f"{f['second_fid'] / f['best_fid'] - 1:.1%} worse.",
        "",
        "During training, where candidates appear one after the other:",
        f"FID: with {f['samples_fid']:,} samples, {f['chosen_by_fid']} was chosen; its true FID is "
        f"{f['chosen_fid']:.2f} (the best {f['best_fid']:.2f}, the last weights {f['last_fid']:.2f}).",
        f"IS:  with {f['samples_is']:,} samples, {f['chosen_by_is']} was chosen; its true IS is {f['chosen_is']:.3f} "
        f"(the best {f['best_is']:.3f}).",
    ]
    return "\n".join(lines)


def write_files(
    out: Path, choices: Sequence[Choice], truths: Truths, trials: Trials, figures: dict[str, Any], seed: int
) -> list[Path]:
    """Write the picture, the reports and the figures; return the paths, the most interesting first."""
    race, order = trials.races[0], sorted(truths, key=lambda name: truths[name].fid)
    shown = {"best": order[0], "second": order[1], "worst": order[-1]}
    images = {}
    for title, name in shown.items():
        samples = _sampler(out / "fid", name)(24, torch.Generator().manual_seed(seed))
        images[f"{title}: {name},\ntrue FID {truths[name].fid:.2f}"] = samples
    true_fid = {name: truths[name].fid for name in order}
    draw_picture(out / "demo.png", race, true_fid, no_cheaper(trials.uniform, race), images)
    race.to_html(out / "report_race.html")
    for choice, name in zip(choices, ("fid", "is"), strict=True):
        choice.result.to_html(out / f"report_{name}.html")
    scores = {name: {"fid": t.fid, "is": t.inception_score} for name, t in truths.items()}
    (out / "figures.json").write_text(json.dumps(figures | {"truth": scores}, indent=2) + "\n", encoding="utf-8")
    text = f"{figures['headline']}\n\n{table(figures)}\n\nThe first race:\n\n{race.to_markdown()}"
    (out / "table.md").write_text(text, encoding="utf-8")
    names = ("demo.png", "report_race.html", "report_fid.html", "report_is.html", "table.md", "figures.json")
    return [*(out / name for name in names), *(choice.path for choice in choices)]


def no_cheaper(uniform: dict[int, list[dict[str, float]]], race: SelectionResult) -> tuple[int, list[dict[str, float]]]:
    """Return the smallest evaluations with no fewer samples than a race, as otherwise the picture would not be fair.

    Args:
        uniform: by samples per arm, from few to many, the scores of all arms in each evaluation.
        race: the race that they are shown beside.
    """
    enough = [each for each in uniform if each * len(race.arms) >= race.total_samples]
    each = next(iter(enough), max(uniform))
    return each, uniform[each]


def _sampler(folder: Path, arm: str) -> Any:
    weights, variant = arm.split("/")
    model = DigitFlow.load_from_checkpoint(folder / f"{weights}.ckpt", map_location="cpu").eval()

    def draw(num_samples: int, generator: torch.Generator) -> Tensor:
        return model.sample(num_samples, generator=generator, **VARIANTS[variant])

    return draw


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what Lightning itself says about devices, workers and its cloud; the callbacks' lines are shown."""
    lightning = str(Path(pl.__file__).parent)
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")

    def of_others(record: logging.LogRecord) -> bool:
        return not record.pathname.startswith(lightning)

    logger.addFilter(of_others)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=PossibleUserWarning)
            warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # from torch to Lightning
            yield
    finally:
        logger.removeFilter(of_others)
