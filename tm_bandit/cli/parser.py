"""The command line's options and their help."""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tm_bandit.__about__ import __version__
from tm_bandit.errors import one_line, printable
from tm_bandit.pull import BATCH_SIZE

_DESCRIPTION = "Pick the best generative model with few samples."


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

_count = _at_least(1)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line.

    Example:
        >>> build_parser().parse_args(["report", "result.json"]).command
        'report'
    """
    parser = OneLineParser(prog="tm-bandit", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=OneLineParser)
    for name, add_arguments in _COMMANDS.items():
        # The first line says what the command does, the others are shown below its options.
        about, _, more = inspect.cleandoc(add_arguments.__doc__ or ".").partition("\n\n")
        more, raw = more.replace("Examples:", "examples:", 1), argparse.RawDescriptionHelpFormatter
        summary = about[0].lower() + about[1:-1]
        command = commands.add_parser(
            name, help=summary, description=about, epilog=more, formatter_class=raw, allow_abbrev=False
        )
        add_arguments(command)
    return parser


def _add(to: argparse._ActionsContainer, usage: str, text: str, type: Any = None, **settings: Any) -> None:
    """Add an argument.

    Args:
        to: a parser or a group of its options.
        usage: its names, then how its values are written: some words, ``{a,b}`` for a choice, nothing for a switch.
        text: its help, without its default.
        type: turns the text of a value into the value.
        settings: more of ``add_argument``.
    """
    names, *values = usage.split(" ")
    if not values:
        settings["action"] = "store_true"
    elif values[0].startswith("{"):
        settings["choices"] = values[0].strip("{}").split(",")
    else:
        settings |= {"type": type, "metavar": values[0]} if len(values) == 1 else {"type": type, "metavar": (*values,)}
    if len(values) > 1:
        settings["nargs"] = len(values)
    if settings.get("default") not in (None, []):
        text += " (default: %(default)s)"
    to.add_argument(*names.split(","), help=text, **settings)


_QUIET = "no progress, only the result"

#: What makes an option one that may be given several times.
_EACH: dict[str, Any] = {"action": "append", "default": []}


def _add_stats(parser: argparse.ArgumentParser) -> None:
    """Make a reference file from images or features.

    Examples:
      tm-bandit stats photos/ -o ref.npz                        a folder of images, Inception features
      tm-bandit stats photos/ -o ref.npz --feature dinov2-vit-l-14 --device cuda
      tm-bandit stats train.npz -o ref.npz --resize 64          images in an array (N,H,W,3)
      tm-bandit stats features.npy -o ref.npz --feature none    features that you computed yourself
      tm-bandit stats photos/ -o ref.npz --rows 5000            with rows, for select --metric kid
      tm-bandit stats ref.npz -o ref.pt                         convert to torch-fidelity's format

    The file opens in pytorch-fid and clean-fid (.npz) and in torch-fidelity (.pt). Their files open here, as do those
    of guided-diffusion, whose own evaluator needs more than mean and covariance in a file.
    """
    _add(parser, "source DIR|FILE", "folder of images, or .npy/.npz of images or features")
    _add(parser, "-o,--output FILE", "where to write (.npz or .pt)", Path, required=True)
    kept = "also keep the rows, which kid and cmmd need: at most N (default: %(const)s), chosen at random"
    _add(parser, "--rows N", kept, _at_least(2), nargs="?", const=10_000)
    _add(parser, "--seed N", "seed of that subset", int, default=0)
    _add(parser, "--workers N", "processes that decode images", _at_least(0, 256), default=DECODERS)
    _add(parser, "--batch-size N", "images per step", _count, default=50)
    _add_reading(parser)
    _add_network(parser)
    _add_cache(parser)
    _add(parser, "--quiet", _QUIET)
    _add(parser, "--json", "print the summary as JSON")


def _add_select(parser: argparse.ArgumentParser) -> None:
    """Find the best of several models.

    Examples:
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
    package.module:name that is called with a number of samples (and generator=, if it takes one) and returns a tensor
    of images (N,3,H,W), or of features (N,d), which are taken as they are.
    Only the samples that are pulled from a folder or file are decoded and embedded.

    several processes:
      tm-bandit select ... --workers 4                          four processes on this machine
      torchrun --nproc_per_node=2 -m tm_bandit select ...       they share each pull; the same answer as one process
      ray start --head                                          start a local Ray, then
      tm-bandit select ... --workers 8 --ray auto               eight of its actors; `ray stop` ends it

    With --workers several pulls are under way at the same time. For a given number of workers the answer depends on the
    seed alone.
    """
    what = parser.add_argument_group("what is compared")
    paths = "paths of models, or quoted patterns such as 'runs/*.ckpt'; what tells the paths apart becomes the names"
    _add(what, "patterns PATTERN", paths, nargs="*")
    _add(what, "--arm NAME=PATH", "a model; once per model", **_EACH)
    _add_score(what)
    _add(what, "--module PACKAGE:CLASS", "the LightningModule that .ckpt arms are loaded into")
    keywords = "keyword arguments of the module's sample() as a JSON object; each variant of a .ckpt file is an arm"
    _add(what, "--variant NAME=JSON", keywords, **_EACH)
    how = parser.add_argument_group("how to select")
    spent = "samples of all models together, or the time that drawing them may take: 90s, 10min, 2h"
    _add(how, "--budget N|TIME", spent, _budget, default=5000)
    price = "cost of a sample of a model, once per model, in the unit of the budget: seconds if that is a time"
    _add(how, "--cost NAME=NUMBER", price, **_EACH)
    _add(how, "--batch-size N", "samples per pull", _count, default=BATCH_SIZE)
    _add(how, "--chunk-size N", "samples per call of a sampler (default: up to four calls)", _count)
    _add(how, "--policy NAME", "which arm is pulled next", default="ucb")
    aim = "aim of the default policy: find the best arm, or draw from good ones"
    _add(how, "--goal {identify,regret}", aim, default="identify")
    end = (
        "when to end: likely, certified or budget (default: likely if the goal is to identify the best arm and the "
        "bound is one that can tell, else budget)"
    )
    _add(how, "--stop RULE", end)
    margin = "an arm wins if no rival can be better by more than X (in FID, or log IS)"
    _add(how, "--epsilon X", margin, float, default=0.0)
    _add(how, "--burn-in N", "samples of each arm at the start", _burn_in, default="auto")
    _add(how, "--seed N", "seed of everything random", int, default=0)
    _add(how, "--paired", "sample i of every folder (by file name) or array (by row) used the same noise: draw in step")
    noise = "noise of functions and checkpoints: the same for all, or independent"
    _add(how, "--pairing {common,independent}", noise, default="common")
    failed = "what happens when a model fails: it is retired, or the run ends with a traceback"
    _add(how, "--on-error {retire,raise}", failed, default="retire")
    _add(how, "--replacement", "draw from folders and files with replacement")
    who = parser.add_argument_group("parallel drawing")
    _add(who, "--workers N", "processes that draw at the same time; they also decode and embed images", _count)
    ray = (
        "use actors of a Ray cluster as workers: 'auto', ray://HOST:10001, or 'local' for a cluster started for this "
        "run; needs `pip install tm-bandit[ray]`"
    )
    _add(who, "--ray ADDRESS", ray)
    _add(who, "--timeout SECONDS", "time for a pull before another worker gets it (default: none)", float)
    _add_reading(parser)
    _add_network(parser)
    _add_cache(parser)
    out = parser.add_argument_group("output")
    _add(out, "--json FILE", "write the result as JSON, or print it", nargs="?", const="-")
    _add_pictures(out)
    _add(out, "--quiet", _QUIET)


def _add_score(what: argparse._ArgumentGroup) -> None:
    real = (
        "the real data: statistics (fid) or rows (kid, cmmd), or a folder of images from which they are computed with "
        "the same network"
    )
    _add(what, "--reference FILE|DIR", real)
    score = (
        "score: fid, kid, cmmd, is, or package.module:name of a function or module of yours from samples to one number "
        "per sample"
    )
    _add(what, "--metric NAME", score, _metric, default="fid")
    _add(what, "--lower-is-better", "small scores of a --metric function are better")
    _add(what, "--bounded LOW HIGH", "limits of the scores of a function given as --metric, if there are any", float)
    _add(what, "--bound NAME", "confidence bound (default: witness; hajek for kid and cmmd)")
    _add(what, "--delta P", "failure probability", float, default=0.05)


def _add_report(parser: argparse.ArgumentParser) -> None:
    """Show a saved result: table, plot, HTML page.

    Examples:
      tm-bandit report result.json                              the table
      tm-bandit report result.json --plot bounds.png --html report.html
      tm-bandit report result.json --markdown >> notes.md
    """
    _add(parser, "result RESULT", "a file that `tm-bandit select --json FILE` wrote")
    form = parser.add_mutually_exclusive_group()
    _add(form, "--json", "print the table as JSON")
    _add(form, "--markdown", "print the table as Markdown")
    _add_pictures(parser)


def _add_watch(parser: argparse.ArgumentParser) -> None:
    """Race new checkpoints while training runs.

    Examples:
      tm-bandit watch runs/checkpoints --module my.models:Flow --reference ref.npz
      tm-bandit watch runs --module my.models:build --reference ref.npz --out runs/watch --idle 3600

    Complete checkpoints (.ckpt, .pt, .safetensors) of any trainer are admitted once they have settled, and raced
    against the best so far. DIR/tm_bandit (or --out) gets selection.json, selection.html, which a browser reloads every
    30 seconds, and a link `best`. Nothing else is written or deleted. Ctrl-C ends it; the same command continues where
    it stopped.
    """
    _add(parser, "folder DIR", "where checkpoints appear, sub-folders included")
    _add(parser, "--module PACKAGE:CLASS", "the module's class, or a function that returns one", required=True)
    _add_score(parser.add_argument_group("score"))
    _add(parser, "--out DIR", "the watcher's own folder (default: DIR/tm_bandit)")
    _add(parser, "--budget N", "samples for each new checkpoint and its rivals", _count, default=1000)
    _add(parser, "--batch-size N", "samples per pull", _count, default=BATCH_SIZE)
    _add(parser, "--max-arms N", "checkpoints that stay in the race", _count, default=8)
    _add(parser, "--seed N", "seed of everything random", int, default=0)
    _add(parser, "--every SECONDS", "time between looks", float, default=5.0)
    _add(parser, "--settle SECONDS", "a file is complete once unchanged for this long", float, default=2.0)
    _add(parser, "--idle SECONDS", "end when nothing new has appeared for this long", float)
    _add_reading(parser, "reading a --reference of samples")
    _add_network(parser)
    _add_cache(parser)
    _add(parser, "--quiet", _QUIET)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    """Train a small model, choose among its checkpoints and check the choice, offline and in minutes."""
    _add(parser, "--out DIR", "where to write", Path, default=Path("tm_bandit_demo"))
    _add(parser, "--seed N", "seed of everything random", _at_least(0), default=0)
    _add(parser, "--json", "print the figures as JSON; the story goes to stderr")
    _add(parser, "--fast", "seconds, not minutes: only a smoke test")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cache of features")
    place = (
        "where the features of image files are kept, so that the same files and network cost nothing the next time "
        "(default: tm-bandit in the user's cache folder; `tm-bandit cache` shows and clears it)"
    )
    _add(group, "--cache DIR", place)
    _add(group, "--no-cache", "neither store features nor use stored ones")


def _add_cache_command(parser: argparse.ArgumentParser) -> None:
    """Show or clear the cached features.

    Examples:
      tm-bandit cache                                           where it is, how many rows it has, and its size
      tm-bandit cache --clear

    Rows of image files are kept for named networks, and reused only if neither the file, the weights, the options nor
    the packages have changed. Beyond 2 GB the older half is deleted.
    """
    _add(parser, "--cache DIR", "the folder (default: tm-bandit in the user's cache folder)")
    _add(parser, "--clear", "delete the cached features")


def _add_reading(parser: argparse.ArgumentParser, title: str = "reading") -> None:
    group = parser.add_argument_group(title)
    _add(group, "--key NAME", "the array to use in .npz files that hold several")
    _add(group, "--resize PIXELS", "resize images to this width and height", _at_least(1, 16_384))
    _add(group, "--max-pixels N", "refuse larger images (default: 64 million pixels)", _count)
    _add(group, "--skip-unreadable", "leave out images that cannot be read")


def _add_network(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("feature network")
    network = (
        "an Inception layer (2048, 768, ..., logits_unbiased), a torch-fidelity network (dinov2-vit-l-14, ...), "
        "package.module:name of a module or function of yours, or none for ready-made features (default: Inception for "
        "images, none for features)"
    )
    _add(group, "--feature NAME", network)
    _add(group, "--weights FILE", "the network's weights, for machines without internet")
    _add(group, "--normalize", "images are floats in [0, 1], not uint8")
    _add(group, "--no-antialias", "resize for Inception as TensorFlow 1 did")
    _add(group, "--device DEVICE", "where the network runs", default="cpu")


def _add_pictures(parser: argparse._ActionsContainer) -> None:
    _add(parser, "--plot FILE", "write the plot (.png, .svg, .pdf)", Path)
    _add(parser, "--html FILE", "write a self-contained page with plot and table", Path)


def _metric(text: str) -> str:
    """Parse the name of a score."""
    if text in ("fid", "kid", "cmmd", "is") or ":" in text:
        return text
    raise argparse.ArgumentTypeError(f"expected fid, kid, cmmd, is or package.module:name, but got {text!r}")


def _budget(text: str) -> int | float | str:
    """Parse a number; a time is left to the selector."""
    if text.strip()[-1:].isalpha():
        return text
    return float(text) if "." in text else _count(text)


def _burn_in(text: str) -> int | str:
    """Parse ``auto`` or a whole number."""
    return text if text == "auto" else _count(text)


#: The commands: what adds their arguments says what they do.
_COMMANDS = {
    "stats": _add_stats,
    "select": _add_select,
    "watch": _add_watch,
    "report": _add_report,
    "cache": _add_cache_command,
    "demo": _add_demo,
}
