"""A draw: what defines it, and how it is carried out in this process, from a seeded call of the sampler to rows."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from tm_bandit._guards import preserved_rng
from tm_bandit.errors import ArmError, NotReadyError, WeightsError, brief
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.pull import Pull

if TYPE_CHECKING:
    from tm_bandit.execution.conditions import Conditions

#: Whether draw k of every arm has the same noise, or each arm has its own.
Pairing = Literal["common", "independent"]

#: ``sampler(num_samples)`` returns a batch. It may take ``generator=``, and must take ``conditions=`` if there are
#: any.
Sampler = Callable[..., Tensor]


def stable_seed(*parts: object) -> int:
    """Return 63 bits that depend on ``parts`` alone: the same on every rank, machine and Python version.

    Args:
        parts: numbers and strings.

    Example:
        >>> stable_seed(0, "ema", 3) == stable_seed(0, "ema", 3) != stable_seed(0, "raw", 3)
        True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def same_noise(one: int, two: int) -> bool:
    """Whether a generator may draw the same with two seeds: on the CPU, torch's takes their low 32 bits only.

    Among 5,000 draws that happens once in 300 runs. A batch that counts twice does no harm.

    Example:
        >>> same_noise(7, 7 + 2**32), same_noise(7, 8)
        (True, False)
    """
    return (one - two) % 2**32 == 0


def chunk_seed(seed: int, chunk: int) -> int:
    """Return the seed of one part of a pull that several calls of the sampler, or several processes, share.

    Args:
        seed: seed of the pull, which is that of its first part.
        chunk: index of the part.
    """
    return stable_seed(seed, chunk) if chunk else seed


@dataclass(frozen=True)
class DrawPlan:
    """Defines draw k of an arm, independently of anything that happens in a run.

    Two arms that get the same noise and conditions make similar errors, most of which cancel in their difference.

    Args:
        seed: the run's seed.
        pairing: ``"common"`` gives draw k of every arm the same noise, ``"independent"`` each arm its own.
        conditions: labels or prompts; ``None`` if there are none.

    Example:
        >>> plan = DrawPlan(0, "common")
        >>> plan.seed_for("ema", 3) == plan.seed_for("raw", 3) != plan.seed_for("raw", 4)
        True
    """

    seed: int
    pairing: Pairing = "common"
    conditions: Conditions | None = None

    def seed_for(self, arm: str, draw: int, chunk: int = 0) -> int:
        """Return the seed of one batch, or of one chunk of it.

        Args:
            arm: the arm.
            draw: index of the draw.
            chunk: index of the chunk within the draw.
        """
        if self.pairing == "common":
            return stable_seed(self.seed, draw, chunk)
        return stable_seed(self.seed, arm, draw, chunk)

    def pull(self, arm: str, draw: int, size: int) -> Pull:
        """Return one draw of an arm as a pull.

        Args:
            arm: the arm.
            draw: index of the draw.
            size: samples to draw.

        Raises:
            InputError: if the conditions cannot be obtained.
        """
        pull = Pull(arm, draw, size, self.seed_for(arm, draw))
        if self.conditions is None:
            return pull
        seed = (self.seed,) if self.pairing == "common" else (self.seed, arm)
        return replace(pull, conditions=self.conditions.take(draw, size, seed))


def takes_generator(sampler: Sampler) -> bool:
    """Whether ``sampler`` has a parameter named ``generator``."""
    return accepts(sampler, "generator")


