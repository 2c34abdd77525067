"""The arms of the selection benchmark: synthetic ones with exact truth, published numbers, and real features."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tm_bandit import OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit.simulation import (
    Scenario,
    SimulatedArm,
    bank_arm,
    class_bank,
    gaussian_arm,
    paper_scale_arms,
    probability_arm,
)

DIM = 128


def fid_metric(mean: Tensor, covariance: Tensor) -> Callable[[str], OptimisticFID]:
    """Return a function that makes the metric for a bound; all of them share one reference."""
    reference = ReferenceStatistics(mean, covariance, 50_000)
    return lambda bound: OptimisticFID("none", reference=reference, bound=bound)


def is_metric(bound: str) -> OptimisticIS:
    return OptimisticIS("none", bound=bound)


def reference_covariance(dim: int = DIM, decay: float = 0.8, trace: float = 64.0) -> Tensor:
    """A diagonal covariance with a power-law spectrum."""
    values = torch.arange(1, dim + 1, dtype=torch.float64) ** -decay
    return torch.diag(values * (trace / values.sum()))


def mixed_arm(name, distance, seed, *, mean_share=0.5, scale=1.0, tilt=0.0, covariance=None) -> SimulatedArm:
    """A Gaussian arm at a given distance: spectrum first, then a rotation, and the rest is a shift of the mean.

    Args:
        name: its name.
        distance: its Frechet distance to the reference.
        seed: draws the axes of the rotation and the direction of the shift.
        mean_share: share of the distance that is left to the mean if the rotation can make up the rest.
        scale: factor on all variances (above one: more diverse than the real data).
        tilt: exponent that makes the spectrum steeper, the trace being kept.
        covariance: the reference's covariance, diagonal.
    """
    covariance = reference_covariance() if covariance is None else covariance
    dim = covariance.shape[0]
    generator = torch.Generator().manual_seed(seed)
    zero = torch.zeros(dim, dtype=torch.float64)
    values = covariance.diagonal()
    steep = values * torch.arange(1, dim + 1, dtype=torch.float64) ** -tilt
    spectrum = torch.diag(scale * steep * values.sum() / steep.sum())
    noise = torch.randn(dim, dim, generator=generator, dtype=torch.float64) / dim**0.5
    direction = torch.randn(dim, generator=generator, dtype=torch.float64) * values.sqrt()
    low, high = 0.0, 3.0
    for _ in range(24):
        angle = 0.5 * (low + high)
        turned = _turned(spectrum, noise, angle)
        far = gaussian_arm(name, zero, turned, zero, covariance).score
        low, high = (angle, high) if far < (1.0 - mean_share) * distance else (low, angle)
    turned = _turned(spectrum, noise, low)
    rest = distance - gaussian_arm(name, zero, turned, zero, covariance).score
    mean = direction / direction.norm() * max(0.0, rest) ** 0.5
    return gaussian_arm(name, mean, turned, zero, covariance)


def _turned(spectrum: Tensor, noise: Tensor, angle: float) -> Tensor:
    rotation = torch.linalg.matrix_exp(angle * (noise - noise.T))
    return rotation @ spectrum @ rotation.T


def _gaussian_scenario(name, arms, covariance=None, joins=None) -> Scenario:
    covariance = reference_covariance() if covariance is None else covariance
    metric = fid_metric(torch.zeros(covariance.shape[0], dtype=torch.float64), covariance)
    return Scenario(name, arms, metric, joins or {})


def demo() -> Scenario:
    """The authors' demo as their script meant it: its three Gaussians in 128 dimensions, drawn with its seed."""
    draw = np.random.RandomState(1234).randn

    def covariance():
        return torch.from_numpy(np.cov(draw(10, DIM), rowvar=False) + np.eye(DIM))

    ref_mean, ref_covariance = torch.from_numpy(draw(DIM)), covariance()
    means = torch.from_numpy(draw(3, DIM))
    arms = [gaussian_arm(f"model {i}", means[i], covariance(), ref_mean, ref_covariance) for i in range(3)]
    return Scenario("authors' demo", arms, fid_metric(ref_mean, ref_covariance))


def close() -> Scenario:
    """Five arms with distances 8 to 15."""
    distances = (8.0, 9.5, 11.0, 13.0, 15.0)
    return _gaussian_scenario("close", [mixed_arm(f"FD {d:g}", d, i) for i, d in enumerate(distances)])


def diverse() -> Scenario:
    """The best arm is less diverse than the real data; its rivals are more diverse, and worse."""
    arms = [mixed_arm("plain", 6.0, 0, scale=0.8, mean_share=0.3)]
    for i, (distance, scale) in enumerate(((10.0, 1.2), (11.0, 1.4), (13.0, 1.6), (15.0, 1.8))):
        arms.append(mixed_arm(f"diverse {scale:g}", distance, i + 1, scale=scale))
    return _gaussian_scenario("diverse but bad", arms)


def mirror() -> Scenario:
    """The best arm is more diverse than the real data; its rivals are less diverse, and worse."""
    arms = [mixed_arm("diverse", 8.0, 0, scale=1.2, mean_share=0.3)]
    arms += [mixed_arm(f"FD {d:g}", d, i, scale=0.8) for i, d in enumerate((9.5, 11.0, 13.0, 15.0), 1)]
    return _gaussian_scenario("diverse and good", arms)


