"""Selecting among the .ckpt files of a finished training, with one module in memory."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from tm_bandit._arguments import check_name, check_options, check_path
from tm_bandit._files import Stamp, stamp_of
from tm_bandit._weights_file import plain_name, read_weights
from tm_bandit.errors import ArmError, InputError, brief, warn
from tm_bandit.execution.conditions import check_conditioned
from tm_bandit.execution.draw import accepts
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.selection.setup import check_metric

if TYPE_CHECKING:
    from tm_bandit.selection.selector import ModelSelector

#: A callable ``(module, num_samples, *, generator, **variant)``, the name of a method, or ``None`` for ``sample``.
SamplerLike = Callable[..., Tensor] | str | None


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


def bind_sampler(
    module: nn.Module,
    sampler: SamplerLike,
    variant: Mapping[str, Any],
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    conditioned: bool = False,
) -> Callable[..., Tensor]:
    """Return a function ``(num_samples, generator, **conditions)`` that samples from a module.

    A method is given the generator only if it has a parameter of that name, a callable unless it cannot take it; global
    generators are seeded for those that ignore it.

    Args:
        module: the module.
        sampler: ``None`` means its method ``sample``, a string another one; a callable gets the module first.
        variant: keyword arguments for every call.
        context: entered around every call.
        conditioned: whether it has to take ``conditions=``.

    Raises:
        InputError: if the module has no such method, or it takes no conditions.

    Example:
        >>> def sampler(module, num_samples, *, generator, scale):
        ...     return scale * torch.ones(num_samples, 1)
        >>> bind_sampler(nn.Identity(), sampler, {"scale": 2.0})(1, torch.Generator())
        tensor([[2.]])
    """
    if callable(sampler):
        function, first, by_kwargs = sampler, [module], True
    else:
        name = "sample" if sampler is None else check_name("the method to sample with", sampler)
        function, first, by_kwargs = getattr(module, name, None), [], False  # type: ignore[assignment]
        if not callable(function):
            raise InputError(
                f"Expected {type(module).__name__} to have a method `{name}(num_samples)`, but it has none; add it, or "
                "give sampler= a function `(module, num_samples, *, generator)` or the name of another method."
            )
    if conditioned:
        check_conditioned(function)
    # No closure, so that it can be sent to another process: samplers that are sent together share one module there.
    return partial(_sample, function, first, accepts(function, "generator", by_kwargs), context, dict(variant))


def _sample(
    function: Callable[..., Tensor],
    first: list[nn.Module],
    given: bool,
    context: Callable[[], AbstractContextManager[Any]],
    variant: Mapping[str, Any],
    num_samples: int,
    generator: torch.Generator,
    **conditions: Any,
) -> Tensor:
    extra = {"generator": generator} if given else {}
    with context():
        return function(*first, num_samples, **extra, **conditions, **variant)


@torch.no_grad()
def put_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a module in place, without ``load_state_dict``.

    Args:
        module: the module that will hold them.
        weights: tensors by their names in the module's ``state_dict``.

    Raises:
        ArmError: see :func:`match_weights`.

    Example:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> put_weights(layer, {"weight": torch.ones(1, 2)})
        >>> layer.weight.tolist()
        [[1.0, 1.0]]
    """
    for target, value in match_weights(module, weights):
        target.data.copy_(value)


def match_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return the tensors of a module, each with the value that it should hold.

    Loading a ``state_dict`` would hand the arm's own tensors to torchmetrics states, whose next update then changes the
    arm. Names that are neither parameters nor buffers are skipped for the same reason. The prefix that
    ``torch.compile`` puts into names is ignored, so files of compiled and plain modules fit each other.

    Args:
        module: the module that will hold them.
        weights: tensors by their names in the module's ``state_dict``.

    Raises:
        ArmError: if a shape differs, or if a trainable parameter of the module is not among the weights.
    """
    targets: dict[str, Tensor] = {plain_name(name): p for name, p in module.named_parameters(remove_duplicate=False)}
    targets.update({plain_name(name): buffer for name, buffer in module.named_buffers(remove_duplicate=False)})
    fitting = [
        (targets[plain_name(name)], value, name) for name, value in weights.items() if plain_name(name) in targets
    ]
    for target, value, name in fitting:
        if target.shape != value.shape:
            raise ArmError(
                f"Expected {name} of shape {tuple(target.shape)}, but the weights have {tuple(value.shape)}; "
                "they belong to another architecture."
            )
    covered = {id(target) for target, _, _ in fitting}
    lacking = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in covered]
    if lacking:
        raise ArmError(
            f"Expected weights for every trainable parameter, but got none for {', '.join(lacking[:3])}; save them too."
        )
    return [(target, value) for target, value, _ in fitting]


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


def make_module(module_class: Any, paths: Sequence[Path], module_kwargs: Mapping[str, Any]) -> nn.Module:
    """Return a module into which the weights of some files can be put.

    Args:
        module_class: a LightningModule class, another class of modules or a function that returns one, or a module.
        paths: the files. Lightning's own (.ckpt) know its arguments; the first that it can be made from is used, the
            others are arms that will fail.
        module_kwargs: arguments of ``module_class`` that are not stored in the files.

    Raises:
        InputError: if no module can be made.
    """
    if isinstance(module_class, nn.Module):
        return module_class
    known = [path for path in paths if path.suffix == ".ckpt"]
    if not known or not hasattr(module_class, "load_from_checkpoint"):
        return _build_module(module_class, module_kwargs)
    arguments = dict(module_kwargs)
    if "weights_only" in inspect.signature(module_class.load_from_checkpoint).parameters:
        arguments["weights_only"] = True
    errors: list[Exception] = []
    for path in known:
        try:
            module: nn.Module = module_class.load_from_checkpoint(path, map_location="cpu", **arguments)
            return module
        except Exception as error:  # noqa: PERF203 - whatever torch or the module raises
            errors.append(error)
    raise InputError(
        f"Expected {module_class.__name__} to be made from {known[0]} without a Trainer, but got {brief(errors[0])}; "
        "check the file, module_kwargs and configure_model."
    ) from errors[0]


def _build_module(module_class: Any, module_kwargs: Mapping[str, Any]) -> nn.Module:
    """Make a module without a file."""
    try:
        module = module_class(**module_kwargs) if callable(module_class) else None
    except Exception as error:  # whatever the module raises for its arguments
        raise InputError(
            f"Expected to make a {getattr(module_class, '__name__', module_class)} of {dict(module_kwargs)}, but got "
            f"{brief(error)}; give module_kwargs=."
        ) from error
    if not isinstance(module, nn.Module):
        raise InputError(
            f"Expected module_class to be a LightningModule class or a module, but got {module_class!r}; a function "
            "that returns a module works too."
        )
    return module
