"""The whole story offline in minutes: train, select among checkpoints, check the choice against the truth.

``tm-bandit demo`` (or ``python -m tm_bandit demo``) calls :func:`run`. The parts can be used in your own examples:
:mod:`tm_bandit.demo.digits` has the data and the classifier, :mod:`tm_bandit.demo.flow` the generative model.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from tm_bandit.errors import InputError


def run(arguments: argparse.Namespace) -> int:
    """Run the demo and return the exit code.

    Args:
        arguments: the parsed command line.

    Raises:
        InputError: if a package that only the demo needs is missing, or the folder cannot be used.
    """
    if arguments.out.exists() and not arguments.out.is_dir():
        raise InputError(f"Expected --out to be a folder, but got the file {arguments.out}; choose another name.")
    missing = [name for name in ("sklearn", "matplotlib") if find_spec(name) is None]
    if missing:
        raise InputError(f"Expected the demo's packages, but {' and '.join(missing)} cannot be imported; install them.")
    from tm_bandit._device import one_thread
    from tm_bandit.demo import story

    with one_thread():  # the networks are small: two threads next to a busy core take forty times as long
        scale = story.FAST if arguments.fast else story.FULL
        story.run(arguments.out, seed=arguments.seed, scale=scale, as_json=arguments.json)
    return 0
