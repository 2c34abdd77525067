"""Checks of numbers that users hand in; numpy's numbers become Python's, so that results can be saved."""

from __future__ import annotations

import math
import numbers

from tm_bandit.errors import InputError


def whole(name: str, value: object, least: int | None = None) -> int:
    """Return ``value`` as a Python integer.

    Args:
        name: the argument's name, for the message.
        value: any integer that is no bool.
        least: the smallest allowed value.

    Raises:
        InputError: if it is no such integer.

    Example:
        >>> import numpy as np
        >>> whole("budget", np.int64(100), 0)
        100
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or (least is not None and value < least):
        limit = "" if least is None else f" >= {least}"
        raise InputError(f"Expected {name} to be an integer{limit}, but got {value!r}; choose another value.")
    return int(value)


def real(name: str, value: object, least: float | None = None) -> float:
    """Return ``value`` as a finite Python float.

    Args:
        name: the argument's name, for the message.
        value: any finite real number that is no bool.
        least: the smallest allowed value.

    Raises:
        InputError: if it is no such number.

    Example:
        >>> real("epsilon", 1, 0.0)
        1.0
    """
    known = not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)
    if not known or (least is not None and float(value) < least):  # type: ignore[arg-type]
        limit = "" if least is None else f" >= {least:g}"
        raise InputError(f"Expected {name} to be a finite number{limit}, but got {value!r}; choose another value.")
    return float(value)  # type: ignore[arg-type]
