"""Ctrl-C at a bad moment: what must be done wholly or not at all is done first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))
        if len(held) > 1:
            before(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        # Somebody's own handler, set in the block, stays.
        if signal.getsignal(signal.SIGINT) is hold:
            signal.signal(signal.SIGINT, before)
        if len(held) == 1:
            before(*held[0])
