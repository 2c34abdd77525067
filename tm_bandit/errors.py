"""The errors that this package raises on purpose, as one small tree: callers can tell a refusal from a bug."""

__all__ = ["ArmError", "BanditError", "InputError", "NotReadyError", "WeightsError"]


class BanditError(Exception):
    """Base class of every error that this package raises on purpose."""


class InputError(BanditError, ValueError):
    """An argument, batch, file or state that cannot be used; the message says what was got and what to do."""


class BrokenStateError(InputError):
    """A saved state that is damaged, or that something else wrote."""


class NotReadyError(BanditError, RuntimeError):
    """A value was asked for before there is enough data for it (no reference, fewer than two samples)."""


class WeightsError(BanditError, RuntimeError):
    """The weights of a feature network could not be found or fetched."""


class ArmError(BanditError, RuntimeError):
    """A sampler failed or returned something unusable; the selector retires the arm with this reason."""


def brief(error: BaseException) -> str:
    r"""Return an error's type and message in one line that is not too long for a table.

    Example:
        >>> brief(RuntimeError("Error(s) in loading state_dict:\n\tMissing key(s): 'weight'."))
        "RuntimeError: Error(s) in loading state_dict: Missing key(s): 'weight'."
    """
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:299] + '…'}"
