"""``tm-bandit report``: a saved result as a table, a plot or a page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

from tm_bandit.cli.outputs import Outputs
from tm_bandit.errors import InputError, brief
from tm_bandit.report.html import render_html
from tm_bandit.report.result import SelectionResult


def run(arguments: argparse.Namespace) -> int:
    """Show the result."""
    form: Literal["table", "json", "markdown"]
    form = "json" if arguments.json else "markdown" if arguments.markdown else "table"
    outputs = Outputs(plot=arguments.plot, html=arguments.html, form=form)
    outputs.check([arguments.result])
    outputs.write(_load(arguments.result))
    return 0


def _load(path: str) -> SelectionResult:
    """Read a result; errors name the file."""
    try:
        result = SelectionResult.from_json(Path(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    try:  # a well-formed file may still hold anything: if this can be drawn, so can the rest
        str(result), render_html(result)
    except Exception as error:
        raise InputError(
            f"Expected a result that can be shown, but got damage in {path} ({brief(error)}); make it again."
        ) from error
    return result
