"""The small languages of the command line: ``NAME=PATH`` and ``package:attribute``."""

from __future__ import annotations

import glob
import importlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tm_bandit._arguments import check_name
from tm_bandit.errors import InputError, brief

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class ArmSpec(NamedTuple):
    """One ``--arm``: its name and where its samples come from."""

    name: str
    place: str


def parse_arm(text: str) -> ArmSpec:
    """Split ``NAME=PATH`` at its first equals sign.

    Raises:
        InputError: if either side is empty, or the name cannot be printed.

    Example:
        >>> parse_arm("ema=runs/ema=0.999")
        ArmSpec(name='ema', place='runs/ema=0.999')
    """
    name, equals, place = (part.strip() for part in text.partition("="))
    if not (name and equals and place):
        raise InputError(f"Expected --arm NAME=PATH, but got {text!r}; name every arm, for example --arm ema=samples.")
    return ArmSpec(check_name("an arm", name), place)


def parse_arms(texts: Sequence[str], patterns: Sequence[str] = ()) -> list[ArmSpec]:
    """Parse every ``--arm``, find what the patterns match, and refuse two arms with one name.

    Args:
        texts: each ``NAME=PATH``.
        patterns: paths, or patterns of paths.

    Raises:
        InputError: if a name occurs twice, a pattern matches nothing, or there is no arm.
    """
    arms = [*(parse_arm(text) for text in texts), *match_patterns(patterns)]
    if not arms:
        raise InputError("Expected models to choose from, but got none; give PATTERN or --arm NAME=PATH.")
    places: dict[str, str] = {}
    for arm in arms:
        if arm.name in places:
            raise InputError(
                f"Expected arms with different names, but got {arm.name!r} for {places[arm.name]} and for {arm.place}; "
                "rename one."
            )
        places[arm.name] = arm.place
    return arms


def parse_costs(texts: Sequence[str]) -> dict[str, float] | None:
    """Parse every ``--cost``; ``None`` if there is none.

    Args:
        texts: each ``NAME=NUMBER``.

    Raises:
        InputError: if one is anything else, or a name occurs twice.

    Example:
        >>> parse_costs(["fast=1", "cfg=4=50"])
        {'fast': 1.0, 'cfg=4': 50.0}
    """
    costs: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            cost = float(number)
        except ValueError:
            cost = float("nan")
        if not name or math.isnan(cost):
            raise InputError(f"Expected --cost NAME=NUMBER, but got {text!r}; give the cost of a sample of an arm.")
        if name in costs:
            raise InputError(f"Expected one --cost per arm, but got several for {name!r}; remove one.")
        costs[name] = cost
    return costs or None


def match_patterns(patterns: Sequence[str]) -> list[ArmSpec]:
    """Return the arms that match patterns of paths, in the order of the numbers in their names.

    A pattern that exists as a path, or names a function, is taken as it is. Duplicates are one arm.

    Args:
        patterns: as in a shell; ``**`` matches any folders.

    Raises:
        InputError: if a pattern matches nothing.
    """
    places: list[str] = []
    for pattern in patterns:
        exact = os.path.exists(pattern) or is_python_reference(pattern)
        found = [pattern] if exact else sorted(glob.glob(pattern, recursive=True), key=_by_number)
        if not found:
            raise InputError(
                f"Expected paths that match {pattern!r}, but got none; check it, or give --arm NAME=PATH for a name of "
                "your own."
            )
        places += (place if is_python_reference(place) else os.path.normpath(place) for place in found)
    places = list(dict.fromkeys(places))
    return [ArmSpec(check_name("an arm", name), place) for name, place in zip(_names(places), places, strict=True)]


