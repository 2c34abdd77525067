"""Named combinations of keyword arguments."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tm_bandit.errors import InputError

#: What a name may not contain: it is logged, and becomes part of file names.
_UNUSABLE = re.compile(r"[^A-Za-z0-9_.\- ]+")


def grid(**options: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return every combination of options, under a name that says what differs.

    They are keyword arguments of a sampler: ``BanditCheckpoint(variants=grid(...))``, or arms of a selector with
    :meth:`PipelineSampler.arms`.

    Args:
        options: the values of each option; one with a single value is in every combination and in no name.

    Raises:
        InputError: if an option has no values, or two combinations would have the same name.

    Example:
        >>> grid(guidance_scale=[1.0, 7.5], num_inference_steps=[10], eta=[0.0])
        {'guidance_scale 1': {'guidance_scale': 1.0, 'num_inference_steps': 10, 'eta': 0.0},
         'guidance_scale 7.5': {'guidance_scale': 7.5, 'num_inference_steps': 10, 'eta': 0.0}}
    """
    for name, values in options.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(f"Expected `{name}` to be a list of values, but got {values!r}; write {name}=[...].")
    named: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*options.values()):
        chosen = dict(zip(options, values, strict=True))
        parts = [f"{name} {_text(value)}" for name, value in chosen.items() if len(options[name]) > 1]
        name = " ".join(parts) or "default"
        if name in named:
            raise InputError(
                f"Expected values that differ in their names, but got two combinations named {name!r}; name them "
                "yourself: {name: {argument: value}}."
            )
        named[name] = chosen
    return named


def _text(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return f"{value:g}"
    kind = value if isinstance(value, type) else type(value)
    text = str(value) if isinstance(value, (str, int, bool)) or value is None else kind.__name__
    return _UNUSABLE.sub("-", text) or "empty"
