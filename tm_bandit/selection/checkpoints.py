"""Selecting among the .ckpt files of a finished training, with one module in memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from tm_bandit._arguments import check_options, check_path
from tm_bandit._files import Stamp, stamp_of
from tm_bandit._weights_file import read_weights
from tm_bandit.errors import ArmError, InputError, warn
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.selection.modules import SamplerLike, bind_sampler, make_module, put_weights
from tm_bandit.selection.setup import check_metric

if TYPE_CHECKING:
    from tm_bandit.selection.selector import ModelSelector


def selector_from_checkpoints(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    module_class: Any,
    metric: OptimisticMetric,
    sampler: SamplerLike = None,
    *,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    checkpoint_key: Literal["state_dict", "current_model_state"] = "state_dict",
    module_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> ModelSelector:
    """Make a selector whose arms are checkpoint files (times sampler variants).

    Only one module is in memory; the weights of an arm are copied into it when the arm is pulled. No code in the files
    is run. A file that is missing, or that does not fit, is retired with a warning.

    Args:
        paths: files, or a folder, whose ``*.ckpt`` files are taken in the order of the numbers in their names.
        module_class: the LightningModule class of the files; or a module, into which the weights are put.
        metric: as in :class:`~tm_bandit.ModelSelector`.
        sampler: ``None`` calls ``module.sample(n, **variant)``, a string names another method, a callable is called as
            ``sampler(module, n, generator=generator, **variant)``.
        variants: keyword arguments of the sampler by name; each is a separate arm.
        checkpoint_key: ``"current_model_state"`` takes the raw weights of files that also hold averaged ones.
        module_kwargs: arguments of ``module_class`` that are not stored in the files.
        kwargs: further arguments of :class:`~tm_bandit.ModelSelector`. If there are ``conditions``, the sampler must
            take them.

    Raises:
        InputError: if there is no file, or the module has no method to sample with, or it takes no conditions.
    """
    from tm_bandit.selection.selector import ModelSelector

    conditioned = kwargs.get("conditions") is not None
    check_metric(metric, conditioned or kwargs.get("samples") == "features")
    arms = checkpoint_samplers(
        _named_files(paths),
        module_class,
        sampler,
        variants=variants,
        checkpoint_key=checkpoint_key,
        module_kwargs=module_kwargs,
        device=metric.device,
        conditioned=conditioned,
    )
    there = {name: arm for name, arm in arms.items() if arm.path.exists()}
    prices = kwargs.get("cost")
    if isinstance(prices, Mapping):  # prices of missing files are not a mistake
        kwargs["cost"] = {name: price for name, price in prices.items() if name in there or name not in arms}
    selector = ModelSelector(metric, there, **kwargs)
    for name, arm in arms.items():
        if name not in there:
            selector.add_arm(name, arm, prices.get(name) if isinstance(prices, Mapping) else None)
            selector.retire_arm(name, f"the file {arm.path} is missing")
            warn(f"The checkpoint {arm.path} is missing; its arm {name} is retired.")
    return selector


def checkpoint_samplers(
    files: Mapping[str, Path],
    module_class: Any,
    sampler: SamplerLike = None,
    *,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    checkpoint_key: Literal["state_dict", "current_model_state"] = "state_dict",
    module_kwargs: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
    conditioned: bool = False,
) -> dict[str, CheckpointSampler]:
    """Make a sampler for every checkpoint file (times sampler variants), all on one module in memory.

    Args:
        files: the files by the names of their arms; some may be missing.
        module_class: see :func:`selector_from_checkpoints`, also for the other arguments.
        sampler: how to sample from the module.
        variants: keyword arguments of the sampler by name.
        checkpoint_key: which weights of a file.
        module_kwargs: arguments of ``module_class`` that are not stored in the files.
        device: where the module samples.
        conditioned: whether the sampler has to take conditions.

    Raises:
        InputError: if there is no file, or the module has no method to sample with.
    """
    there = [path for path in files.values() if path.exists()]
    if not there:
        raise InputError(
            f"Expected checkpoint files, or a folder with some, but got {[*map(str, files.values())]}; check paths."
        )
    module = make_module(module_class, there, check_options("module_kwargs", module_kwargs))
    shelf = Shelf(module.to(device).eval())
    table = check_options("variants", variants) or {"": {}}
    bound = {
        variant: bind_sampler(
            shelf.module, sampler, check_options(f"variants[{variant!r}]", given), conditioned=conditioned
        )
        for variant, given in table.items()
    }
    return {
        f"{name}/{variant}" if variant else name: CheckpointSampler(shelf, path, checkpoint_key, sample)
        for name, path in files.items()
        for variant, sample in bound.items()
    }


class Shelf:
    """The one module in memory, and whose weights it holds."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._held: tuple[Path, str, Stamp | None] | None = None

    def put(self, path: Path, key: str, stamp: Stamp | None) -> None:
        """Put the weights of a file into the module, unless they are there.

        Args:
            path: the file.
            key: where it has its weights.
            stamp: what the file was when it became an arm.

        Raises:
            ArmError: if the file has changed: two models are not one arm, and a half-written one is none.
        """
        check_stamp(path, stamp)
        if self._held != (path, key, stamp):
            self._held = None
            weights = read_weights(path, key)
            check_stamp(path, stamp)
            put_weights(self.module, weights)
            self._held = path, key, stamp


def check_stamp(path: Path, stamp: Stamp | None) -> None:
    """Raise ``ArmError`` if a file has changed.

    Args:
        path: the file.
        stamp: what it was; ``None`` if it was not there.
    """
    if stamp is not None and stamp_of(path) != stamp:
        raise ArmError(f"Expected {path} as it was when it became an arm, but it is gone, or was rewritten.")


class CheckpointSampler:
    """Samples from the module with the weights of one file, as long as the file does not change.

    Args:
        shelf: the module.
        path: the file.
        key: where it has its weights.
        sample: samples from the module.
        stamp: what the file has to be; ``None`` takes it as it is now.
    """

    def __init__(
        self, shelf: Shelf, path: Path, key: str, sample: Callable[..., Tensor], stamp: Stamp | None = None
    ) -> None:
        self.path = path
        self._stamp = stamp or stamp_of(path)
        self._key = key
        self._shelf = shelf
        self._sample = sample

    def __call__(self, num_samples: int, generator: torch.Generator, **conditions: Any) -> Tensor:
        """Put the file's weights into the module, unless they are there, and draw a batch."""
        self._shelf.put(self.path, self._key, self._stamp)
        return self._sample(num_samples, generator=generator, **conditions)


def _named_files(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> dict[str, Path]:
    if isinstance(paths, Iterable) and not isinstance(paths, (str, bytes)) and getattr(paths, "ndim", 1) != 0:
        files = [Path(check_path("paths", path)) for path in paths]
    else:
        folder = Path(check_path("paths", paths))
        files = sorted(folder.glob("*.ckpt"), key=_by_number) if folder.is_dir() else [folder]
    stems = [file.stem for file in files]
    # Files of several trainings may have the same name; then the folder's name tells them apart.
    return {file.stem if stems.count(file.stem) == 1 else f"{file.parent.name}/{file.stem}": file for file in files}


def _by_number(path: Path) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", path.stem)], path.stem