def _by_number(text: str) -> list[Any]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def _names(places: Sequence[str]) -> list[str]:
    """Name places by the shortest part that tells them apart.

    Example:
        >>> _names(["runs/a/step=8.ckpt", "runs/a/step=16.ckpt"]), _names(["out/ema/png", "out/raw/png"])
        (['step=8', 'step=16'], ['ema', 'raw'])
    """
    split = [place.replace(":", "/").split("/" if os.sep == "/" else os.sep) for place in places]
    stems = [[*parts[:-1], os.path.splitext(parts[-1])[0] or parts[-1]] for parts in split]
    split = stems if len({*map(tuple, stems)}) == len(stems) else split
    if len(split) == 1:
        return [split[0][-1]]
    while all(len(parts) > 1 for parts in split) and len({parts[-1] for parts in split}) == 1:
        split = [parts[:-1] for parts in split]
    longest = max(map(len, split), default=0)
    for length in range(1, longest + 1):
        names = ["/".join(parts[-length:]) for parts in split]
        if len({*names}) == len(names):
            return names
    return list(places)


def parse_variants(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse every ``--variant NAME=JSON``.

    Args:
        texts: the variants.

    Raises:
        InputError: if one is not a JSON object, or a name occurs twice.

    Example:
        >>> parse_variants(['cfg3={"scale": 3.0}', "plain={}"])
        {'cfg3': {'scale': 3.0}, 'plain': {}}
    """
    variants: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, options = (part.strip() for part in text.partition("="))
        try:
            given = json.loads(options)
        except (ValueError, RecursionError):
            given = None
        if not (name and equals and isinstance(given, dict)):
            raise InputError(
                f"Expected --variant NAME=JSON with an object of keyword arguments, but got {text!r}; write "
                """--variant 'cfg3={"scale": 3.0}'."""
            )
        if name in variants:
            raise InputError(f"Expected variants with different names, but got {name!r} twice; rename one.")
        variants[check_name("a variant", name)] = given
    return variants


def is_python_reference(text: str) -> bool:
    """Tell ``package.module:attribute`` from a path.

    Example:
        >>> is_python_reference("my.samplers:draw"), is_python_reference("C:/samples"), is_python_reference("a.npz")
        (True, False, False)
    """
    return _REFERENCE.fullmatch(text) is not None


def import_reference(text: str) -> Any:
    """Import what ``package.module:attribute`` names; the current folder is searched last.

    The folder stays at the end of the path: what was imported may import more when it is called.

    Raises:
        InputError: if there is no such module or attribute, or if the module cannot be imported.
    """
    if not is_python_reference(text):
        raise InputError(f"Expected package.module:attribute, but got {text!r}.")
    module_name, _, attribute = text.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        value: Any = importlib.import_module(module_name)
    except SystemExit as error:  # a script that does its work without being asked
        raise InputError(
            f"Expected a module that can be imported, but got {module_name} in {text}, which ends the program; let it "
            "run its work below `if __name__ == '__main__':`."
        ) from error
    except Exception as error:  # whatever the user's module raises while it is imported
        raise InputError(
            f"Expected a module that can be imported, but got {module_name} in {text} "
            f"({brief(error)}); check the name, and run where it can be imported from."
        ) from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise InputError(f"Expected {module_name} to define {attribute}, but got nothing of that name; see {text}.")
        value = getattr(value, part)
    return value


def import_callable(text: str, option: str, what: str) -> Any:
    """Import what ``package.module:attribute`` names, if it can be called.

    Args:
        text: what was written.
        option: where, if that is an option.
        what: what it should be.

    Raises:
        InputError: see :func:`import_reference`; or if it cannot be called.
    """
    found = import_reference(text)
    if not callable(found):
        raise InputError(f"Expected {option} {text} to be {what}, but got {type(found).__name__}; name one.")
    return found


def make_object(kind: Callable[[], Any], text: str) -> Any:
    """Return an object of a class that the user named.

    Args:
        kind: the class.
        text: what was written for it.

    Raises:
        InputError: if its constructor raises.
    """
    try:
        return kind()
    except Exception as error:  # whatever the user's constructor raises
        raise InputError(
            f"Expected {text} to work without arguments, but got {brief(error)}; name an object."
        ) from error
