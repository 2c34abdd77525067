"""Entry point: from the arguments to an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from tm_bandit._exceptions import BanditError, InputError, WeightsError
from tm_bandit.cli.parser import build_parser

#: Exit codes, the same for every sub-command.
OK, FAILED, BAD_INPUT = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: the arguments after the command's name; those of the process if left out.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        return _run(arguments)
    except (InputError, WeightsError) as error:
        _complain(error)
        return BAD_INPUT
    except BanditError as error:
        _complain(error)
        return FAILED
    except KeyboardInterrupt:
        print("tm-bandit: interrupted", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader of our output (head, less) has gone; say nothing more to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _run(arguments: argparse.Namespace) -> int:
    """Load the sub-command only now: ``--help`` and typing errors should not wait for torch."""
    # Arms and networks named package:attribute are looked for where the user stands, as `python -m` does.
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    command = importlib.import_module(f"tm_bandit.cli.{arguments.command}")
    code: int = command.run(arguments)
    sys.stdout.flush()
    return code


def _complain(error: Exception) -> None:
    """Print one line, whatever the message looks like."""
    print(f"tm-bandit: error: {' '.join(str(error).split())}", file=sys.stderr)
