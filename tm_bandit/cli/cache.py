"""``tm-bandit cache``: where the features of image files are kept, and how to delete them."""

from __future__ import annotations

import argparse

from tm_bandit.data.feature_cache import clear, contents, default_folder
from tm_bandit.errors import printable


def run(arguments: argparse.Namespace) -> int:
    """Show what is kept, after deleting it if asked to."""
    folder = arguments.cache or default_folder()
    if arguments.clear:
        clear(folder)
    rows, size = contents(folder)
    print(printable(f"folder: {folder}\nrows: {rows}\nbytes: {size}"))
    return 0
