"""Many independent runs at once, followed pull by pull: what the coverage study and its reduced test are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit.functional.confidence import ScoreMoments, WidthKind, deviation, sequence_width
from tm_bandit.functional.crossfit import (
    FOLDS,
    Fitting,
    FoldLayout,
    fit_folds,
    fold_numbers,
    leave_one_out,
    num_folds,
    recent_rows,
    refit_counts,
    sum_folds,
)
from tm_bandit.functional.frechet import frechet_distance
from tm_bandit.functional.witness_fd import (
    Axes,
    FrechetWitness,
    block_size,
    make_axes,
    score_rows,
)
from tm_bandit.functional.witness_is import (
    block_sums,
    crossfit_marginals,
    crossfit_mean,
    predict_marginal,
    recent_spread,
    score_probs,
    uniform_prior,
)
from tm_bandit.metrics.frechet_stream import WitnessSummary, upper_bound
from tm_bandit.metrics.marginal_stream import marginal_spread, witness_interval

#: Draws runs of rows, shape (runs, n, d), with a generator.
Sampler = Callable[[int, int, torch.Generator], Tensor]


class Scenario(NamedTuple):
    """A generator, its reference's eigenvalues (the reference is centred and diagonal) and the true distance."""

    name: str
    sampler: Sampler
    eigenvalues: Tensor
    truth: float


class Crossings(NamedTuple):
    """Shares of runs in which an end of the interval was ever on the wrong side, and the mean ends at some looks."""

    lower: float
    either: float
    ends: dict[int, tuple[float, float]]


