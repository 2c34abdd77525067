"""Where exact arithmetic can run: everything is accumulated in float64, which not every accelerator has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

#: Device types on which torch cannot even store a float64 tensor.
_WITHOUT_FLOAT64 = frozenset({"mps"})


def exact_device(device: torch.device | str) -> torch.device:
    """Return the device on which float64 statistics of tensors living on ``device`` are kept.

    Args:
        device: where the samples or features are.

    Returns:
        ``device`` itself, or the CPU for devices without float64 (Apple's MPS).

    Example:
        >>> exact_device("mps"), exact_device("cuda:1")
        (device(type='cpu'), device(type='cuda', index=1))
    """
    device = torch.device(device)
    return torch.device("cpu") if device.type in _WITHOUT_FLOAT64 else device


def as_float64(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in float64, on the CPU if its own device has no float64.

    Args:
        tensor: any tensor of numbers, half precision included.

    Example:
        >>> as_float64(torch.tensor([0.5], dtype=torch.float16))
        tensor([0.5000], dtype=torch.float64)
    """
    # The move must come first: converting on such a device is the very thing that raises.
    return tensor.detach().to(exact_device(tensor.device)).to(torch.float64)


@contextmanager
def one_thread() -> Iterator[None]:
    """Do many small operations in one thread.

    Threads that wait for each other after every few microseconds of work gain nothing, and on a busy machine cost a
    factor of a hundred.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
