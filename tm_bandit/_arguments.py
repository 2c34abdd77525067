"""Checks of arguments: each returns a plain Python value, even for a numpy number, or raises ``InputError``."""

from __future__ import annotations

import errno
import math
import numbers
import os
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tm_bandit.errors import InputError

#: Most characters of a name: as many as file systems allow in a file name.
_LONGEST_NAME = 255


def check_count(name: str, value: Any, least: int | None = None) -> int:
    """Return an integer of at least ``least``, if there is such a limit.

    Args:
        name: name of the argument, for the error.
        value: what the user gave.
        least: the smallest integer that is accepted.

    Raises:
        InputError: if it is anything else; a bool is not an integer.

    Example:
        >>> import numpy as np
        >>> check_count("budget", np.int64(100), 0)
        100
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or (least is not None and value < least):
        limit = "" if least is None else f" of at least {least}"
        raise InputError(f"Expected `{name}` to be an integer{limit}, but got {value!r}.")
    return int(value)


def check_number(name: str, value: Any, *, least: float | None = None, above: float | None = None) -> float:
    """Return a finite float within its limits.

    Args:
        name: name of the argument, for the error.
        value: what the user gave.
        least: the smallest number that is accepted, if there is one.
        above: what the number must be above, if there is such a limit.

    Raises:
        InputError: if it is anything else; a bool is not a number.

    Example:
        >>> check_number("kappa", 2, above=0)
        2.0
    """
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    except OverflowError:  # an integer that no float can hold
        number = math.inf
    if not math.isfinite(number) or (least is not None and number < least) or (above is not None and number <= above):
        limit = f" of at least {least:g}" if least is not None else f" above {above:g}" if above is not None else ""
        raise InputError(f"Expected `{name}` to be a finite number{limit}, but got {value!r}.")
    return number


def check_level(name: str, value: Any) -> float:
    """Return a failure probability.

    Args:
        name: name of the argument, for the error.
        value: what the user gave.

    Raises:
        InputError: unless it lies strictly between 0 and 1.
    """
    known = not isinstance(value, bool) and isinstance(value, numbers.Real)
    if not known or not 0.0 < value < 1.0 or not 0.0 < float(value) < 1.0:  # a fraction may be finer than a float
        raise InputError(f"Expected `{name}` to lie strictly between 0 and 1, but got {value!r}; 0.05 is customary.")
    return float(value)


def check_choice(name: str, value: Any, options: Iterable[str]) -> str:
    """Return one of several names.

    Args:
        name: name of the argument, for the error.
        value: what the user gave.
        options: the names.

    Raises:
        InputError: if it is none of them.
    """
    known = tuple(options)
    if not isinstance(value, str) or value not in known:
        raise InputError(f"Expected `{name}` to be one of {', '.join(known)}, but got {value!r}.")
    return str.__str__(value)


def check_flag(name: str, value: Any) -> bool:
    """Return a bool.

    Args:
        name: name of the argument, for the error.
        value: what the user gave.

    Raises:
        InputError: if it is anything else: "no" would be true.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"Expected `{name}` to be a bool, but got {value!r}.")
    return bool(value)


def check_name(what: str, value: Any) -> str:
    """Return a name that files, tables and pages can show.

    Args:
        what: what has the name, for the error.
        value: what the user gave.

    Raises:
        InputError: if it is empty or too long, or holds control characters or lone surrogates (undecodable bytes of a
            command line become such).
    """
    if not isinstance(value, str) or not value:
        raise InputError(f"Expected the name of {what} to be a non-empty string, but got {value!r}; give it a name.")
    if len(value) > _LONGEST_NAME or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in value):
        raise InputError(
            f"Expected the name of {what} to be at most {_LONGEST_NAME} characters that can be printed, but got "
            f"{value[:40]!r} with {len(value)} characters; rename it."
        )
    return str.__str__(value)  # a string of numpy is one too, but has another repr, and cannot be saved


def check_options(name: str, value: Any) -> dict[str, Any]:
    """Return keyword arguments, or anything else with names, as a dictionary; an empty one if there are none.

    Args:
        name: name of the argument, for the error.
        value: what the user gave; ``None`` stands for none.

    Raises:
        InputError: if it is not a mapping of strings.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InputError(f"Expected `{name}` to be a dictionary with names as keys, but got {value!r}.")
    return dict(value)


def check_path(name: str, value: Any) -> str:
    """Return a path as a string.

    Args:
        name: name of the argument, for the error.
        value: what the user gave.

    Raises:
        InputError: if it is not a path, or one that no file can have.

    Example:
        >>> from pathlib import Path
        >>> check_path("dirpath", Path("runs"))
        'runs'
    """
    try:
        path = os.fspath(value)
        known = isinstance(path, str)
        os.lstat(path)
    except OSError as error:  # there need not be a file, but there must be room for its name
        known = known and error.errno != errno.ENAMETOOLONG
    except (TypeError, ValueError):  # no path, NUL characters, lone surrogates
        known = False
    if not known:
        raise InputError(f"Expected `{name}` to be a path, but got {value!r}; give a string or a pathlib.Path.")
    return str.__str__(path)
