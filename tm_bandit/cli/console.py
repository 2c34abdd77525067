"""What the user sees while a command works: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from tm_bandit.errors import InputError, printable


def note(message: str) -> None:
    """Print a note besides the result: on standard error, so that standard output can be piped."""
    print(f"tm-bandit: {printable(message)}", file=sys.stderr, flush=True)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> plural(1, "image"), plural(1200, "image")
        ('1 image', '1,200 images')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def note_left_out(files: Sequence[str], where: str = "") -> None:
    """Say how many files could not be read, if any.

    Args:
        files: the files.
        where: what comes before the sentence.
    """
    if files:
        note(f"{where}left out {plural(len(files), 'unreadable file')}, the first: {files[0]}")


class Progress:
    """Progress towards a known total.

    Args:
        total: the count at which the work is done.
        label: what is being done.
        unit: what is counted.
        quiet: show nothing.
        every: seconds between two lines if there is no terminal; the environment variable
            ``TM_BANDIT_PROGRESS_SECONDS`` overrides it.

    Raises:
        InputError: if that variable is not a number of seconds.
    """

    def __init__(self, total: float, label: str, unit: str, quiet: bool = False, every: float = 10.0) -> None:
        self._total, self._label, self._unit, self._quiet = total, label, unit, quiet
        self._every = _seconds(os.environ.get("TM_BANDIT_PROGRESS_SECONDS", str(every)))
        self._done, self._last = 0.0, time.monotonic()
        self._bar = None
        if not quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=label, unit=f" {unit}", file=sys.stderr, dynamic_ncols=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif not self._quiet and kind is None:
            self._print()

    def advance(self, count: float, detail: str = "") -> None:
        """Advance by ``count``, with a word about where things stand."""
        self._done += count
        if self._bar is not None:
            self._bar.set_postfix_str(detail, refresh=False)
            self._bar.update(count)
        elif not self._quiet and time.monotonic() - self._last >= self._every:
            self._print(detail)

    def _print(self, detail: str = "") -> None:
        self._last = time.monotonic()
        note(f"{self._label}: {self._done:,.0f} of {self._total:,.0f} {self._unit}" + (f", {detail}" if detail else ""))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0.0:  # NaN is not
        raise InputError(f"Expected TM_BANDIT_PROGRESS_SECONDS to be a number of seconds, but got {text!r}; unset it.")
    return seconds
