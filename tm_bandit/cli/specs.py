"""The small languages of the command line: ``NAME=PATH`` and ``package:attribute``."""

from __future__ import annotations

import importlib
import re
from typing import Any, NamedTuple

from tm_bandit.errors import InputError

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class ArmSpec(NamedTuple):
    """One ``--arm``: its name and where its samples come from."""

    name: str
    place: str


def parse_arm(text: str) -> ArmSpec:
    """Split ``NAME=PATH`` at its first equals sign.

    Raises:
        InputError: if either side is empty.

    Example:
        >>> parse_arm("ema=runs/ema=0.999")
        ArmSpec(name='ema', place='runs/ema=0.999')
    """
    name, equals, place = (part.strip() for part in text.partition("="))
    if not (name and equals and place):
        raise InputError(
            f"Expected --arm NAME=PATH, but got --arm {text!r}; name every arm, for example --arm ema=samples."
        )
    return ArmSpec(name, place)


def parse_arms(texts: list[str]) -> list[ArmSpec]:
    """Parse every ``--arm`` and refuse two arms with one name.

    Raises:
        InputError: if a name comes twice.
    """
    arms = [parse_arm(text) for text in texts]
    places: dict[str, str] = {}
    for arm in arms:
        if arm.name in places:
            raise InputError(
                f"Expected arms with different names, but got {arm.name!r} for {places[arm.name]} and for {arm.place}; "
                "rename one."
            )
        places[arm.name] = arm.place
    return arms


def is_python_reference(text: str) -> bool:
    """Tell ``package.module:attribute`` from a path.

    Example:
        >>> is_python_reference("my.samplers:draw"), is_python_reference("C:/samples"), is_python_reference("a.npz")
        (True, False, False)
    """
    return _REFERENCE.fullmatch(text) is not None


def import_reference(text: str) -> Any:
    """Import what ``package.module:attribute`` names.

    Raises:
        InputError: if there is no such module or attribute, or if the module cannot be imported.
    """
    if not is_python_reference(text):
        raise InputError(f"Expected package.module:attribute, but got {text!r}.")
    module_name, _, attribute = text.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises while it is imported
        raise InputError(
            f"Expected a module that can be imported, but got {module_name} in {text} "
            f"({type(error).__name__}: {error}); check the name, and run where it can be imported from."
        ) from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise InputError(
                f"Expected {module_name} to define {attribute}, but got nothing of that name; check {text}."
            )
        value = getattr(value, part)
    return value
