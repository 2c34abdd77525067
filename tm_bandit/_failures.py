"""What becomes of an arm's error: a warning with its traceback in the log, even if it happened in another process."""

from __future__ import annotations

import logging
import traceback

from tm_bandit.errors import ArmError, brief

_LOG = logging.getLogger("tm_bandit")

#: The attribute in which an error carries its traceback from one process to another: pickling loses the real one.
_ORIGIN = "origin"


def reason_of(error: Exception) -> str:
    """Return in one line why an arm failed.

    Args:
        error: what was raised.

    Example:
        >>> reason_of(ArmError("the sampler raised ValueError: no")), reason_of(ValueError("no"))
        ('the sampler raised ValueError: no', 'ValueError: no')
    """
    return str(error) if isinstance(error, ArmError) else brief(error)


def failure_of(arm: str, error: Exception, on_error: str) -> str:
    """Return why an arm is retired, and write it to the log; or raise.

    Args:
        arm: name of the arm that failed.
        error: what was raised.
        on_error: ``"retire"``, or ``"raise"`` to end the run.

    Raises:
        ArmError: from what the arm raised, if requested.
    """
    reason = reason_of(error)
    if on_error == "raise":
        raise ArmError(f"The arm {arm!r} failed: {reason}") from (error.__cause__ or error)
    warn_of_failure(f"The arm {arm!r} is retired: {reason}", error)
    return reason


def trace_of(error: BaseException) -> str:
    """Return the traceback of what an arm raised; empty if the arm raised nothing and only its answer was refused.

    Args:
        error: what was raised, here or in another process.
    """
    kept: str = getattr(error, _ORIGIN, "")
    cause = error.__cause__ if isinstance(error, ArmError) else error
    if kept or cause is None:
        return kept
    return "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))


def keep_trace(error: BaseException) -> None:
    """Let an error carry its traceback as a string before it is sent to another process.

    Args:
        error: what was raised.
    """
    setattr(error, _ORIGIN, trace_of(error))


def warn_of_failure(what: str, error: BaseException) -> None:
    """Write a warning with the traceback of an error to the log ``tm_bandit``; Python prints it unless told otherwise.

    Args:
        what: what happened, as a sentence without its full stop.
        error: what was raised.
    """
    trace = trace_of(error)
    _LOG.warning("%s.%s", what.removesuffix("."), f"\n{trace.rstrip()}" if trace else "")