def accepts(function: Callable[..., Any], name: str, by_kwargs: bool = False) -> bool:
    """Whether a function has a parameter of this name.

    Args:
        function: the function.
        name: the name.
        by_kwargs: whether ``**kwargs`` count.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # no function, or one written in C, which has no signature
        return False
    return name in parameters or (by_kwargs and any(p.kind is p.VAR_KEYWORD for p in parameters.values()))


def carry_out(
    pull: Pull,
    sampler: Sampler,
    metric: OptimisticMetric,
    *,
    samples: Literal["images", "features"] = "images",
    with_generator: bool | None = None,
    seen: Callable[[Tensor], object] | None = None,
) -> Tensor:
    """Return the rows of a pull, for :meth:`tm_bandit.ModelSelector.tell`; the random states are left as they were.

    Args:
        pull: what to draw.
        sampler: the arm's sampler.
        metric: turns samples into rows.
        samples: ``"features"`` if the sampler already returns rows.
        with_generator: whether ``sampler`` takes a generator; ``None`` looks at its signature.
        seen: gets the samples before they are scored.

    Raises:
        ArmError: if the sampler fails, or returns samples that the metric cannot score.
        NotReadyError: if the metric cannot be used yet, which is not the arm's fault.
        WeightsError: if the weights of its feature network cannot be found.
    """
    if with_generator is None:
        with_generator = takes_generator(sampler)
    with preserved_rng(pull.seed):
        return draw_rows(
            sampler,
            pull.size,
            pull.seed,
            metric,
            samples=samples,
            with_generator=with_generator,
            conditions=pull.conditions,
            seen=seen,
        )


def draw_rows(
    sampler: Sampler,
    num_samples: int,
    seed: int,
    metric: OptimisticMetric,
    *,
    samples: Literal["images", "features"] = "images",
    with_generator: bool = True,
    conditions: tuple[Any, ...] | Tensor = (),
    seen: Callable[[Tensor], object] | None = None,
) -> Tensor:
    """Return the rows of a seeded batch; the caller seeds the global random states and restores them.

    Args:
        sampler: draws the batch.
        num_samples: samples to draw.
        seed: seed of the generator.
        metric: turns samples into rows.
        samples: ``"features"`` if the sampler already returns rows.
        with_generator: whether ``sampler`` takes a generator.
        conditions: of the samples; empty if there are none.
        seen: gets the samples before they are scored.

    Raises:
        ArmError: see :func:`carry_out`, also for the other errors.
    """
    batch = draw_seeded(sampler, num_samples, seed, metric.device, with_generator, conditions)
    if seen is not None:
        seen(batch)
    if samples == "features":
        return batch
    if batch.is_floating_point() and batch.element_size() < 4:
        batch = batch.float()  # feature networks are float32, whatever precision the sampler has
    return scored(metric, batch.to(metric.device), *((conditions,) if metric.needs_conditions else ()))


def scored(metric: OptimisticMetric, *given: Any) -> Tensor:
    """Return what a metric makes of samples; what its network or score raises is not taken for the sampler's fault.

    Args:
        metric: turns samples into rows.
        given: the samples, and their conditions if it needs them.

    Raises:
        ArmError: see :func:`carry_out`, also for the other errors.
    """
    try:
        with torch.no_grad():
            return metric.extract(*given)
    except (NotReadyError, WeightsError):
        raise
    except Exception as error:
        raise ArmError(f"{type(metric).__name__} cannot score the samples: {brief(error)}") from error


def draw_seeded(
    sampler: Sampler,
    num_samples: int,
    seed: int,
    device: torch.device,
    with_generator: bool,
    conditions: tuple[Any, ...] | Tensor = (),
) -> Tensor:
    """Return a batch of exactly ``num_samples`` samples; the caller seeds the global random states.

    Args:
        sampler: the arm's sampler.
        num_samples: samples to draw.
        seed: seed of the generator.
        device: device of the generator.
        with_generator: whether ``sampler`` takes one.
        conditions: of the samples, handed over as a list, or as a tensor on ``device``; not at all if there are none.

    Raises:
        ArmError: if the sampler fails or returns anything but that many samples.
    """
    given: dict[str, Any] = {"generator": torch.Generator(device).manual_seed(seed)} if with_generator else {}
    if len(conditions):
        given["conditions"] = conditions.to(device) if isinstance(conditions, Tensor) else list(conditions)
    try:
        with torch.no_grad():
            batch = sampler(num_samples, **given)
    except ArmError:
        raise
    except Exception as error:
        raise ArmError(f"the sampler raised {brief(error)}") from error
    if not isinstance(batch, Tensor):
        raise ArmError(f"Expected the sampler to return a tensor, but got {type(batch).__name__}; return a Tensor.")
    if batch.layout != torch.strided or batch.is_meta:
        kind = "a tensor on the meta device" if batch.is_meta else f"a tensor of layout {batch.layout}"
        raise ArmError(f"Expected the sampler to return a dense tensor with values, but got {kind}; convert it first.")
    if batch.ndim < 2:
        raise ArmError(f"Expected a batch, one sample per entry, but got shape {tuple(batch.shape)}; return (n, ...).")
    if batch.shape[0] != num_samples:
        raise ArmError(f"Expected {num_samples} samples, but got {batch.shape[0]}; return as many as were asked for.")
    return batch
