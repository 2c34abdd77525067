"""A user's module: how one is made from files, given the weights of an arm, and sampled from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tm_bandit._arguments import check_name
from tm_bandit._weights_file import plain_name
from tm_bandit.errors import ArmError, InputError, brief
from tm_bandit.execution.conditions import check_conditioned
from tm_bandit.execution.draw import accepts

#: A callable ``(module, num_samples, *, generator, **variant)``, the name of a method, or ``None`` for ``sample``.
SamplerLike = Callable[..., Tensor] | str | None


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
