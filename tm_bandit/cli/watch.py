"""``tm-bandit watch``: race new checkpoints while training runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tm_bandit.cli.console import note
from tm_bandit.cli.metric import load_reference, make_metric
from tm_bandit.cli.specs import import_reference
from tm_bandit.errors import InputError
from tm_bandit.selection.watcher import Watcher


def run(arguments: argparse.Namespace) -> int:
    """Watch until Ctrl-C, or until nothing new has appeared for ``--idle`` seconds; then show what is known."""
    module_class = import_reference(arguments.module)
    if not callable(module_class):
        raise InputError(
            f"Expected --module {arguments.module} to be a class or a function, but got {type(module_class).__name__}."
        )
    metric = make_metric(arguments, [None], load_reference(arguments)).to(arguments.device)
    watcher = Watcher(
        arguments.folder,
        module_class,
        metric,
        budget=arguments.budget,
        batch_size=arguments.batch_size,
        out=arguments.out,
        settle=arguments.settle,
        max_arms=arguments.max_arms,
        seed=arguments.seed,
        say=_speaker(arguments.quiet),
    )
    if not arguments.quiet:
        note(f"watching {watcher.folder}, writing to {watcher.out}; Ctrl-C ends it")
    print(watcher.run(arguments.every, arguments.idle))
    return 0


def _speaker(quiet: bool) -> Callable[[str], None]:
    return (lambda text: None) if quiet else (lambda text: note(" ".join(text.split())))
