"""What the selection is checked against: scores from many samples, and what uniform evaluation would have needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics

#: An arm counts as right if its FID is at most this much worse than the best; the truth itself has an error of 4 %.
TOLERANCE = 0.1

#: Samples that are drawn at a time: what the network makes of more of them does not fit into a processor's cache.
_AT_ONCE = 250


class Truth(NamedTuple):
    """Score of one arm from many samples.

    Args:
        features: the rows it was computed from.
        fid: plain FID of all rows.
        stderr: its standard error, from ten disjoint parts.
        inception_score: Inception Score of all rows.
    """

    features: Tensor
    fid: float
    stderr: float
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
    """Draw many samples of one arm and score them.

    Args:
        draw: the arm's sampler.
        features: images to feature rows.
        logits: images to class logits.
        reference: statistics of the real images.
        num_samples: how many to draw.
        seed: of the samples; unrelated to the seeds that the selection uses.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        images = torch.cat([draw(len(part), generator) for part in torch.split(torch.arange(num_samples), _AT_ONCE)])
        rows, chances = features(images), logits(images).double().softmax(1)
    parts = torch.tensor([plain_fid(part, reference) for part in rows.chunk(10)])
    entropies = torch.special.entr(chances).sum(1).mean()
    log_score = torch.special.entr(chances.mean(0)).sum() - entropies
    return Truth(rows, plain_fid(rows, reference), float(parts.std() / 10**0.5), float(log_score.exp()))


def right(pick: str, truths: Mapping[str, Truth]) -> bool:
    """Whether an arm's true FID is within :data:`TOLERANCE` of the best one's."""
    return truths[pick].fid <= (1 + TOLERANCE) * min(truth.fid for truth in truths.values())


def uniform_share(truths: Mapping[str, Truth], reference: ReferenceStatistics, each: int, repeats: int) -> float:
    """How often uniform evaluation is right: ``each`` samples from every arm, the lowest plain FID wins.

    Args:
        truths: the arms; samples are drawn from their rows.
        reference: statistics of the real images.
        each: samples per arm.
        repeats: number of independent evaluations.
    """
    hits = 0
    for repeat in range(repeats):
        generator = torch.Generator().manual_seed(repeat)
        scores = {}
        for name, truth in truths.items():
            scores[name] = plain_fid(_resample(truth.features)(each, generator), reference)
        hits += right(min(scores, key=scores.__getitem__), truths)
    return hits / repeats


def bandit_share(
    truths: Mapping[str, Truth],
    reference: ReferenceStatistics,
    budget: int,
    batch_size: int,
    burn_in: int,
    repeats: int,
) -> float:
    """How often the bandit is right with a total of ``budget`` samples: other samples each time, same arms."""
    hits = 0
    for seed in range(repeats):
        selector = ModelSelector(
            metric=OptimisticFID(feature="none", reference=reference),
            arms={name: _resample(truth.features) for name, truth in truths.items()},
            samples="features",
            batch_size=batch_size,
            budget=budget,
            burn_in=burn_in,
            goal="identify",
            seed=seed,
        )
        hits += right(str(selector.run(progress=False).best), truths)
    return hits / repeats


def uniform_need(
    truths: Mapping[str, Truth],
    reference: ReferenceStatistics,
    share: float,
    repeats: int,
    sizes: Sequence[int],
) -> int | None:
    """Samples (over all arms) from which on uniform evaluation is right as often as ``share``; ``None`` if never.

    Args:
        truths: the arms.
        reference: statistics of the real images.
        share: how often the rival was right.
        repeats: evaluations per size.
        sizes: samples per arm to try, ascending.
    """
    need = None
    for each in sorted(sizes, reverse=True):
        if uniform_share(truths, reference, each, repeats) < share:
            break
        need = each
    return None if need is None else need * len(truths)


def _resample(rows: Tensor) -> Callable[[int, torch.Generator], Tensor]:
    def draw(num_samples: int, generator: torch.Generator) -> Tensor:
        return rows[torch.randint(len(rows), (num_samples,), generator=generator)]

    return draw
