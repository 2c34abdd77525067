"""Drawing samples must not move the random numbers of the training."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Give every global random generator back the state it had, whatever happens inside.

    Lightning's ``isolate_rng`` does the same but not when the block raises, and an exception in a sampler (or Ctrl-C)
    is exactly when the training that goes on must not notice.

    Example:
        >>> _ = torch.manual_seed(1)
        >>> with preserved_rng():
        ...     first = torch.rand(1)
        >>> bool(first == torch.rand(1))
        True
    """
    states = _get_states()
    try:
        yield
    finally:
        _set_states(states)


def _get_states() -> dict[str, Any]:
    states: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
    # A device that was never used has no state to lose, and asking for it would start its driver in a forked process.
    for name in ("cuda", "xpu"):
        backend = getattr(torch, name, None)
        if backend is not None and backend.is_available() and backend.is_initialized():
            states[name] = backend.get_rng_state_all()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def _set_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["cpu"])
    for name in ("cuda", "xpu"):
        if name in states:
            getattr(torch, name).set_rng_state_all(states[name])
    if "mps" in states:
        torch.mps.set_rng_state(states["mps"])
