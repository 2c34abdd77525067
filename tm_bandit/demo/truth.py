"""What the selection is checked against: a pool of samples per arm, and what equal evaluation finds in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics
from tm_bandit.functional import inception_score
from tm_bandit.report.result import SelectionResult

#: An arm counts as right if its FID is at most this much worse than the best: less than what the closest two differ by.
TOLERANCE = 0.02

#: Samples that are drawn at a time: the network's values for more would not fit into a processor's cache.
_AT_ONCE = 250


class Truth(NamedTuple):
    """One arm's pool of samples and its scores.

    Selections draw from the pool, with replacement. So its scores are the truth about them, without error.

    Args:
        features: one row per sample; row i of every arm is made from the same noise.
        fid: plain FID of all rows.
        inception_score: Inception Score of all rows.
    """

    features: Tensor
    fid: float
    inception_score: float


def plain_fid(rows: Tensor, reference: ReferenceStatistics) -> float:
    """The FID as everybody computes it."""
    metric = OptimisticFID(feature="none", reference=reference, bound="none")
    metric.update_features(rows)
    return float(metric.estimate())


def measure(
    draw: Callable[[int, torch.Generator], Tensor],
    features: Callable[[Tensor], Tensor],
    logits: Callable[[Tensor], Tensor],
    reference: ReferenceStatistics,
    num_samples: int,
    seed: int,
) -> Truth:
    """Draw the pool of one arm and score it.

    Args:
        draw: the arm's sampler.
        features: images to feature rows.
        logits: images to class logits.
        reference: statistics of the real images.
        num_samples: how many to draw.
        seed: of the noise; the same for all arms.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        images = torch.cat([draw(len(part), generator) for part in torch.split(torch.arange(num_samples), _AT_ONCE)])
        rows, chances = features(images), logits(images).double().softmax(1)
    return Truth(rows, plain_fid(rows, reference), float(inception_score(chances)))


def right(pick: str | None, truths: Mapping[str, Truth]) -> bool:
    """Whether an arm's true FID is within :data:`TOLERANCE` of the best one's."""
    best = min(truth.fid for truth in truths.values())
    return pick is not None and truths[pick].fid <= (1 + TOLERANCE) * best


def race(truths: Mapping[str, Truth], reference: ReferenceStatistics, budget: int, seed: int) -> SelectionResult:
    """Select among all arms from the same noise, until the selector stops by itself, with default settings.

    Args:
        truths: the arms; samples are drawn from their pools.
        reference: statistics of the real images.
        budget: the most samples that it may draw.
        seed: decides which samples.
    """
    selector = ModelSelector(
        OptimisticFID(feature="none", reference=reference),
        {name: _sampler(truth.features) for name, truth in truths.items()},
        samples="features",
        budget=budget,
        seed=seed,
    )
    return selector.run(progress=False)


def pick_within(result: SelectionResult, num_samples: int) -> str | None:
    """Return what a selection recommended when it had drawn this many samples, or at its end if that came first.

    Args:
        result: the selection.
        num_samples: how many.
    """
    drawn = sum(samples <= num_samples for samples in result.history["samples"])
    pick: str | None = result.history["best"][drawn - 1] if drawn else None
    return result.best if drawn == len(result.history["samples"]) else pick


def uniform(
    truths: Mapping[str, Truth], reference: ReferenceStatistics, each: int, repeats: int
) -> list[dict[str, float]]:
    """Evaluate all arms equally, as is usual: by the plain FID, each arm with its own noise.

    Args:
        truths: the arms; samples are drawn from their pools.
        reference: statistics of the real images.
        each: samples per arm.
        repeats: number of evaluations.

    Returns:
        The scores of all arms in each evaluation.
    """
    generators = [torch.Generator().manual_seed(repeat) for repeat in range(repeats)]
    samplers = {name: _sampler(truth.features) for name, truth in truths.items()}
    return [{name: plain_fid(draw(each, g), reference) for name, draw in samplers.items()} for g in generators]


def smallest_that_stays(shares: Sequence[tuple[int, int]], wanted: int) -> int | None:
    """Return the first size from which on all are right at least ``wanted`` times; ``None`` if there is none.

    Args:
        shares: pairs of a size and how often it was right, by size.
        wanted: how often.

    Example:
        >>> smallest_that_stays([(10, 3), (20, 9), (40, 8), (80, 9)], wanted=9)
        80
    """
    failed = [at for at, (_, hits) in enumerate(shares) if hits < wanted]
    stays = shares[failed[-1] + 1 :] if failed else shares
    return stays[0][0] if stays else None


def _sampler(rows: Tensor) -> Callable[[int, torch.Generator], Tensor]:
    def draw(num_samples: int, generator: torch.Generator) -> Tensor:
        return rows[torch.randint(len(rows), (num_samples,), generator=generator)]

    return draw
