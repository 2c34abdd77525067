"""The weights of an arm: taken from the live module, put into it, and taken out again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor, nn
from typing_extensions import Self

from tm_bandit.selection.modules import match_weights

Weights = dict[str, Tensor]

#: Tensors of the module, each with the value that it should hold.
Fitted = list[tuple[Tensor, Tensor]]


M = TypeVar("M", bound=nn.Module)


class BorrowedModule(Generic[M]):
    """Lends the live module to samplers and restores it bit by bit afterwards.

    The module is used in place: its Parameters keep their identity (the optimizer and the buckets of DDP hold them),
    nothing is recompiled, and no second copy is needed on the device. The values of all parameters and buffers,
    including non-persistent ones, are remembered on the CPU, as are the gradients of a running accumulation, which are
    set aside, the ``requires_grad`` flags and the training modes.

    Not covered: plain Python attributes that a sampler changes, and generators that the user holds.

    Args:
        module: the module that is being trained.

    Example:
        >>> from torch import nn, ones
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> before = layer.weight.item()
        >>> with BorrowedModule(layer) as borrowed:
        ...     borrowed.put(borrowed.fit({"weight": 2 * ones(1, 1)}))
        ...     layer.weight.item()
        2.0
        >>> layer.weight.item() == before
        True
    """

    def __init__(self, module: M) -> None:
        self.module = module

    def __enter__(self) -> Self:
        # A sampler may bind a new tensor to a buffer's name, so the tables of names are remembered with the values.
        tables: list[dict[str, Any]] = []
        for part in self.module.modules():
            tables += [part._parameters, part._buffers]
        self._modes = [(part, part.training) for part in self.module.modules()]
        self._owners = [(table, dict(table)) for table in tables]
        unique = {id(tensor): tensor for _, names in self._owners for tensor in names.values() if tensor is not None}
        self._values = [(tensor, _copy(tensor)) for tensor in unique.values()]
        self._grads = [(p, p.grad, p.requires_grad) for p in unique.values() if isinstance(p, nn.Parameter)]
        persistent = {id(tensor) for tensor in persistent_tensors(self.module).values()}
        self._transient = [(tensor, value) for tensor, value in self._values if id(tensor) not in persistent]
        for parameter, _, _ in self._grads:
            parameter.grad = None
        self.module.eval()
        self._modes_inside = [(part, part.training) for part, _ in self._modes]
        return self

    def __exit__(self, *_: object) -> None:
        self._reset(self._values, self._modes)
        for parameter, grad, requires_grad in self._grads:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad

    def fit(self, weights: Mapping[str, Tensor]) -> Fitted:
        """Find the place of each of these weights in the module, once for all the times that they are put there.

        Args:
            weights: tensors by their names in the module's ``state_dict``.

        Raises:
            ArmError: if they do not fit the module.
        """
        self._rebind()
        return match_weights(self.module, weights)

    def put(self, weights: Fitted) -> None:
        """Let the module compute with these weights from now on, in evaluation mode.

        Buffers that are not part of a ``state_dict`` get their live values back, so that what one sampler did to them
        does not reach the next.

        Args:
            weights: what :meth:`fit` returned.
        """
        self._reset([*self._transient, *weights], self._modes_inside)

    def _rebind(self) -> None:
        for table, names in self._owners:
            table.clear()
            table.update(names)

    def _reset(self, values: Fitted, modes: list[tuple[nn.Module, bool]]) -> None:
        self._rebind()
        for tensor, value in values:
            tensor.data.copy_(value)
        for part, training in modes:
            if part.training != training:
                part.training = training

    def live_by_alias(self) -> Weights:
        """Return what :meth:`live` returns, with tied weights under all their names."""
        values = {id(tensor): value for tensor, value in self._values}
        module = self.module
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        return {name: values[id(tensor)] for name, tensor in named if id(tensor) in values}

    def live(self) -> Weights:
        """Return what the module held when it was borrowed, by the names of its ``state_dict``; nothing is copied."""
        values = {id(tensor): value for tensor, value in self._values}
        return {name: values[id(tensor)] for name, tensor in persistent_tensors(self.module).items()}


#: The module that is being trained, while it is lent.
Borrowed = BorrowedModule[LightningModule]


def persistent_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers of a module, each once (tied weights appear under one name).

    The states of torchmetrics are left out although ``state_dict`` may list them: they are not weights, and loading
    them would share memory between the module and the arm.

    Args:
        module: any module.

    Example:
        >>> list(persistent_tensors(nn.BatchNorm1d(2)))
        ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for prefix, part in module.named_modules():
        buffers = {name: part._buffers[name] for name in part._buffers if name not in part._non_persistent_buffers_set}
        for name, tensor in {**part._parameters, **buffers}.items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                found[f"{prefix}.{name}" if prefix else name] = tensor
    return found


def averaging_callback(trainer: Trainer) -> WeightAveraging | None:
    """Return the Trainer's WeightAveraging callback, if there is one.

    Args:
        trainer: the running Trainer.
    """
    return next((callback for callback in trainer.callbacks if isinstance(callback, WeightAveraging)), None)  # type: ignore[attr-defined]


def averaged_weights(trainer: Trainer) -> Weights | None:
    """Return a copy of the averaged weights, or ``None`` while there is no average yet.

    Before its first update, the average is the untrained model. This is the only place that reaches into Lightning's
    callback, which offers no public access to its model.

    Args:
        trainer: the running Trainer.
    """
    callback = averaging_callback(trainer)
    model = None if callback is None else callback._average_model
    if model is None or int(model.n_averaged) == 0:
        return None
    return {name: _copy(tensor) for name, tensor in persistent_tensors(model.module).items()}


def _copy(tensor: Tensor) -> Tensor:
    # On the CPU: a second copy of a large network may not fit on its device.
    return tensor.detach().to("cpu", copy=True)
