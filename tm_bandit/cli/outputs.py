"""Writing a result: checked before the run, whole or not at all."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tm_bandit._exceptions import InputError
from tm_bandit._files import atomic_write, check_writable

if TYPE_CHECKING:
    from tm_bandit.selection.result import SelectionResult

#: File name endings that the plotting library can write.
PLOT_SUFFIXES = (".png", ".svg", ".pdf", ".jpg", ".webp")


def check_outputs(*, plot: Path | None = None, html: Path | None = None, json: str | None = None) -> None:
    """Refuse outputs that could not be written, before any time is spent.

    Args:
        plot: where the picture shall go.
        html: where the page shall go.
        json: where the result shall go; ``"-"`` is standard output.

    Raises:
        InputError: if a place is not writable, two outputs share it, or a picture cannot be made.
    """
    files = [path for path in (plot, html, None if json in (None, "-") else Path(str(json))) if path is not None]
    for path in files:
        check_writable(path)
    if len({path.absolute() for path in files}) < len(files):
        raise InputError(f"Expected different files for --json, --plot and --html, but got {files[0]} more than once.")
    if plot is None:
        return
    if plot.suffix.lower() not in PLOT_SUFFIXES:
        raise InputError(f"Expected --plot to end in {', '.join(PLOT_SUFFIXES)}, but got {plot}; change its ending.")
    if find_spec("matplotlib") is None:
        raise InputError(
            "Expected matplotlib for --plot, but it is not installed; run `pip install 'tm-bandit[plot]'`."
        )


def write_outputs(
    result: SelectionResult, *, plot: Path | None = None, html: Path | None = None, json: str | None = None
) -> None:
    """Write the asked-for files, and print the result: as JSON if that goes to standard output, else as a table.

    Args:
        result: what was found.
        plot: where the picture goes.
        html: where the page goes.
        json: where the result goes; ``"-"`` is standard output.
    """
    if json not in (None, "-"):
        write_text(Path(str(json)), result.to_json(indent=1))
    if html is not None:
        from tm_bandit.selection.html import render_html

        write_text(html, render_html(result))
    if plot is not None:
        write_plot(result, plot)
    print(result.to_json(indent=1) if json == "-" else result)


def write_text(path: Path, text: str) -> None:
    """Write a text file as a whole."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_plot(result: SelectionResult, path: Path) -> None:
    """Draw the result into a file; no window is opened, whatever the user's settings are."""
    import matplotlib

    with matplotlib.rc_context({"backend": "Agg"}), atomic_write(path) as temporary:
        figure = result.plot(temporary)
    import matplotlib.pyplot as plt

    plt.close(figure)
