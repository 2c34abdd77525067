"""Seeds that depend on nothing but their parts, and the one guard of the global random states."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

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


def chunk_seed(seed: int, chunk: int) -> int:
    """Return the seed of one part of a pull that several calls of the sampler, or several processes, share.

    Args:
        seed: seed of the pull, which is that of its first part.
        chunk: index of the part.
    """
    return stable_seed(seed, chunk) if chunk else seed


def seed_all(seed: int) -> None:
    """Seed the random states of torch, numpy and Python.

    Accelerators are seeded if they are in use. ``torch.manual_seed`` would queue a call for those that are not, with a
    stack trace each time, which costs more than everything else that the engine does in a pull.

    Args:
        seed: the seed.
    """
    torch.default_generator.manual_seed(seed)
    for backend in (torch.cuda, torch.xpu):
        if backend.is_initialized():
            backend.manual_seed_all(seed)
    if _HAS_MPS:
        torch.mps.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def preserved_rng(seed: int | None = None) -> Iterator[None]:
    """Give every global random generator back the state it had, whatever happens inside.

    Lightning's ``isolate_rng`` does the same but not when the block raises, and an exception in a sampler (or Ctrl-C)
    is exactly when the training that goes on must not notice.

    Args:
        seed: what to seed all of them with first; ``None`` leaves them as they are.

    Example:
        >>> _ = torch.manual_seed(1)
        >>> with preserved_rng(seed=7):
        ...     first = torch.rand(1)
        >>> with preserved_rng(seed=7):
        ...     again = torch.rand(1)
        >>> bool(first == again), bool(again == torch.rand(1))
        (True, False)
    """
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    # A device that was never used has no state to lose, and asking for it would start its driver in a forked process.
    in_use = [backend for backend in (torch.cuda, torch.xpu) if backend.is_initialized()]
    device_states = [backend.get_rng_state_all() for backend in in_use]
    mps_state = torch.mps.get_rng_state() if _HAS_MPS else None
    try:
        if seed is not None:
            seed_all(seed)
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        for backend, states in zip(in_use, device_states, strict=True):
            backend.set_rng_state_all(states)
        if mps_state is not None:
            torch.mps.set_rng_state(mps_state)
