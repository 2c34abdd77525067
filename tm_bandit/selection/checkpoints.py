"""Selecting among the .ckpt files of a finished training, with one module in memory."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from tm_bandit._weights_file import plain_name, read_weights
from tm_bandit.errors import ArmError, InputError
from tm_bandit.metrics.base import OptimisticMetric

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

    One module is in memory; the weights of an arm are copied into it when the arm is pulled. Nothing in the files is
    run. A file that is missing, or that does not fit, is an arm that is retired with a warning.

    Args:
        paths: files, or a folder, whose ``*.ckpt`` files are taken in the order of the numbers in their names.
        module_class: the LightningModule class of the files; or a module, into which the weights are put.
        metric: as in :class:`~tm_bandit.ModelSelector`.
        sampler: ``None`` calls ``module.sample(n, **variant)``, a string names another method, a callable is called as
            ``sampler(module, n, generator=generator, **variant)``.
        variants: keyword arguments of the sampler by name; each is an arm of its own.
        checkpoint_key: ``"current_model_state"`` takes the raw weights of files that also hold averaged ones.
        module_kwargs: arguments of ``module_class`` that are not stored in the files.
        kwargs: further arguments of :class:`~tm_bandit.ModelSelector`.

    Raises:
        InputError: if there is no file, or the module has no method to sample with.
    """
    from tm_bandit.selection.selector import ModelSelector

    arms = checkpoint_samplers(
        _named_files(paths),
        module_class,
        sampler,
        variants=variants,
        checkpoint_key=checkpoint_key,
        module_kwargs=module_kwargs,
        device=metric.device,
    )
    selector = ModelSelector(metric, {name: arm for name, arm in arms.items() if arm.path.exists()}, **kwargs)
    for name, arm in arms.items():
        if not arm.path.exists():
            selector.add_arm(name, arm)
            selector.retire_arm(name, f"the file {arm.path} is missing")
            warnings.warn(f"The checkpoint {arm.path} is missing; its arm {name} is retired.", stacklevel=3)
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
) -> dict[str, CheckpointSampler]:
    """Make a sampler of every checkpoint file (times sampler variants), all on one module in memory.

    Args:
        files: the files by the names of their arms; some may be missing.
        module_class: see :func:`selector_from_checkpoints`, also for the other arguments.
        sampler: how to sample from the module.
        variants: keyword arguments of the sampler by name.
        checkpoint_key: which weights of a file.
        module_kwargs: arguments of ``module_class`` that are not stored in the files.
        device: where the module samples.

    Raises:
        InputError: if there is no file, or the module has no method to sample with.
    """
    there = [path for path in files.values() if path.exists()]
    if not there:
        raise InputError(
            f"Expected checkpoint files, but found none of {', '.join(map(str, files.values())) or 'them'}; "
            "give .ckpt files, or a folder with some."
        )
    if isinstance(module_class, nn.Module):
        module = module_class
    else:
        module = _load_module(module_class, there[0], module_kwargs or {})
    shelf = _Shelf(module.to(device).eval())
    table = dict(variants) if variants else {"": {}}
    return {
        f"{name}/{variant}" if variant else name: CheckpointSampler(shelf, path, checkpoint_key, sampler, arguments)
        for name, path in files.items()
        for variant, arguments in table.items()
    }


class _Shelf:
    """The one module in memory, and whose weights it holds."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._held: tuple[Path, str] | None = None

    def put(self, path: Path, key: str) -> nn.Module:
        if self._held != (path, key):
            self._held = None
            put_weights(self.module, read_weights(path, key))
            self._held = (path, key)
        return self.module


class CheckpointSampler:
    """Samples from the module with the weights of one file."""

    def __init__(self, shelf: _Shelf, path: Path, key: str, sampler: SamplerLike, variant: Mapping[str, Any]) -> None:
        self.path = path
        self._key = key
        self._shelf = shelf
        self._sample = bind_sampler(shelf.module, sampler, variant)

    def __call__(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Put the file's weights into the module, unless they are there, and draw a batch."""
        self._shelf.put(self.path, self._key)
        return self._sample(num_samples, generator=generator)


def bind_sampler(
    module: nn.Module,
    sampler: SamplerLike,
    variant: Mapping[str, Any],
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Callable[..., Tensor]:
    """Return a function ``(num_samples, generator)`` that samples from a module.

    A method is given the generator only if it has a parameter of that name, a callable unless it cannot take it; global
    generators are seeded for those that ignore it.

    Args:
        module: the module.
        sampler: ``None`` means its method ``sample``, a string another one; a callable gets the module first.
        variant: keyword arguments for every call.
        context: entered around every call.

    Raises:
        InputError: if the module has no such method.

    Example:
        >>> def sampler(module, num_samples, *, generator, scale):
        ...     return scale * torch.ones(num_samples, 1)
        >>> bind_sampler(nn.Identity(), sampler, {"scale": 2.0})(1, torch.Generator())
        tensor([[2.]])
    """
    if callable(sampler):
        function, first, by_kwargs = sampler, [module], True
    else:
        name = sampler or "sample"
        function, first, by_kwargs = getattr(module, name, None), [], False  # type: ignore[assignment]
        if not callable(function):
            raise InputError(
                f"Expected {type(module).__name__} to have a method `{name}(num_samples)`, but it has none; add it, or "
                "give sampler= a function `(module, num_samples, *, generator)` or the name of another method."
            )
    given = _accepts(function, "generator", by_kwargs)

    def sample(num_samples: int, generator: torch.Generator) -> Tensor:
        extra = {"generator": generator} if given else {}
        with context():
            return function(*first, num_samples, **extra, **variant)

    return sample


@torch.no_grad()
def put_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a module in place, without ``load_state_dict``.

    Args:
        module: the module that shall hold them.
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
    """Return the tensors of a module, each with the value that it shall hold.

    Loading a ``state_dict`` would hand the arm's own tensors to torchmetrics states, whose next update then changes the
    arm. Names that are neither parameters nor buffers are skipped for the same reason. The prefix that
    ``torch.compile`` puts into names is ignored, so files of compiled and plain modules fit each other.

    Args:
        module: the module that shall hold them.
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
        raise ArmError(f"Expected weights for every trainable parameter, but got none for {', '.join(lacking[:3])}.")
    return [(target, value) for target, value, _ in fitting]


def _accepts(function: Callable[..., Any], name: str, by_kwargs: bool) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # callables written in C have no signature
        return False
    return name in parameters or (by_kwargs and any(p.kind is p.VAR_KEYWORD for p in parameters.values()))


def _named_files(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> dict[str, Path]:
    if isinstance(paths, (str, os.PathLike)):
        folder = Path(paths)
        files = sorted(folder.glob("*.ckpt"), key=_by_number) if folder.is_dir() else [folder]
    else:
        files = [Path(path) for path in paths]
    stems = [file.stem for file in files]
    # Files of several trainings may have the same name; then the folder's name tells them apart.
    return {file.stem if stems.count(file.stem) == 1 else f"{file.parent.name}/{file.stem}": file for file in files}


def _by_number(path: Path) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", path.stem)], path.stem


def _load_module(module_class: Any, path: Path, module_kwargs: Mapping[str, Any]) -> nn.Module:
    if not hasattr(module_class, "load_from_checkpoint"):
        raise InputError(f"Expected module_class to be a LightningModule class or a module, but got {module_class!r}.")
    arguments = dict(module_kwargs)
    if "weights_only" in inspect.signature(module_class.load_from_checkpoint).parameters:
        arguments["weights_only"] = True
    module: nn.Module = module_class.load_from_checkpoint(path, map_location="cpu", **arguments)
    return module
