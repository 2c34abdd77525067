"""Writing a result: checked before the run, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from tm_bandit._files import check_writable
from tm_bandit.errors import InputError, printable
from tm_bandit.report.result import SelectionResult

#: File name endings that the plotting library can write.
PLOT_SUFFIXES = (".png", ".svg", ".pdf", ".jpg", ".webp")


class Outputs(NamedTuple):
    """What a command leaves behind.

    Args:
        plot: where the picture goes.
        html: where the page goes.
        json: where the result goes.
        form: what is printed on standard output.
    """

    plot: Path | None = None
    html: Path | None = None
    json: Path | None = None
    form: Literal["table", "json", "markdown"] = "table"

    def check(self, inputs: Iterable[str]) -> None:
        """Refuse files that could not be written, before any time is spent.

        Args:
            inputs: files that the command reads; none may be overwritten.

        Raises:
            InputError: if a place is not writable or an input, two outputs share it, or a picture cannot be made.
        """
        files = [path for path in (self.plot, self.html, self.json) if path is not None]
        for path in files:
            check_writable(path, inputs)
        if len({path.absolute() for path in files}) < len(files):
            raise InputError(f"Expected different files for each output, but got {files[0]} more than once.")
        if self.plot is None:
            return
        if self.plot.suffix.lower() not in PLOT_SUFFIXES:
            raise InputError(f"Expected --plot to end in {', '.join(PLOT_SUFFIXES)}, but got {self.plot}; rename it.")
        if find_spec("matplotlib") is None:
            raise InputError("Expected matplotlib for --plot, but it is missing; run `pip install matplotlib`.")

    def write(self, result: SelectionResult) -> None:
        """Write the files and print the result.

        Args:
            result: what was found.
        """
        if self.json is not None:
            result.to_json(self.json, indent=1)
        if self.html is not None:
            result.to_html(self.html)
        if self.plot is not None:
            result.plot(self.plot)
        if self.form == "markdown":
            print(printable(result.to_markdown()), end="")
        else:
            print(printable(result.to_json(indent=1) if self.form == "json" else str(result)))
