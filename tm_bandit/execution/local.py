"""Carrying out a pull in this process: a seeded call of the sampler, its answer checked, samples turned into rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from tm_bandit.errors import ArmError, NotReadyError, WeightsError, brief
from tm_bandit.execution.rng import preserved_rng
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.pull import Pull

#: ``sampler(num_samples)`` or ``sampler(num_samples, generator=generator)``, returning a batch.
Sampler = Callable[..., Tensor]


def takes_generator(sampler: Sampler) -> bool:
    """Whether ``sampler`` has a parameter named ``generator``."""
    try:
        return "generator" in inspect.signature(sampler).parameters
    except (TypeError, ValueError):
        return False


def carry_out(
    pull: Pull,
    sampler: Sampler,
    metric: OptimisticMetric,
    *,
    samples: Literal["images", "features"] = "images",
    with_generator: bool | None = None,
) -> Tensor:
    """Return the rows of a pull, for :meth:`tm_bandit.ModelSelector.tell`; the random states are left as they were.

    Args:
        pull: what to draw.
        sampler: the arm's sampler.
        metric: turns samples into rows.
        samples: ``"features"`` if the sampler returns rows already.
        with_generator: whether ``sampler`` takes a generator; ``None`` looks at its signature.

    Raises:
        ArmError: if the sampler fails, or returns what the metric's feature network cannot take.
        NotReadyError: if the metric cannot be used yet, which is no arm's fault.
        WeightsError: if the weights of its feature network cannot be found.
    """
    if with_generator is None:
        with_generator = takes_generator(sampler)
    with preserved_rng(pull.seed):
        return draw_rows(sampler, pull.size, pull.seed, metric, samples=samples, with_generator=with_generator)


def draw_rows(
    sampler: Sampler,
    num_samples: int,
    seed: int,
    metric: OptimisticMetric,
    *,
    samples: Literal["images", "features"] = "images",
    with_generator: bool = True,
) -> Tensor:
    """Return the rows of a seeded batch; the caller seeds the global random states and puts them back.

    Args:
        sampler: draws the batch.
        num_samples: samples to draw.
        seed: seed of the generator.
        metric: turns samples into rows.
        samples: ``"features"`` if the sampler returns rows already.
        with_generator: whether ``sampler`` takes a generator.

    Raises:
        ArmError: see :func:`carry_out`, also for the other errors.
    """
    batch = draw_seeded(sampler, num_samples, seed, metric.device, with_generator)
    if samples == "features":
        return batch
    if batch.is_floating_point() and batch.element_size() < 4:
        batch = batch.float()  # feature networks are float32, whatever precision the sampler has
    try:
        with torch.no_grad():
            return metric.extract(batch.to(metric.device))
    except (NotReadyError, WeightsError):
        raise
    except Exception as error:
        raise ArmError(f"the feature network cannot take the samples: {brief(error)}") from error


def draw_seeded(sampler: Sampler, num_samples: int, seed: int, device: torch.device, with_generator: bool) -> Tensor:
    """Return a batch of exactly ``num_samples`` samples; the caller seeds the global random states.

    Args:
        sampler: the arm's sampler.
        num_samples: samples to draw.
        seed: seed of the generator.
        device: device of the generator.
        with_generator: whether ``sampler`` takes one.

    Raises:
        ArmError: if the sampler fails or returns anything else than that many samples.
    """
    try:
        with torch.no_grad():
            if with_generator:
                batch = sampler(num_samples, generator=torch.Generator(device).manual_seed(seed))
            else:
                batch = sampler(num_samples)
    except Exception as error:
        raise ArmError(f"the sampler raised {brief(error)}") from error
    if not isinstance(batch, Tensor):
        raise ArmError(
            f"Expected the sampler to return a tensor, but got {type(batch).__name__}; return a torch.Tensor."
        )
    if batch.layout != torch.strided or batch.is_meta:
        kind = "a tensor on the meta device" if batch.is_meta else f"a tensor of layout {batch.layout}"
        raise ArmError(f"Expected the sampler to return a dense tensor with values, but got {kind}; convert it first.")
    if batch.ndim < 2:
        raise ArmError(
            f"Expected the sampler to return a batch of samples, but got a tensor of shape {tuple(batch.shape)}; "
            "return one sample per entry of the first dimension."
        )
    if batch.shape[0] != num_samples:
        raise ArmError(
            f"Expected {num_samples} samples, but got {batch.shape[0]}; return exactly as many as were asked for."
        )
    return batch
