"""Calling a user's sampler: seeded, with the global random state left as it was, and its answer checked."""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from tm_bandit.errors import ArmError, brief

#: ``sampler(num_samples)`` or ``sampler(num_samples, generator=generator)``, returning a batch.
Sampler = Callable[..., Tensor]


_HAS_MPS = torch.backends.mps.is_available()


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


def seed_all(seed: int) -> None:
    """Seed the random states of torch, numpy and Python.

    Accelerators are seeded if they are in use. ``torch.manual_seed`` would queue a call for those that are not, with a
    stack trace each time, which costs more than everything else that the engine does in a pull.

    Args:
        seed: the seed.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    if _HAS_MPS:
        torch.mps.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all random states, and put the old ones back whatever happens.

    Args:
        seed: see :func:`seed_all`.
    """
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda_states = torch.cuda.get_rng_state_all() if in_use else []
    mps_state = torch.mps.get_rng_state() if _HAS_MPS else None
    try:
        seed_all(seed)
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)
        if mps_state is not None:
            torch.mps.set_rng_state(mps_state)


def takes_generator(sampler: Sampler) -> bool:
    """Whether ``sampler`` has a parameter named ``generator``."""
    try:
        return "generator" in inspect.signature(sampler).parameters
    except (TypeError, ValueError):
        return False


def draw(sampler: Sampler, num_samples: int, seed: int, device: torch.device, with_generator: bool) -> Tensor:
    """Return a batch of exactly ``num_samples`` samples; the global random states are left as they were.

    Args:
        sampler: the arm's sampler.
        num_samples: samples to draw.
        seed: seed of this batch; the global random states are seeded too, for samplers that take no generator.
        device: device of the generator.
        with_generator: whether ``sampler`` takes one.

    Raises:
        ArmError: see :func:`draw_seeded`.
    """
    with seeded(seed):
        return draw_seeded(sampler, num_samples, seed, device, with_generator)


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
