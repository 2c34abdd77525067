"""Arms whose true score is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tm_bandit.errors import InputError
from tm_bandit.execution.draw import Sampler
from tm_bandit.functional.frechet import frechet_distance
from tm_bandit.functional.inception_score import inception_score
from tm_bandit.functional.moments import covariance, moments_from_rows


@dataclass(frozen=True)
class SimulatedArm:
    """A sampler of rows together with its true score.

    Args:
        name: the arm's name.
        sample: ``sample(num_samples, generator=generator)`` returns rows for ``ModelSelector(samples="features")``.
        score: the true score in the metric's unit: the Frechet distance or the Inception Score.
    """

    name: str
    sample: Sampler
    score: float


def gaussian_arm(name: str, mean: Tensor, covariance: Tensor, ref_mean: Tensor, ref_covariance: Tensor) -> SimulatedArm:
    """Return an arm that draws Gaussian rows; its score is the Frechet distance to the reference.

    Args:
        name: the arm's name.
        mean: mean of the rows.
        covariance: covariance of the rows.
        ref_mean: mean of the reference.
        ref_covariance: covariance of the reference.

    Example:
        >>> import torch
        >>> arm = gaussian_arm("shifted", torch.ones(4), torch.eye(4), torch.zeros(4), torch.eye(4))
        >>> round(arm.score, 6)
        4.0
        >>> arm.sample(3, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([3, 4])
    """
    mean, covariance = mean.double(), covariance.double()
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(0).sqrt()

    def sample(num_samples: int, generator: torch.Generator) -> Tensor:
        noise = torch.randn(num_samples, mean.shape[0], generator=generator, dtype=torch.float64)
        rows: Tensor = mean + noise @ root.T
        return rows

    score = frechet_distance(mean, covariance, ref_mean.double(), ref_covariance.double())
    return SimulatedArm(name, sample, float(score))


def paired_gaussian_arm(
    name: str, mean: Tensor, variances: Tensor, angle: float, pairs: Tensor, ref_variances: Tensor
) -> SimulatedArm:
    r"""Return a Gaussian arm whose covariance is diagonal except for a rotation within pairs of axes.

    The reference has mean zero and diagonal covariance. For a pair with reference block :math:`A` and rotated block
    :math:`B` the Frechet distance has the closed form
    :math:`\mathrm{tr} A + \mathrm{tr} B - 2 \sqrt{\mathrm{tr}(AB) + 2 \sqrt{\det A \det B}}`, so arms of a thousand
    dimensions need no matrices.

    Args:
        name: the arm's name.
        mean: mean of the rows, shape ``(d,)``.
        variances: variances before the rotation, shape ``(d,)``.
        angle: angle of the rotation, in radians.
        pairs: the pairs of axes, shape ``(m, 2)``, all different.
        ref_variances: variances of the reference, shape ``(d,)``.
    """
    mean, deviations = mean.double(), variances.double().sqrt()
    first, second = pairs[:, 0], pairs[:, 1]
    cos, sin = math.cos(angle), math.sin(angle)

    def sample(num_samples: int, generator: torch.Generator) -> Tensor:
        rows = torch.randn(num_samples, mean.shape[0], generator=generator, dtype=torch.float64) * deviations
        one, two = rows[:, first], rows[:, second]
        rows[:, first], rows[:, second] = cos * one - sin * two, sin * one + cos * two
        return rows + mean

    return SimulatedArm(name, sample, paired_distance(mean, variances, angle, pairs, ref_variances))


def paired_distance(mean: Tensor, variances: Tensor, angle: float, pairs: Tensor, ref_variances: Tensor) -> float:
    """Return the Frechet distance of :func:`paired_gaussian_arm` in closed form."""
    v, w = variances.double(), ref_variances.double()
    first, second = pairs[:, 0], pairs[:, 1]
    alone = torch.ones_like(v, dtype=torch.bool)
    alone[pairs.flatten()] = False
    total = mean.double().square().sum() + v.sum() + w.sum() - 2.0 * (v[alone] * w[alone]).sqrt().sum()
    cos2 = math.cos(angle) ** 2
    p, q, a, b = v[first], v[second], w[first], w[second]
    trace = a * (cos2 * p + (1.0 - cos2) * q) + b * ((1.0 - cos2) * p + cos2 * q)
    total -= 2.0 * (trace + 2.0 * (p * q * a * b).sqrt()).sqrt().sum()
    return max(0.0, float(total))


def bank_arm(name: str, rows: Tensor, ref_mean: Tensor, ref_covariance: Tensor) -> SimulatedArm:
    """Return an arm that draws from a bank of feature rows with replacement, which makes its moments exact.

    Args:
        name: the arm's name.
        rows: the bank, shape ``(N, d)``.
        ref_mean: mean of the reference.
        ref_covariance: covariance of the reference.
    """
    exact = moments_from_rows(rows)
    score = frechet_distance(exact.mean, covariance(exact, unbiased=False), ref_mean, ref_covariance)
    return SimulatedArm(name, _drawer(rows), float(score))


def probability_arm(name: str, probabilities: Tensor) -> SimulatedArm:
    """Return an arm that draws from a bank of class probabilities; its score is the Inception Score of the bank.

    Args:
        name: the arm's name.
        probabilities: the bank, shape ``(N, classes)``, rows that sum to one.
    """
    if probabilities.ndim != 2:
        raise InputError(
            f"Expected probabilities of shape (N, classes), but got {tuple(probabilities.shape)}; give one row each."
        )
    return SimulatedArm(name, _drawer(probabilities), float(inception_score(probabilities.double())))


def _drawer(bank: Tensor) -> Sampler:
    def sample(num_samples: int, generator: torch.Generator) -> Tensor:
        return bank[torch.randint(bank.shape[0], (num_samples,), generator=generator)].double()

    return sample


def class_bank(
    classes: Sequence[int], num_classes: int, sharpness: float, size: int, generator: torch.Generator
) -> Tensor:
    """Return a bank of class probabilities in which every row leans towards one of ``classes``.

    Args:
        classes: the classes that the generator can draw; dropping some lowers the diversity.
        num_classes: length of a row.
        sharpness: logit of the row's own class over the noise in the others; the larger, the surer the classifier.
        size: number of rows.
        generator: source of randomness.
    """
    logits = torch.randn(size, num_classes, generator=generator, dtype=torch.float64)
    own = torch.tensor(list(classes))[torch.randint(len(classes), (size,), generator=generator)]
    logits[torch.arange(size), own] += sharpness
    return logits.softmax(1)