def graded() -> Scenario:
    """Twenty arms that differ in their variance alone: truncation 0.01 to 0.1, as in the paper."""
    covariance = reference_covariance()
    zero = torch.zeros(DIM, dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    direction = torch.randn(DIM, generator=generator, dtype=torch.float64)
    mean = direction / direction.norm() * 20.0**0.5
    arms = []
    for i in range(20):
        truncation = 0.01 + 0.09 * i / 19
        arms.append(gaussian_arm(f"truncation {truncation:.3f}", mean, truncation**2 * covariance, zero, covariance))
    return _gaussian_scenario("20 graded", arms)


def paper_scale(dataset: str) -> Scenario:
    """Five Gaussians of the size of the paper's DINOv2 experiments."""
    variances, arms = paper_scale_arms(dataset)
    return Scenario(f"DINOv2-sized {dataset}", arms, fid_metric(torch.zeros_like(variances), torch.diag(variances)))


def newcomers() -> Scenario:
    """Two arms at the start and a better one every 200 pulls."""
    arms = [mixed_arm(f"FD {d:g}", d, i) for i, d in enumerate((20.0, 18.0, 16.0, 14.0, 12.0, 10.0))]
    return _gaussian_scenario("new arm every 200", arms, joins={arm.name: 200 * i for i, arm in enumerate(arms[2:], 1)})


def blind_spot() -> Scenario:
    """The best arm is off by its mean, its rivals only by a rotation of the covariance."""
    arms = [mixed_arm("shifted", 10.0, 0, mean_share=1.0)]
    arms += [mixed_arm(f"rotated {d:g}", d, i, mean_share=0.0) for i, d in ((1, 13.0), (2, 16.0))]
    return _gaussian_scenario("blind spot", arms)


def blind_spot_steep() -> Scenario:
    """The blind spot with a rival whose spectrum is more concentrated as well."""
    arms = [mixed_arm("shifted", 14.0, 0, mean_share=1.0), mixed_arm("rotated", 16.0, 1, mean_share=0.0, tilt=0.25)]
    return _gaussian_scenario("blind spot 2", arms)


def class_dropping() -> Scenario:
    """Inception Score of classifiers' answers of which some classes are missing."""
    generator = torch.Generator().manual_seed(7)
    arms = [
        probability_arm(f"{k} classes", class_bank(range(k), 100, 9.0, 4000, generator)) for k in (100, 90, 80, 70, 60)
    ]
    return Scenario("IS class dropping", arms, is_metric, higher_is_better=True)


def peakedness(title: str = "IS peakedness", sharpness: tuple[float, ...] = (9.0, 8.0, 7.0, 6.5, 6.0)) -> Scenario:
    """Inception Score of all classes, with classifiers' answers that are more or less sure."""
    generator = torch.Generator().manual_seed(8)
    arms = [probability_arm(f"sharpness {s:g}", class_bank(range(100), 100, s, 4000, generator)) for s in sharpness]
    return Scenario(title, arms, is_metric, higher_is_better=True)


def data_folder() -> Path | None:
    """Where the optional real features are: ``TM_BANDIT_DATA``, or a folder ``shared/data`` beside the repository."""
    here = Path(__file__).resolve().parents[1]
    for place in (os.environ.get("TM_BANDIT_DATA"), here.parent / "shared" / "data", here / "data"):
        if place and (Path(place) / "cifar10_efficientnet_reference.npz").is_file():
            return Path(place)
    return None


def real_features() -> Scenario | None:
    """CIFAR-10 images with graded corruption, EfficientNet-Lite0 features (1,280 dimensions)."""
    folder = data_folder()
    if folder is None:
        return None
    reference = np.load(folder / "cifar10_efficientnet_reference.npz")
    mean, covariance = torch.from_numpy(reference["mu"]).double(), torch.from_numpy(reference["sigma"]).double()
    with np.load(folder / "cifar10_efficientnet_arms.npz") as bank:
        arms = [
            bank_arm(key.removeprefix("features/"), torch.from_numpy(bank[key]).float(), mean, covariance)
            for key in bank.files
            if key.startswith("features/")
        ]
    return Scenario("real features", arms, fid_metric(mean, covariance))


def real_probabilities() -> Scenario | None:
    """The same images as class probabilities (1,000 classes)."""
    folder = data_folder()
    if folder is None:
        return None
    arms = []
    with np.load(folder / "cifar10_efficientnet_probs.npz") as bank:
        for key in bank.files:
            if key.startswith("probs/"):
                rows = torch.from_numpy(bank[key]).double()
                arms.append(probability_arm(key.removeprefix("probs/"), rows / rows.sum(1, keepdim=True)))
    return Scenario("IS real", arms, is_metric, higher_is_better=True)


#: All scenarios by name; one that needs absent data makes ``None``.
SCENARIOS: dict[str, Callable[[], Scenario | None]] = {
    "demo": demo,
    "close": close,
    "diverse": diverse,
    "mirror": mirror,
    "graded": graded,
    "imagenet": lambda: paper_scale("imagenet"),
    "cifar10": lambda: paper_scale("cifar10"),
    "ffhq": lambda: paper_scale("ffhq"),
    "newcomers": newcomers,
    "real": real_features,
    "blind": blind_spot,
    "blind2": blind_spot_steep,
    "is-dropping": class_dropping,
    "is-peaked": peakedness,
    "is-peaked-close": lambda: peakedness("IS peakedness, close", (9.0, 8.8, 8.5, 8.0, 7.0)),
    "is-real": real_probabilities,
}


@cache
def scenario(name: str) -> Scenario | None:
    """Make a scenario, once per process."""
    return SCENARIOS[name]()