def frechet_scores(
    rows: Tensor, eigenvalues: Tensor, looks: list[int], alpha: float, kind: WidthKind, fitting: Fitting = "crossfit"
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield, for each look, the scores of all runs ``(runs, number of scores)`` and the mean damping ``(runs,)``."""
    axes: Axes = make_axes(eigenvalues)
    counts = [*refit_counts(looks[-1]), looks[-1] + 1]
    crossfit = fitting == "crossfit"
    scores = torch.empty(rows.shape[:2], dtype=torch.float64)
    for fitted, until in pairwise(counts):
        due = [look for look in looks if fitted <= look < until]
        if crossfit and not due:
            continue
        folds, block = num_folds(fitted) if crossfit else 1, block_size(fitted, rows.shape[-1])
        layout, grouped = _grouped(rows[:, :fitted], folds)
        sums = sum_folds(grouped, layout, axes, block)
        recent = recent_rows(fitted)
        witness, damping, _ = fit_folds(
            leave_one_out(sums) if crossfit else sums,
            axes,
            rows[:, recent.start : recent.stop],
            layout.fold[recent.start : recent.stop] - int(not crossfit),
            sequence_width(fitted, alpha, kind),
        )
        if crossfit:
            layout, grouped = _grouped(rows[:, : due[-1]], folds)
            scores = score_rows(witness, grouped)[:, layout.fold, layout.slot]
        else:
            own = FrechetWitness(*(part[:, 0] for part in witness))
            scores[:, fitted:until] = score_rows(own, rows[:, fitted:until])
        for look in due:
            yield look, scores[:, (0 if crossfit else counts[0]) : look], damping.mean(1)


def _grouped(rows: Tensor, folds: int) -> tuple[FoldLayout, Tensor]:
    """Put the rows of each fold together, for all runs ``(runs, n, d)`` alike."""
    layout = FoldLayout.of(0, rows.shape[1], folds)
    grouped = layout.empty(rows.shape[0], width=rows.shape[2], like=rows)
    grouped[:, layout.fold, layout.slot] = rows
    return layout, grouped


def plug_in_path(rows: Tensor, eigenvalues: Tensor, looks: list[int]) -> dict[int, tuple[Tensor, Tensor]]:
    """Plug-in distances with the 1/n covariance and its largest eigenvalues, ``(runs,)`` each, for each look."""
    root = eigenvalues.sqrt()
    first = torch.zeros(rows.shape[0], rows.shape[2], dtype=torch.float64)
    second = torch.zeros(rows.shape[0], rows.shape[2], rows.shape[2], dtype=torch.float64)
    result, done = {}, 0
    for look in looks:
        new = rows[:, done:look]
        first, second, done = first + new.sum(1), second + new.transpose(1, 2) @ new, look
        mean = first / look
        covariance = second / look - mean[:, :, None] * mean[:, None, :]
        spectrum = torch.linalg.eigvalsh(root[:, None] * covariance * root)
        trace = covariance.diagonal(dim1=1, dim2=2).sum(1)
        cross = spectrum.clamp_min(0).sqrt().sum(1)
        distance = mean.square().sum(1) + trace + eigenvalues.sum() - 2 * cross
        result[look] = distance, torch.linalg.eigvalsh(covariance)[:, -1]
    return result


def frechet_coverage(
    scenario: Scenario,
    runs: int,
    looks: list[int],
    delta: float,
    kind: WidthKind = "mixture",
    seed: int = 0,
    fitting: Fitting = "crossfit",
) -> Crossings:
    """Follow runs of one scenario and count those that ever cross the truth."""
    rows = scenario.sampler(runs, looks[-1], torch.Generator().manual_seed(seed))
    plug_in = plug_in_path(rows, scenario.eigenvalues, looks)
    above = torch.zeros(runs, dtype=torch.bool)
    below = torch.zeros(runs, dtype=torch.bool)
    ends = {}
    slack = 1e-9 * float(scenario.eigenvalues.sum())
    for look, scores, damping in frechet_scores(rows, scenario.eigenvalues, looks, delta / 2, kind, fitting):
        lower, upper = [], []
        for run, moments in enumerate(map(ScoreMoments.of, scores)):
            lower.append(max(0.0, moments.mean - deviation(moments, delta / 2, upper=False, kind=kind)))
            distance, largest = (float(values[run]) for values in plug_in[look])
            upper.append(upper_bound(distance, WitnessSummary(moments, float(damping[run]), largest), delta / 2, kind))
        above |= torch.tensor(lower) > scenario.truth + slack
        below |= torch.tensor(upper) < scenario.truth - slack
        ends[look] = (sum(lower) / runs, sum(upper) / runs)
    return Crossings(float(above.double().mean()), float((above | below).double().mean()), ends)


def marginal_coverage(
    sampler: Sampler,
    truth: float,
    runs: int,
    looks: list[int],
    delta: float,
    kind: WidthKind = "mixture",
    seed: int = 0,
) -> Crossings:
    """Follow runs of class probabilities; here the optimistic end is the upper one."""
    probs = sampler(runs, looks[-1], torch.Generator().manual_seed(seed))
    classes = probs.shape[2]
    priors = uniform_prior(classes)
    entropies = torch.special.entr(probs).sum(-1)
    # Scores at arrival, for all runs together.
    arrival = torch.empty(probs.shape[:2], dtype=torch.float64)
    edges = [0, *refit_counts(looks[-1]), looks[-1]]
    for start, stop in pairwise(edges):
        if start == 0:
            witness = priors.expand(runs, classes)
        else:
            prob, num = _folded(probs[:, :start], FOLDS)
            witness = predict_marginal(prob, num, priors)
        arrival[:, start:stop] = score_probs(probs[:, start:stop], witness)
    above = torch.zeros(runs, dtype=torch.bool)
    below = torch.zeros(runs, dtype=torch.bool)
    ends = {}
    fine, done = probs.new_zeros(runs, FOLDS, classes), 0
    for look in looks:
        fine, done = fine.index_add(1, fold_numbers(done, look), probs[:, done:look]), look
        prob = fine.view(runs, -1, num_folds(look), classes).sum(1)
        num = torch.bincount(fold_numbers(0, look) % num_folds(look)).double().expand(runs, -1)
        entropy = entropies[:, :look].sum(1)
        means = crossfit_mean(prob, num, entropy, crossfit_marginals(prob, num, priors))
        plug_in = torch.special.entr(prob.sum(1) / look).sum(-1) - entropy / look
        least = marginal_spread(prob.sum(1) / look)
        pairs = []
        for run in range(runs):
            spread = recent_spread(block_sums(arrival[run, :look], 0))
            moments = ScoreMoments(look, float(means[run]), spread.std, spread.skewness)
            estimate, spread_of_run = float(plug_in[run]), float(least[run])
            pairs.append(witness_interval(moments, estimate, classes, delta / 2, kind, spread_of_run))
        lower, upper = (torch.tensor(side) for side in zip(*pairs, strict=True))
        below |= upper < truth - 1e-12
        above |= lower > truth + 1e-12
        ends[look] = (float(lower.mean()), float(upper.mean()))
    return Crossings(float(below.double().mean()), float((above | below).double().mean()), ends)


def _folded(probs: Tensor, folds: int) -> tuple[Tensor, Tensor]:
    """Sums per fold of runs of probabilities ``(runs, n, C)``."""
    fold = fold_numbers(0, probs.shape[1]) % folds
    prob = probs.new_zeros(probs.shape[0], folds, probs.shape[2]).index_add(1, fold, probs)
    num = torch.bincount(fold, minlength=folds).double()
    return prob, num.expand(probs.shape[0], folds)


def centred_scenario(name: str, sampler: Sampler, reference_mean: Tensor, reference: Tensor, size: int) -> Scenario:
    """Rotate a sampler into the eigenbasis of a reference and measure the truth on ``size`` rows."""
    values, vectors = torch.linalg.eigh(reference)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)

    def rotated(runs: int, count: int, generator: torch.Generator) -> Tensor:
        return (sampler(runs, count, generator) - reference_mean) @ vectors

    rows = rotated(1, size, torch.Generator().manual_seed(12345))[0]
    truth = frechet_distance(rows.mean(0), torch.cov(rows.T), torch.zeros_like(values), torch.diag(values))
    return Scenario(name, rotated, values, float(truth))
