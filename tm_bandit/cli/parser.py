"""The command line's options and their help."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from tm_bandit.__about__ import __version__

_DESCRIPTION = "Pick the best generative model with the fewest samples."

_STATS_EXAMPLES = """\
examples:
  tm-bandit stats photos/ -o ref.npz                        a folder of images, Inception features
  tm-bandit stats photos/ -o ref.npz --feature dinov2-vit-l-14 --device cuda
  tm-bandit stats train.npz -o ref.npz --resize 64          images in an array (N,H,W,3)
  tm-bandit stats features.npy -o ref.npz --feature none    features that you computed yourself
  tm-bandit stats ref.npz -o ref.pt                         convert to torch-fidelity's format

The file opens in pytorch-fid and clean-fid (.npz) and in torch-fidelity (.pt). Theirs open here, and so do those of
guided-diffusion, whose own evaluator needs more in a file than mean and covariance.
"""

_SELECT_EXAMPLES = """\
examples:
  tm-bandit select --reference ref.npz --arm ema=out/ema --arm raw=out/raw --budget 5000
  tm-bandit select --reference ref.npz --arm a=a.npz --arm b=b.npz --stop certified --html report.html
  tm-bandit select --metric is --arm a=out/a --arm b=out/b --json result.json
  tm-bandit select --reference ref.npz --arm e10=e10.ckpt --arm e20=e20.ckpt --module my.models:Flow
  tm-bandit select --reference ref.npz --arm cfg1=my.samplers:cfg1 --arm cfg2=my.samplers:cfg2

An arm is a folder of images, a .npy/.npz file of images or features, a .ckpt file (with --module), or a function
package.module:name that is called with a number of samples (and generator=, if it takes one) and returns a tensor of
images (N,3,H,W), or of features (N,d), which are taken as they are.
Of folders and files, only the samples that are pulled are decoded and embedded.
"""

_REPORT_EXAMPLES = """\
examples:
  tm-bandit report result.json                              the table
  tm-bandit report result.json --plot bounds.png --html report.html
  tm-bandit report result.json --markdown >> notes.md
"""


class _OneLineParser(argparse.ArgumentParser):
    """A parser that answers a wrong option with one line instead of its whole usage."""

    def error(self, message: str) -> NoReturn:
        """Print the line and leave with exit code 2."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line.

    Example:
        >>> build_parser().parse_args(["report", "result.json"]).command
        'report'
    """
    parser = _OneLineParser(prog="tm-bandit", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_OneLineParser)
    _add_stats(_command(commands, "stats", "make a reference file from images or features", _STATS_EXAMPLES))
    _add_select(_command(commands, "select", "find the best of several models", _SELECT_EXAMPLES))
    _add_report(_command(commands, "report", "show a saved result: table, plot, HTML page", _REPORT_EXAMPLES))
    _command(commands, "demo", "the whole story offline, in minutes", "")  # for the list; see main()
    return parser


def _command(
    commands: argparse._SubParsersAction[_OneLineParser], name: str, summary: str, examples: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_stats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="DIR|FILE", help="folder of images, or .npy/.npz of images or features")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="where to write (.npz or .pt)")
    parser.add_argument(
        "--workers",
        metavar="N",
        type=_at_least(0),
        default=min(4, os.cpu_count() or 1),
        help="processes that decode images (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size", metavar="N", type=_at_least(1), default=50, help="images per step (default: %(default)s)"
    )
    _add_reading(parser)
    _add_network(parser)
    _add_talk(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def _add_select(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is compared")
    what.add_argument(
        "--arm", metavar="NAME=PATH", action="append", required=True, help="a model; give this once per model"
    )
    what.add_argument("--reference", metavar="FILE", help="statistics of the real data (needed for fid)")
    what.add_argument("--metric", choices=("fid", "is"), default="fid", help="score (default: %(default)s)")
    what.add_argument("--module", metavar="PACKAGE:CLASS", help="the LightningModule that .ckpt arms are loaded into")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--budget", metavar="N", type=_at_least(1), default=5000, help="samples of all arms together (default: 5000)"
    )
    how.add_argument("--batch-size", metavar="N", type=_at_least(1), default=50, help="samples per pull (default: 50)")
    how.add_argument("--bound", metavar="NAME", default="witness", help="confidence bound (default: %(default)s)")
    how.add_argument(
        "--delta", metavar="P", type=float, default=0.05, help="failure probability (default: %(default)s)"
    )
    how.add_argument("--policy", metavar="NAME", default="ucb", help="which arm is pulled next (default: %(default)s)")
    how.add_argument(
        "--goal", choices=("regret", "identify"), default="regret", help="what the default policy is after"
    )
    how.add_argument(
        "--stop", metavar="RULE", default="budget", help="budget, certified or likely (default: %(default)s)"
    )
    how.add_argument(
        "--epsilon",
        metavar="X",
        type=float,
        default=0.0,
        help="an arm wins if no rival can be better by more than X (in FID, or log IS)",
    )
    how.add_argument(
        "--burn-in", metavar="N", type=_burn_in, default="auto", help="samples of each arm before the race"
    )
    how.add_argument("--seed", metavar="N", type=int, default=0, help="seed of everything random (default: 0)")
    how.add_argument(
        "--replacement", action="store_true", help="draw from folders and files with replacement, so they never run out"
    )
    _add_reading(parser)
    _add_network(parser)
    out = parser.add_argument_group("output")
    out.add_argument(
        "--json", metavar="FILE", nargs="?", const="-", help="write the result as JSON; without FILE, print it"
    )
    _add_pictures(out)
    _add_talk(out)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", metavar="RESULT", help="a file that `tm-bandit select --json FILE` wrote")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the table as JSON")
    form.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    _add_pictures(parser)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reading")
    group.add_argument("--key", metavar="NAME", help="the array to use in .npz files that hold several")
    group.add_argument("--resize", metavar="PIXELS", type=_at_least(1), help="bring images to this size")
    group.add_argument("--skip-unreadable", action="store_true", help="leave out images that cannot be read")


def _add_network(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("feature network")
    group.add_argument(
        "--feature",
        metavar="NAME",
        help="an Inception layer (2048, 768, ..., logits_unbiased), a torch-fidelity network (dinov2-vit-l-14, ...), "
        "package.module:name of a module or function of yours, or none for ready-made features (default: Inception "
        "for images, none for features)",
    )
    group.add_argument("--weights", metavar="FILE", help="the network's weights, for machines without internet")
    group.add_argument("--normalize", action="store_true", help="images are floats in [0, 1], not uint8")
    group.add_argument("--no-antialias", action="store_true", help="resize for Inception as TensorFlow 1 did")
    group.add_argument(
        "--device", metavar="DEVICE", default="cpu", help="where the network runs (default: %(default)s)"
    )


def _add_pictures(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write the plot (.png, .svg, .pdf)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a self-contained page with plot and table")


def _add_talk(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


def _at_least(minimum: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``minimum`` on."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a whole number, but got {text!r}") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"expected at least {minimum}, but got {value}")
        return value

    return parse


def _burn_in(text: str) -> int | str:
    """Parse ``auto`` or a whole number."""
    return text if text == "auto" else _at_least(1)(text)
