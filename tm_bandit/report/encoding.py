"""JSON that any reader accepts: plain numbers only, and back again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tm_bandit._arguments import check_count
from tm_bandit.errors import InputError
from tm_bandit.report.kinds import DIFFERENCES, SCORES

#: Widest indent: nobody needs more spaces.
_WIDEST = 80

#: The columns whose numbers may be missing or infinite.
_SCORES = frozenset((*SCORES, *DIFFERENCES, "share"))


def encode(value: Any, indent: int | None = None) -> str:
    """Return values as JSON: ``nan`` becomes ``null``, infinities become ``"inf"`` and ``"-inf"``.

    Args:
        value: dictionaries, sequences, strings and numbers, those of numpy too.
        indent: as in :func:`json.dumps`, a number.

    Raises:
        InputError: if that is not a number, or a very large one.

    Example:
        >>> encode({"budget": np.int64(100), "upper": [1.5, float("inf"), float("nan")]})
        '{"budget": 100, "upper": [1.5, "inf", null]}'
    """
    if indent is not None and check_count("indent", indent, 0) > _WIDEST:
        raise InputError(f"Expected `indent` to be at most {_WIDEST}, but got more.")
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def escape_markdown(text: str) -> str:
    r"""Return a text that Markdown shows as it is, in a table too.

    Example:
        >>> print(escape_markdown("<b> a|b [x](y) [0.1, 0.2]"))
        \<b> a\|b [x]\(y) [0.1, 0.2]
    """
    return re.sub(r"([\\`*<|]|(?<=\])\()", r"\\\1", text)


def decode_history(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a history, or the row of a table, as they were before :func:`encode`.

    Args:
        columns: what :func:`json.loads` returned.
    """
    return {name: _restored(values) if name in _SCORES else values for name, values in columns.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return math.nan if value is None else float(value)
