"""The command line's options and their help."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tm_bandit.__about__ import __version__
from tm_bandit.errors import one_line, printable
from tm_bandit.pull import BATCH_SIZE

_DESCRIPTION = "Pick the best generative model with the fewest samples."

_STATS_EXAMPLES = """\
examples:
  tm-bandit stats photos/ -o ref.npz                        a folder of images, Inception features
  tm-bandit stats photos/ -o ref.npz --feature dinov2-vit-l-14 --device cuda
  tm-bandit stats train.npz -o ref.npz --resize 64          images in an array (N,H,W,3)
  tm-bandit stats features.npy -o ref.npz --feature none    features that you computed yourself
  tm-bandit stats photos/ -o ref.npz --rows 5000            with rows, for select --metric kid
  tm-bandit stats ref.npz -o ref.pt                         convert to torch-fidelity's format

The file opens in pytorch-fid and clean-fid (.npz) and in torch-fidelity (.pt). Their files open here, as do those of
guided-diffusion, whose own evaluator needs more than mean and covariance in a file.
"""

_SELECT_EXAMPLES = """\
examples:
  tm-bandit select --reference ref.npz --arm ema=out/ema --arm raw=out/raw --budget 5000
  tm-bandit select --reference photos/ out/ema out/raw                           folders by path, named ema and raw
  tm-bandit select --reference ref.npz --module my.models:Flow 'runs/*.ckpt'     28 checkpoints at once
  tm-bandit select --reference ref.npz --arm a=a.npz --arm b=b.npz --stop certified --html report.html
  tm-bandit select --reference ref.npz --arm a=out/a --arm b=out/b --paired      file i of each: same noise
  tm-bandit select --metric is --arm a=out/a --arm b=out/b --json result.json
  tm-bandit select --metric my.scores:aesthetic --bounded 0 10 --arm a=out/a --arm b=out/b
  tm-bandit select --reference ref.npz --arm e10=e10.ckpt --arm e20=e20.ckpt --module my.models:Flow
  tm-bandit select --reference ref.npz --arm cfg1=my.samplers:cfg1 --arm cfg2=my.samplers:cfg2

  tm-bandit select --reference ref.npz --module my.models:Flow 'runs/*.ckpt' --variant 'cfg3={"scale": 3}' ...

An arm is a folder of images, a .npy/.npz file of images or features, a .ckpt file (with --module), or a function
package.module:name that is called with a number of samples (and generator=, if it takes one) and returns a tensor of
images (N,3,H,W), or of features (N,d), which are taken as they are.
Only the samples that are pulled from a folder or file are decoded and embedded.

several processes:
  tm-bandit select ... --workers 4                          four processes on this machine
  torchrun --nproc_per_node=2 -m tm_bandit select ...       they share each pull; the same answer as one process
  ray start --head                                          start a local Ray, then
  tm-bandit select ... --workers 8 --ray auto               eight of its actors; `ray stop` ends it

With --workers several pulls are under way at the same time. For a given number of workers the answer depends on the
seed alone.
"""

_WATCH_EXAMPLES = """\
examples:
  tm-bandit watch runs/checkpoints --module my.models:Flow --reference ref.npz
  tm-bandit watch runs --module my.models:build --reference ref.npz --out runs/watch --idle 3600

Complete checkpoints (.ckpt, .pt, .safetensors) of any trainer are admitted once they have settled, and raced against
the best so far. DIR/tm_bandit (or --out) gets selection.json, selection.html, which a browser reloads every 30 seconds,
and a link `best`. Nothing else is written or deleted. Ctrl-C ends it; the same command continues where it stopped.
"""

_CACHE_EXAMPLES = """\
examples:
  tm-bandit cache                                           where it is, how many rows it has, and its size
  tm-bandit cache --clear

Rows of image files are kept for named networks, and reused only if neither the file, the weights, the options nor the
packages have changed. Beyond 2 GB the older half is deleted.
"""

_REPORT_EXAMPLES = """\
examples:
  tm-bandit report result.json                              the table
  tm-bandit report result.json --plot bounds.png --html report.html
  tm-bandit report result.json --markdown >> notes.md
"""


class OneLineParser(argparse.ArgumentParser):
    """A parser that answers a wrong option with one line instead of its whole usage."""

    def error(self, message: str) -> NoReturn:
        """Print the line and leave with exit code 2."""
        self.exit(2, f"{self.prog}: error: {printable(one_line(message))} (see {self.prog} --help)\n")


def _at_least(minimum: int, most: int = 10**12) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``minimum`` to ``most``, by default more than any machine can handle."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a whole number, but got {text!r}") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"expected at least {minimum}, but got {value}")
        if value > most:
            raise argparse.ArgumentTypeError(f"expected at most {most:,}, but got more")
        return value

    return parse


#: Default number of processes that decode images.
DECODERS = min(4, os.cpu_count() or 1)

#: The arguments of an option that takes a count.
_COUNT: dict[str, Any] = {"metavar": "N", "type": _at_least(1)}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line.

    Example:
        >>> build_parser().parse_args(["report", "result.json"]).command
        'report'
    """
    parser = OneLineParser(prog="tm-bandit", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=OneLineParser)
    _add_stats(_command(commands, "stats", "make a reference file from images or features", _STATS_EXAMPLES))
    _add_select(_command(commands, "select", "find the best of several models", _SELECT_EXAMPLES))
    _add_watch(_command(commands, "watch", "race new checkpoints while training runs", _WATCH_EXAMPLES))
    _add_report(_command(commands, "report", "show a saved result: table, plot, HTML page", _REPORT_EXAMPLES))
    _add_cache_command(_command(commands, "cache", "show or clear the cached features", _CACHE_EXAMPLES))
    _add_demo(_command(commands, "demo", "the whole story offline, in minutes", ""))
    return parser


