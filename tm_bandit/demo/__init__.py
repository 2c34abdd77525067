"""The whole story offline in minutes: train, select among checkpoints, check the choice against the truth.

``tm-bandit demo`` (or ``python -m tm_bandit demo``) runs :func:`main`. The parts can be used in examples of one's own:
:mod:`tm_bandit.demo.digits` has the data and the classifier, :mod:`tm_bandit.demo.flow` the generative model.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run the demo with command-line arguments; returns the exit code.

    Args:
        args: arguments as on the command line (``--out``, ``--seed``, ``--fast``).
    """
    from tm_bandit.demo.story import main as tell

    return tell(args)
