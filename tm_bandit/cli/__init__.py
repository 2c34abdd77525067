"""The ``tm-bandit`` command: ``stats``, ``select``, ``watch``, ``report``, ``cache`` and ``demo``.

Exit codes: 0 the command did what was asked; 1 the run failed or was interrupted (what is known is printed); 2 the
input cannot be used (one line on standard error says which file or option, and why).
"""

from tm_bandit.cli.main import main

__all__ = ["main"]
