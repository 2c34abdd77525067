"""Ctrl-C at a bad moment: what must be done wholly or not at all is done first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the block has ended, and deliver it then.

    Only the main thread ever gets the signal; in others, and under handlers that are not Python's, this does nothing.

    Example:
        >>> try:
        ...     with uninterrupted():
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("booked")
        ... except KeyboardInterrupt:
        ...     print("interrupted")
        booked
        interrupted
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held[0])
