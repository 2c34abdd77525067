"""Entry point: from the arguments to an exit code."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence

from tm_bandit.cli.parser import build_parser
from tm_bandit.errors import BanditError, InputError, WeightsError, one_line, printable

#: Exit codes, the same for every sub-command.
OK, FAILED, BAD_INPUT = 0, 1, 2

#: The module of each sub-command.
_MODULES = {name: f"cli.{name}" for name in ("cache", "select", "stats", "watch")} | {
    "report": "cli.show",
    "demo": "demo",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: the arguments after the command's name; those of the process if left out.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may have letters that a terminal or a pipe cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if any("\0" in word for word in words):
            raise InputError("Expected arguments without NUL characters, but got one; no path has such a character.")
        return _run(build_parser().parse_args(words))
    except KeyboardInterrupt:
        print("tm-bandit: interrupted", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader of our output (head, less) has gone; print nothing more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (BanditError, OSError) as error:  # also a full disk, a lost network drive: the message says which file
        print(f"tm-bandit: error: {printable(one_line(' '.join(str(error).split())))}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, (InputError, WeightsError)) else FAILED


def _run(arguments: argparse.Namespace) -> int:
    """Run a sub-command. It is loaded only now: ``--help`` and typos should not wait for torch."""
    command = importlib.import_module(f"tm_bandit.{_MODULES[arguments.command]}")
    path, form = list(sys.path), warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"tm-bandit: warning: {printable(str(message))}\n"
    try:
        code: int = command.run(arguments)
    finally:
        sys.path[:] = path  # see `import_reference`
        warnings.formatwarning = form
    sys.stdout.flush()
    return code
