"""What the parts of a saved result must be: whoever shows it need not ask again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: Scores beyond this are nobody's: features end at 1e45, and what a picture computes of its numbers must be finite.
_LARGEST = 10**100

#: The same for numbers of samples and pulls, which pictures take as 64 bits.
_MOST = 10**18

_NUMBER = (int, float)
SCORES = ("estimate", "debiased", "lower", "upper")
#: What says how an arm compares with the best.
DIFFERENCES = ("behind", "behind_lower", "behind_upper", "correlation")

_COUNTS = ("pulls", "n", "samples")

#: The fields themselves.
_FIELDS: dict[str, Any] = {
    "best": (str, type(None)),
    **dict.fromkeys(("status", "metric", "stopped_by"), str),
    "higher_is_better": bool,
    **dict.fromkeys(("arms", "tied"), list),
    **dict.fromkeys(("retired", "history", "settings"), dict),
    **dict.fromkeys(("uniform_cost", "seed"), int),
    "budget": _NUMBER,
}

#: Each row of the table, and what only some rows have.
_ROW: dict[str, Any] = {
    **dict.fromkeys(("arm", "verdict"), str),
    **dict.fromkeys(("pulls", "n"), int),
    **dict.fromkeys((*SCORES, *DIFFERENCES, "share"), _NUMBER),
}
_ROW_EXTRAS: dict[str, Any] = {"cost": _NUMBER, "twin": str, "pictures": list}

#: Each entry of the columns of the history.
_ENTRIES: dict[str, Any] = {
    **dict.fromkeys(("samples", "n"), int),
    **dict.fromkeys(("arm", "status"), str),
    "best": (str, type(None)),
    **dict.fromkeys(SCORES, _NUMBER),
}

#: Those settings that sentences are made of.
_SETTINGS: dict[str, Any] = {"epsilon": _NUMBER, "delta": (*_NUMBER, type(None))}


def check_kinds(fields: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` or ``TypeError`` unless all parts of a result are of their kinds.

    Args:
        fields: the fields of a result by name.
    """
    _check("the result", fields, _FIELDS)
    for row in fields["arms"]:
        _check("an arm", row, _ROW | _present(_ROW_EXTRAS, row))
    _check("the settings", fields["settings"], _present(_SETTINGS, fields["settings"]))
    history = fields["history"]
    _check("the history", history, dict.fromkeys(_ENTRIES, list))
    if len({*map(len, history.values())}) > 1:
        raise ValueError("its history has gaps")
    for name, kind in _ENTRIES.items():
        for value in history[name]:
            _check("the history", {name: value}, {name: kind})
    for arm, reason in fields["retired"].items():
        _check("the arms that were retired", {arm: reason}, {arm: str})


def _present(kinds: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: kind for name, kind in kinds.items() if name in values}


def _check(what: str, values: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    for name, kind in kinds.items():
        if name not in values:
            raise ValueError(f"{what} has no {name}")
        value = values[name]
        if not isinstance(value, kind):
            raise TypeError(f"{name} of {what} is a {type(value).__name__}")
        if isinstance(value, str):
            value.encode()  # half a character fits into no file
        largest = _MOST if name in _COUNTS else _LARGEST
        if isinstance(value, (int, float)) and largest < abs(value) != math.inf:
            raise ValueError(f"{name} of {what} is absurdly large")
