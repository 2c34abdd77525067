"""``tm-bandit watch``: race new checkpoints while training runs."""

from __future__ import annotations

import argparse

from tm_bandit.cli.console import note
from tm_bandit.cli.metric import load_reference, make_metric
from tm_bandit.cli.specs import import_callable
from tm_bandit.selection.watcher import Watcher


def run(arguments: argparse.Namespace) -> int:
    """Watch until Ctrl-C, or until nothing new has appeared for ``--idle`` seconds; then show what is known."""

    def say(text: str) -> None:
        if not arguments.quiet:
            note(" ".join(text.split()))

    module_class = import_callable(arguments.module, "--module", "a class or a function")
    metric = make_metric(arguments, [None], load_reference(arguments)).to(arguments.device)
    options = ("budget", "batch_size", "out", "settle", "max_arms", "seed")
    given = {name: getattr(arguments, name) for name in options}
    watcher = Watcher(arguments.folder, module_class, metric, **given, say=say)
    say(f"watching {watcher.folder}, writing to {watcher.out}; Ctrl-C ends it")
    print(watcher.run(arguments.every, arguments.idle))
    return 0
