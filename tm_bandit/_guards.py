"""Guards around a piece of work: the random states are restored, and Ctrl-C waits until it is done."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np
import torch

_HAS_MPS = torch.backends.mps.is_available()

#: Whether the main thread is in a block that Ctrl-C waits for: nested blocks have nothing to add.
_holding = False


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the block has ended, and deliver it then; a second one is let through at once.

    Only the main thread ever gets the signal; in others, and under handlers that are not Python's, this does nothing.

    Example:
        >>> before = signal.signal(signal.SIGINT, signal.default_int_handler)
        >>> try:
        ...     with uninterrupted():
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("booked")
        ... except KeyboardInterrupt:
        ...     print("interrupted")
        booked
        interrupted
        >>> _ = signal.signal(signal.SIGINT, before)
    """
    global _holding
    if threading.current_thread() is not threading.main_thread() or _holding:
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))
        if len(held) > 1:
            before(number, frame)

    signal.signal(signal.SIGINT, hold)
    _holding = True
    try:
        yield
    finally:
        _holding = False
        # A handler that was set in the block stays.
        if signal.getsignal(signal.SIGINT) is hold:
            signal.signal(signal.SIGINT, before)
        if len(held) == 1:
            before(*held[0])


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
    """Restore the state of every global random generator, whatever happens inside.

    Lightning's ``isolate_rng`` does the same but not when the block raises, and an exception in a sampler (or Ctrl-C)
    is exactly what must not affect the training that continues.

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
    device_states = [(b, b.get_rng_state_all()) for b in (torch.cuda, torch.xpu) if b.is_initialized()]
    mps_state = torch.mps.get_rng_state() if _HAS_MPS else None
    try:
        if seed is not None:
            seed_all(seed)
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        for backend, states in device_states:
            backend.set_rng_state_all(states)
        if mps_state is not None:
            torch.mps.set_rng_state(mps_state)
