"""From ``--arm NAME=PATH`` or a pattern to something that can be pulled."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tm_bandit.cli.console import note, note_left_out
from tm_bandit.cli.specs import ArmSpec, import_callable, import_reference, is_python_reference, parse_variants
from tm_bandit.data import SampleSource, SourceSampler, open_source
from tm_bandit.errors import BanditError, InputError, brief
from tm_bandit.execution.draw import Pairing


def open_arms(arguments: argparse.Namespace, specs: Sequence[ArmSpec]) -> dict[str, Any]:
    """Open every arm: a :class:`~tm_bandit.data.SourceSampler` for folders and files, else a function.

    Nothing is decoded yet, but any error that can be found without decoding is raised here.

    Args:
        arguments: the parsed command line.
        specs: the arms.

    Raises:
        InputError: if an arm cannot be used.
    """
    checkpoints = {spec.name: Path(spec.place) for spec in specs if spec.place.endswith(".ckpt")}
    variants = parse_variants(arguments.variant)
    if variants and not checkpoints:
        raise InputError("Expected .ckpt arms for --variant, but got none; leave --variant out.")
    loaded = _open_checkpoints(arguments, checkpoints, variants) if checkpoints else {}
    arms: dict[str, Any] = {}
    for spec in specs:
        if spec.name in checkpoints:
            names = [f"{spec.name}/{variant}" for variant in variants] or [spec.name]
            arms.update({name: loaded[name] for name in names})
        elif is_python_reference(spec.place) and not Path(spec.place).exists():
            arms[spec.name] = import_callable(spec.place, "--arm", "a function")
        else:
            source, skip = open_samples(arguments, spec.place), arguments.skip_unreadable
            options = (arguments.seed, arguments.replacement, skip, arguments.paired)
            arms[spec.name] = SourceSampler(source, spec.name, *options)
    if not checkpoints and arguments.module is not None:
        raise InputError(f"Expected .ckpt arms for --module {arguments.module}, but got none; leave --module out.")
    if arguments.paired:
        _check_paired(arguments, arms)
    return arms


def open_samples(arguments: argparse.Namespace, place: str) -> SampleSource:
    """Open a folder or file with the reading options of the command line.

    Args:
        arguments: the parsed command line.
        place: the folder or file.

    Raises:
        InputError: if it cannot be used.
    """
    options = ("key", "resize", "skip_unreadable", "max_pixels")
    return open_source(place, **{name: getattr(arguments, name) for name in options})


def pairing_of(arguments: argparse.Namespace, arms: dict[str, Any]) -> Pairing:
    """Return how the noise of arms is paired: that of files is not, unless the user says that they correspond.

    Args:
        arguments: the parsed command line.
        arms: the arms.
    """
    if all(isinstance(arm, SourceSampler) for arm in arms.values()):
        return "common" if arguments.paired else "independent"
    pairing: Pairing = arguments.pairing
    return pairing


def check_supply(arms: dict[str, Any], budget: int, burn_in: int, quiet: bool) -> None:
    """Refuse arms with too few samples to start with, and say which ones may run out.

    Args:
        arms: the arms.
        budget: samples that may be drawn in total.
        burn_in: samples that every arm must provide.
        quiet: say nothing.

    Raises:
        InputError: if an arm has fewer samples than the burn-in.
    """
    finite = {name: arm for name, arm in arms.items() if isinstance(arm, SourceSampler) and arm.remaining is not None}
    for arm in finite.values():
        if arm.remaining is not None and arm.remaining < burn_in:
            raise InputError(
                f"Expected at least {burn_in} samples in {arm.source.path}, but got {arm.remaining}; "
                "add samples, lower --burn-in or --batch-size, or pass --replacement."
            )
    short = [f"{name} ({arm.remaining:,})" for name, arm in finite.items() if (arm.remaining or 0) < budget]
    if short and not quiet:
        note(
            f"fewer samples than the budget of {budget:,}: {', '.join(short)}; an arm that runs out stays in the "
            "comparison but is not drawn from again (--replacement draws samples more than once)"
        )


def report_unreadable(arms: dict[str, Any]) -> None:
    """Say how many samples were left out because they could not be read."""
    for name, arm in arms.items():
        if isinstance(arm, SourceSampler):
            note_left_out(arm.left_out, f"arm {name}: ")


def _check_paired(arguments: argparse.Namespace, arms: dict[str, Any]) -> None:
    """Refuse arms that cannot correspond sample by sample."""
    other = next((name for name, arm in arms.items() if not isinstance(arm, SourceSampler)), None)
    if other is not None:
        raise InputError(
            f"Expected folders and files for --paired, but got arm {other}, which draws its own samples; leave "
            "--paired out: such arms get the same noise anyway."
        )
    if arguments.pairing == "independent":
        raise InputError("Expected either --paired or --pairing independent, but got both; leave one out.")
    if arguments.skip_unreadable:
        raise InputError(
            "Expected --paired without --skip-unreadable, but got both: skipping a sample would shift all that "
            "follow; leave one of the two out, or delete unreadable files in all arms."
        )
    lengths = {name: len(arm.source) for name, arm in arms.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} ({length:,})" for name, length in lengths.items())
        raise InputError(
            f"Expected as many samples in every arm for --paired, because sample i is compared across arms, but got "
            f"{listed}; make them equal, or leave --paired out."
        )


def _open_checkpoints(
    arguments: argparse.Namespace, files: dict[str, Path], variants: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    first = next(iter(files.values()))
    if arguments.module is None:
        raise InputError(f"Expected --module PACKAGE:CLASS for {first}, but got none; name a LightningModule's class.")
    for path in files.values():
        if not path.is_file():
            raise InputError(f"Expected a checkpoint, but there is none at {path}; check --arm.")
    module_class = import_reference(arguments.module)
    if not isinstance(module_class, type):
        raise InputError(f"Expected --module {arguments.module} to be a class, but got {type(module_class).__name__}.")
    from tm_bandit._weights_file import read_weights
    from tm_bandit.selection.checkpoints import checkpoint_samplers

    try:
        for path in files.values():
            read_weights(path)
        return dict(checkpoint_samplers(files, module_class, variants=variants, device=arguments.device))
    except BanditError as error:
        raise InputError(f"{error} (--module {arguments.module})") from error
    except Exception as error:  # whatever the user's module raises while it is made from the first file
        raise InputError(f"Expected {first} to load into {arguments.module}, but got {brief(error)}") from error
