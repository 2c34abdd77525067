"""``tm-bandit report``: a saved result as a table, a plot or a page."""

from __future__ import annotations

import argparse

from tm_bandit._exceptions import InputError
from tm_bandit.cli.outputs import check_outputs, write_outputs, write_plot, write_text
from tm_bandit.selection.html import render_html
from tm_bandit.selection.result import SelectionResult


def run(arguments: argparse.Namespace) -> int:
    """Show the result."""
    check_outputs(plot=arguments.plot, html=arguments.html)
    result = _load(arguments.result)
    if arguments.markdown:
        if arguments.html is not None:
            write_text(arguments.html, render_html(result))
        if arguments.plot is not None:
            write_plot(result, arguments.plot)
        print(result.to_markdown(), end="")
    else:
        write_outputs(result, plot=arguments.plot, html=arguments.html, json="-" if arguments.json else None)
    return 0


def _load(path: str) -> SelectionResult:
    """Read a result, naming the file in whatever is wrong with it."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InputError(f"Expected a saved result, but could not read {path} ({reason}).") from error
    if not text.lstrip().startswith("{"):
        raise InputError(f"Expected a result that `tm-bandit select --json FILE` wrote, but got {path}.")
    try:
        return SelectionResult.from_json(text)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
