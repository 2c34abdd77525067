"""``python -m tm_bandit`` is the ``tm-bandit`` command."""

import sys

from tm_bandit.cli import main

if __name__ == "__main__":
    sys.exit(main())
