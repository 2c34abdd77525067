"""The errors that this package raises on purpose, as one small tree: callers can tell a refusal from a bug."""

import re
import sys
import warnings
from pickle import UnpicklingError
from types import FrameType

__all__ = ["ArmError", "BanditError", "InputError", "InputTypeError", "NotReadyError", "WeightsError"]


#: Longest message, in characters: it may quote a text of any length, but the advice comes last.
_LONGEST = 1000


class BanditError(Exception):
    """Base class of every error that this package raises on purpose: one readable line.

    Args:
        args: the message.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(one_line(part) if isinstance(part, str) else part for part in args))


def one_line(text: str) -> str:
    r"""Return a text as one readable line; a long one loses its middle.

    Example:
        >>> one_line("first\n  second")
        'first second'
    """
    line = re.sub(r"\s*\n\s*", " ", text)
    half = _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]} … {line[-half:]}"


class InputError(BanditError, ValueError):
    """An argument, batch, file or state that cannot be used; the message says what was given and what to do."""


class InputTypeError(InputError, TypeError):
    """An argument of the wrong kind altogether."""


class BrokenStateError(InputError):
    """A saved state that is damaged, or was written by something else."""


class NotReadyError(BanditError, RuntimeError):
    """A value was asked for before there is enough data for it (no reference, fewer than two samples)."""


class WeightsError(BanditError, RuntimeError):
    """The weights of a feature network could not be found or fetched."""


class ArmError(BanditError, RuntimeError):
    """A sampler failed or returned something unusable; the selector retires the arm with this reason."""


def brief(error: BaseException) -> str:
    r"""Return an error's type and message in one line short enough for a table.

    Example:
        >>> brief(RuntimeError("Error(s) in loading state_dict:\n\tMissing key(s): 'weight'."))
        "RuntimeError: Error(s) in loading state_dict: Missing key(s): 'weight'."
    """
    text = printable(" ".join(str(error).split()))
    if isinstance(error, UnpicklingError):  # torch goes on to say how to run what is in the file
        text = text.partition(". ")[0]
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:299] + '…'}"


def printable(text: str) -> str:
    r"""Return a text that any file takes and no terminal obeys: control characters are shown by their codes.

    Lines and tabs stay. Undecodable bytes of a path or a command line become codes, too.

    Example:
        >>> printable("runs/\udcff.npy"), printable("\x1b[31mred")
        ('runs/\\udcff.npy', '\\x1b[31mred')
    """
    plain = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", text)
    return plain.encode("utf-8", "backslashreplace").decode("utf-8")


def warn(message: str) -> None:
    """Warn at the line outside this package that led here: the user's own, however deep inside the cause was found.

    Args:
        message: what is wrong, and what to do.
    """
    frame: FrameType | None = sys._getframe(1)
    level = outermost = 2
    while frame is not None:
        level += 1
        if frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
            outermost = level
        frame = frame.f_back
    warnings.warn(message, stacklevel=outermost)
