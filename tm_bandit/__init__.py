"""Pick the best generative model with few samples."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tm_bandit.__about__ import __version__

if TYPE_CHECKING:
    from tm_bandit.metrics import OptimisticFID, OptimisticIS, OptimisticKID, OptimisticMean
    from tm_bandit.pull import Pull
    from tm_bandit.reference import ReferenceStatistics
    from tm_bandit.report import SelectionResult
    from tm_bandit.selection import ModelSelector

__all__ = [
    "ModelSelector",
    "OptimisticFID",
    "OptimisticIS",
    "OptimisticKID",
    "OptimisticMean",
    "Pull",
    "ReferenceStatistics",
    "SelectionResult",
    "__version__",
]

#: Where the public names live. They are loaded when first used, because torch and torchmetrics take seconds, and
#: `tm-bandit --help` or a mistyped option should not have to wait for them.
_HOMES = {
    "ModelSelector": "tm_bandit.selection",
    **dict.fromkeys(("OptimisticFID", "OptimisticIS", "OptimisticKID", "OptimisticMean"), "tm_bandit.metrics"),
    "Pull": "tm_bandit.pull",
    "ReferenceStatistics": "tm_bandit.reference",
    "SelectionResult": "tm_bandit.report",
}
_MODULES = (
    *("callbacks", "errors", "extractors", "functional", "metrics", "policies"),
    *("reference", "report", "samplers", "selection", "simulation"),
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = import_module(f"tm_bandit.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
