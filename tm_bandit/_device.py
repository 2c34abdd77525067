"""Where and on what exact arithmetic can run: on dense tensors, in float64, which not every accelerator has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tm_bandit.errors import InputError

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
    # The move must come first: converting on such a device is exactly what raises.
    return tensor.detach().to(exact_device(tensor.device)).to(torch.float64)


def form_of(value: Any) -> str:
    """Return what a value looks like, for messages: the shape of a tensor, or the type of anything else.

    Example:
        >>> form_of(torch.zeros(2, 3)), form_of("two")
        ('shape (2, 3)', 'a str')
    """
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def check_dense(value: Any) -> None:
    """Raise unless ``value``, if it is a tensor, is a plain block of numbers.

    Args:
        value: what the user gave; anything but a tensor passes.

    Raises:
        InputError: for sparse, nested, quantized and meta tensors, on which hardly any operation works.

    Example:
        >>> check_dense(torch.zeros(2))
    """
    if not isinstance(value, Tensor):
        return
    plain = value.layout == torch.strided
    if not plain or value.is_meta or value.is_nested or value.is_quantized:
        kinds = {"nested": value.is_nested, "meta": value.is_meta, "quantized": value.is_quantized}
        kind = next((name for name, found in kinds.items() if found), value.layout)
        raise InputError(
            f"Expected a dense tensor with values, but got a tensor that is {kind}; convert it with `.to_dense()`, "
            "`.dequantize()` or padding first."
        )


def check_device(device: Any) -> torch.device:
    """Return a device on which a tensor can be made.

    Args:
        device: its name, or the device.

    Raises:
        InputError: if this machine has no such device.

    Example:
        >>> check_device("cpu")
        device(type='cpu')
    """
    try:
        if not isinstance(device, (str, torch.device)):
            raise TypeError(f"a {type(device).__name__}")
        if torch.empty(1, device=device).is_meta:
            raise TypeError("it holds no values")
        return torch.device(device)
    except Exception as error:  # torch raises RuntimeError, AssertionError or NotImplementedError, by device
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"Expected a device of this machine, but got {device!r} ({reason}); try 'cpu'.") from error


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