def _command(
    commands: argparse._SubParsersAction[OneLineParser], name: str, summary: str, examples: str
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
        "--rows",
        metavar="N",
        type=_at_least(2),
        nargs="?",
        const=10_000,
        help="also keep the rows, which kid and cmmd need: at most N (default: %(const)s), chosen at random",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of that subset (default: 0)")
    decoding = "processes that decode images (default: %(default)s)"
    parser.add_argument("--workers", metavar="N", type=_at_least(0, 256), default=DECODERS, help=decoding)
    parser.add_argument("--batch-size", **_COUNT, default=50, help="images per step (default: %(default)s)")
    _add_reading(parser)
    _add_network(parser)
    _add_cache(parser)
    _add_talk(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def _add_select(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is compared")
    what.add_argument(
        "patterns",
        metavar="PATTERN",
        nargs="*",
        help="paths of models, or quoted patterns such as 'runs/*.ckpt'; what tells the paths apart becomes the names",
    )
    what.add_argument("--arm", metavar="NAME=PATH", action="append", default=[], help="a model; once per model")
    _add_score(what)
    what.add_argument("--module", metavar="PACKAGE:CLASS", help="the LightningModule that .ckpt arms are loaded into")
    what.add_argument(
        "--variant",
        metavar="NAME=JSON",
        action="append",
        default=[],
        help="keyword arguments of the module's sample() as a JSON object; each variant of a .ckpt file is an arm",
    )
    how = parser.add_argument_group("how to select")
    how.add_argument(
        "--budget",
        metavar="N|TIME",
        type=_budget,
        default=5000,
        help="samples of all models together, or the time that drawing them may take: 90s, 10min, 2h (default: 5000)",
    )
    how.add_argument(
        "--cost",
        metavar="NAME=NUMBER",
        action="append",
        default=[],
        help="cost of a sample of a model, once per model, in the unit of the budget: seconds if that is a time",
    )
    how.add_argument("--batch-size", **_COUNT, default=BATCH_SIZE, help="samples per pull (default: %(default)s)")
    how.add_argument("--chunk-size", **_COUNT, help="samples per call of a sampler (default: up to four calls)")
    how.add_argument("--policy", metavar="NAME", default="ucb", help="which arm is pulled next (default: %(default)s)")
    how.add_argument(
        "--goal",
        choices=("identify", "regret"),
        default="identify",
        help="aim of the default policy: find the best arm, or draw from good ones (default: %(default)s)",
    )
    how.add_argument(
        "--stop",
        metavar="RULE",
        help="when to end: likely, certified or budget (default: likely if the goal is to identify the best arm and "
        "the bound is one that can tell, else budget)",
    )
    margin = "an arm wins if no rival can be better by more than X (in FID, or log IS)"
    how.add_argument("--epsilon", metavar="X", type=float, default=0.0, help=margin)
    first = "samples of each arm at the start (default: %(default)s)"
    how.add_argument("--burn-in", metavar="N", type=_burn_in, default="auto", help=first)
    how.add_argument("--seed", metavar="N", type=int, default=0, help="seed of everything random (default: 0)")
    how.add_argument(
        "--paired",
        action="store_true",
        help="sample i of every folder (by file name) or array (by row) used the same noise: draw in step",
    )
    how.add_argument(
        "--pairing",
        choices=("common", "independent"),
        default="common",
        help="noise of functions and checkpoints: the same for all, or independent (default: %(default)s)",
    )
    how.add_argument(
        "--on-error",
        choices=("retire", "raise"),
        default="retire",
        help="what happens when a model fails: it is retired, or the run ends with a traceback (default: %(default)s)",
    )
    how.add_argument("--replacement", action="store_true", help="draw from folders and files with replacement")
    _add_workers(parser)
    _add_reading(parser)
    _add_network(parser)
    _add_cache(parser)
    out = parser.add_argument_group("output")
    out.add_argument("--json", metavar="FILE", nargs="?", const="-", help="write the result as JSON, or print it")
    _add_pictures(out)
    _add_talk(out)


def _add_score(what: argparse._ArgumentGroup) -> None:
    what.add_argument(
        "--reference",
        metavar="FILE|DIR",
        help="the real data: statistics (fid) or rows (kid, cmmd), or a folder of images from which they are "
        "computed with the same network",
    )
    what.add_argument(
        "--metric",
        metavar="NAME",
        type=_metric,
        default="fid",
        help="score: fid, kid, cmmd, is, or package.module:name of a function or module of yours from samples to one "
        "number per sample (default: %(default)s)",
    )
    what.add_argument("--lower-is-better", action="store_true", help="small scores of a --metric function are better")
    what.add_argument(
        "--bounded",
        metavar=("LOW", "HIGH"),
        type=float,
        nargs=2,
        help="limits of the scores of a function given as --metric, if there are any",
    )
    what.add_argument("--bound", metavar="NAME", help="confidence bound (default: witness; hajek for kid and cmmd)")
    what.add_argument("--delta", metavar="P", type=float, default=0.05, help="failure probability (default: 0.05)")


def _add_workers(parser: argparse.ArgumentParser) -> None:
    who = parser.add_argument_group("parallel drawing")
    who.add_argument(
        "--workers",
        metavar="N",
        type=_at_least(1),
        help="processes that draw at the same time; they also decode and embed images",
    )
    who.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="use actors of a Ray cluster as workers: 'auto', ray://HOST:10001, or 'local' for a cluster started "
        "for this run; needs `pip install tm-bandit[ray]`",
    )
    who.add_argument(
        "--timeout", metavar="SECONDS", type=float, help="time for a pull before another worker gets it (default: none)"
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", metavar="RESULT", help="a file that `tm-bandit select --json FILE` wrote")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the table as JSON")
    form.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    _add_pictures(parser)


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="where checkpoints appear, sub-folders included")
    parser.add_argument(
        "--module", metavar="PACKAGE:CLASS", required=True, help="the module's class, or a function that returns one"
    )
    _add_score(parser.add_argument_group("score"))
    parser.add_argument("--out", metavar="DIR", help="the watcher's own folder (default: DIR/tm_bandit)")
    for name, default, text in (
        ("--budget", 1000, "samples for each new checkpoint and its rivals"),
        ("--batch-size", BATCH_SIZE, "samples per pull"),
        ("--max-arms", 8, "checkpoints that stay in the race"),
    ):
        parser.add_argument(
            name, metavar="N", type=_at_least(1), default=default, help=f"{text} (default: %(default)s)"
        )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of everything random (default: 0)")
    parser.add_argument("--every", metavar="SECONDS", type=float, default=5.0, help="time between looks (default: 5)")
    parser.add_argument(
        "--settle", metavar="SECONDS", type=float, default=2.0, help="a file is complete once unchanged for this long"
    )
    parser.add_argument("--idle", metavar="SECONDS", type=float, help="end when nothing new has appeared for this long")
    _add_reading(parser, "reading a --reference of samples")
    _add_network(parser)
    _add_cache(parser)
    _add_talk(parser)


def _add_cache(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cache of features")
    group.add_argument(
        "--cache",
        metavar="DIR",
        help="where the features of image files are kept, so that the same files and network cost nothing the next "
        "time (default: tm-bandit in the user's cache folder; `tm-bandit cache` shows and clears it)",
    )
    group.add_argument("--no-cache", action="store_true", help="neither store features nor use stored ones")


def _add_cache_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cache", metavar="DIR", help="the folder (default: tm-bandit in the user's cache folder)")
    parser.add_argument("--clear", action="store_true", help="delete the cached features")


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("tm_bandit_demo"), help="folder (default: %(default)s)")
    parser.add_argument("--seed", type=_at_least(0), default=0, help="seed of everything random (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON; the story goes to stderr")
    parser.add_argument("--fast", action="store_true", help="seconds, not minutes: only a smoke test")


def _add_reading(parser: argparse.ArgumentParser, title: str = "reading") -> None:
    group = parser.add_argument_group(title)
    group.add_argument("--key", metavar="NAME", help="the array to use in .npz files that hold several")
    group.add_argument(
        "--resize", metavar="PIXELS", type=_at_least(1, 16_384), help="resize images to this width and height"
    )
    group.add_argument(
        "--max-pixels", metavar="N", type=_at_least(1), help="refuse larger images (default: 64 million pixels)"
    )
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
    group.add_argument("--device", metavar="DEVICE", default="cpu", help="where the network runs (default: cpu)")


def _add_pictures(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write the plot (.png, .svg, .pdf)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a self-contained page with plot and table")


def _add_talk(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


def _metric(text: str) -> str:
    """Parse the name of a score."""
    if text in ("fid", "kid", "cmmd", "is") or ":" in text:
        return text
    raise argparse.ArgumentTypeError(f"expected fid, kid, cmmd, is or package.module:name, but got {text!r}")


def _budget(text: str) -> int | float | str:
    """Parse a number; a time is left to the selector."""
    if text.strip()[-1:].isalpha():
        return text
    return float(text) if "." in text else _at_least(1)(text)


def _burn_in(text: str) -> int | str:
    """Parse ``auto`` or a whole number."""
    return text if text == "auto" else _at_least(1)(text)
