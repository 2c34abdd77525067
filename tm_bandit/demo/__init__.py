"""The whole story offline in minutes: train, select among checkpoints, check the choice against the truth.

``tm-bandit demo`` (or ``python -m tm_bandit demo``) runs :func:`main`. The parts can be used in your own examples:
:mod:`tm_bandit.demo.digits` has the data and the classifier, :mod:`tm_bandit.demo.flow` the generative model.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tm_bandit.cli.parser import OneLineParser
from tm_bandit.errors import InputError

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run the demo with command-line arguments; returns the exit code.

    Args:
        args: arguments as on the command line.

    Raises:
        InputError: if a package that only the demo needs is missing, or the folder cannot be used.
    """
    parser = OneLineParser(prog="tm-bandit demo", description="The whole story offline, in minutes.")
    parser.add_argument("--out", type=Path, default=Path("tm_bandit_demo"), help="folder (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON; the story goes to stderr")
    parser.add_argument("--fast", action="store_true", help="seconds, not minutes: only a smoke test")
    options = parser.parse_args(args)
    if options.seed < 0:
        raise InputError(f"Expected a seed of at least 0, but got {options.seed}; choose another one.")
    if options.out.exists() and not options.out.is_dir():
        raise InputError(f"Expected --out to be a folder, but got the file {options.out}; choose another name.")
    missing = [name for name in ("sklearn", "matplotlib") if find_spec(name) is None]
    if missing:
        raise InputError(f"Expected the demo's packages, but {' and '.join(missing)} cannot be imported; install them.")
    from tm_bandit._device import one_thread
    from tm_bandit.demo.story import FAST, FULL, run  # only now: --help need not wait for torch

    with one_thread():  # the networks are small: two threads next to a busy core take forty times as long
        run(options.out, seed=options.seed, scale=FAST if options.fast else FULL, as_json=options.json)
    return 0
