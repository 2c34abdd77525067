"""Gaussian arms of the size of the paper's DINOv2 experiments, built from published numbers.

The published numbers are, for five generators and the reference on ImageNet, the trace, the Frobenius norm and the
largest eigenvalue of the feature covariance, and the Frechet distances of all arms on three datasets. What is not
published is filled in simply: spectra are shifted power laws that match the three numbers; half of each distance is a
mean shift, and the rest comes from the spectrum and from a rotation within random pairs of axes (if that is not enough,
more mean shift). The datasets other than ImageNet borrow ImageNet's covariance parameters.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from scipy.optimize import brentq
from torch import Tensor

from tm_bandit.errors import InputError
from tm_bandit.simulation.arms import SimulatedArm, paired_distance, paired_gaussian_arm

#: Length of the rows of DINOv2 ViT-L/14.
DIMENSION = 1024


class Shape(NamedTuple):
    """The published numbers of a covariance: its trace, Frobenius norm and largest eigenvalue."""

    trace: float
    frobenius: float
    norm: float


#: DINOv2 features of ImageNet from 5,000 images each (Hu et al., 2025, tables in the appendix).
REFERENCE_SHAPE = Shape(2112.7, 85.3, 21.0)
ARM_SHAPES = (
    Shape(2079.5, 99.9, 36.5),
    Shape(2068.2, 103.0, 42.5),
    Shape(2013.3, 106.7, 50.5),
    Shape(1955.3, 111.4, 54.4),
    Shape(1885.5, 120.3, 68.8),
)

#: Frechet distances with DINOv2 of the paper's five arms per dataset (Stein et al., 2023), the best first.
DISTANCES = {
    "imagenet": {"DiT-XL-2": 79.36, "ADMG": 123.27, "ADM": 203.45, "RQ-Transformer": 304.05, "BigGAN": 401.22},
    "cifar10": {"iDDPM-DDIM": 212.30, "LOGAN": 881.73, "NVAE": 921.34, "WGAN-GP": 1088.56, "RESFLOW": 1301.38},
    "ffhq": {
        "LDM": 226.72,
        "StyleNAT": 229.42,
        "Unleash-Trans": 393.45,
        "Efficient-vdVAE": 514.16,
        "StyleGAN2-ada": 514.78,
    },
}


def spectrum(shape: Shape, dimension: int = DIMENSION) -> Tensor:
    r"""Return eigenvalues :math:`\lambda_j = \lambda_1 (1 + j / a)^{-p}` with the given trace, norm and Frobenius norm.

    Args:
        shape: the three numbers.
        dimension: number of eigenvalues.

    Raises:
        InputError: if no such spectrum exists.

    Example:
        >>> values = spectrum(REFERENCE_SHAPE)
        >>> round(float(values.sum()), 1), round(float(values.norm()), 1), round(float(values[0]), 1)
        (2112.7, 85.3, 21.0)
    """
    index = torch.arange(dimension, dtype=torch.float64)

    def values(log_scale: float) -> Tensor:
        base = torch.log1p(index * math.exp(-log_scale))

        def excess(power: float) -> float:
            return shape.norm * float((-power * base).exp().sum()) - shape.trace

        power: float = brentq(excess, 1e-6, 200.0)
        return shape.norm * (-power * base).exp()

    def mismatch(log_scale: float) -> float:
        return float(values(log_scale).norm()) - shape.frobenius

    try:
        return values(brentq(mismatch, -20.0, 6.0))
    except ValueError as error:
        raise InputError(f"Expected a shape that a power law can have, but got {shape}; change its numbers.") from error


def paper_scale_arms(dataset: str, *, seed: int = 0, mean_share: float = 0.5) -> tuple[Tensor, list[SimulatedArm]]:
    """Return the variances of the reference (mean zero, diagonal covariance) and the five arms of a dataset.

    Args:
        dataset: ``"imagenet"``, ``"cifar10"`` or ``"ffhq"``.
        seed: draws the directions of the mean shifts and the pairs of axes.
        mean_share: share of each distance that is a shift of the mean.

    Raises:
        InputError: if the dataset is unknown.

    Example:
        >>> variances, arms = paper_scale_arms("imagenet")
        >>> [round(arm.score, 2) for arm in arms]
        [79.36, 123.27, 203.45, 304.05, 401.22]
    """
    if dataset not in DISTANCES:
        raise InputError(f"Expected dataset to be one of {sorted(DISTANCES)}, but got {dataset!r}; choose one.")
    generator = torch.Generator().manual_seed(seed)
    reference = spectrum(REFERENCE_SHAPE)
    arms = []
    for (name, distance), shape in zip(DISTANCES[dataset].items(), ARM_SHAPES, strict=True):
        variances = spectrum(shape)
        pairs = torch.randperm(DIMENSION, generator=generator).reshape(-1, 2)
        direction = torch.randn(DIMENSION, generator=generator, dtype=torch.float64) * reference.sqrt()
        angle = _angle(variances, pairs, reference, (1.0 - mean_share) * distance)
        rest = distance - paired_distance(torch.zeros_like(reference), variances, angle, pairs, reference)
        mean = direction / direction.norm() * math.sqrt(max(0.0, rest))
        arms.append(paired_gaussian_arm(name, mean, variances, angle, pairs, reference))
    return reference, arms


def _angle(variances: Tensor, pairs: Tensor, reference: Tensor, distance: float) -> float:
    still = torch.zeros_like(reference)

    def excess(angle: float) -> float:
        return paired_distance(still, variances, angle, pairs, reference) - distance

    # A quarter turn swaps the two variances of a pair, which is as far as a rotation can go.
    if excess(0.0) >= 0.0:
        return 0.0
    if excess(math.pi / 2) <= 0.0:
        return math.pi / 2
    return float(brentq(excess, 0.0, math.pi / 2))
