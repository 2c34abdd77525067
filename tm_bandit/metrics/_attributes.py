"""Attributes that a metric's values depend on: what is set is checked, and what was computed before is forgotten.

Neither kind has a ``__get__``: reading finds the value in the instance, at no cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

T = TypeVar("T")


class Setting(Generic[T]):
    """A setting: checked whenever it is set, and effective at once.

    Args:
        check: takes name and value, returns the value as it is kept or raises ``InputError``.
    """

    def __init__(self, check: Callable[[str, Any], T]) -> None:
        self.check = check

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, metric: Any, value: Any) -> None:
        checked = self.check(self.name, value)
        values = vars(metric)
        if self.name in values and values[self.name] != checked:
            metric._before_change(self.name, checked)
        values[self.name] = checked
        values["_computed"] = None

    if TYPE_CHECKING:

        def __get__(self, metric: Any, owner: type) -> T: ...


class _State:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, metric: Any, value: Any) -> None:
        vars(metric).update({self.name: value, "_row_log": None})


def state() -> Any:
    """Declare a state: reassigning it, as torchmetrics does to reset, load, sync or move it, rewrites history."""
    return _State()


def optional(check: Callable[[str, Any], T]) -> Callable[[str, Any], T | None]:
    """Return a check that lets ``None`` pass.

    Args:
        check: the check of everything else.
    """
    return lambda name, value: None if value is None else check(name, value)
