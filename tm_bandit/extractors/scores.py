"""From the ``score=`` of a mean to one number per sample, whatever the score is made of."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from tm_bandit._arguments import check_flag
from tm_bandit._device import form_of
from tm_bandit.errors import InputError
from tm_bandit.extractors.extractor import evaluating

#: Names of a second argument that takes conditions, even if it has a default.
_NAMES = ("conditions", "prompts", "labels", "text", "target")


class Score:
    """A score of single samples that any number of metrics share: never copied, never part of a ``state_dict``.

    Args:
        function: ``samples -> (n,)`` or ``(samples, conditions) -> (n,)``: a callable, a module, or a torchmetrics
            metric. A metric that returns one value for a batch is asked sample by sample, and is reset afterwards.
        conditional: whether it takes the conditions (prompts, labels, reference images); ``None`` looks at its
            signature for a second argument that has no default, or that is called ``conditions``, ``prompts``,
            ``labels``, ``text`` or ``target``.

    Raises:
        InputError: if it cannot be called.

    Example:
        >>> score = Score(lambda images, prompts: torch.tensor([float(len(text)) for text in prompts]))
        >>> score.conditional, score(torch.zeros(2, 3, 8, 8), ["a cat", "dogs"])
        (True, tensor([5., 4.]))
    """

    def __init__(self, function: Callable[..., Any], conditional: bool | None = None) -> None:
        if not callable(function):
            raise InputError(
                f"Expected `score` to be a callable, a module or a torchmetrics metric, but got a "
                f"{type(function).__name__}; leave it out and use `update_scores` for numbers computed elsewhere."
            )
        if isinstance(function, type):
            raise InputError(
                f"Expected `score` to be an object that takes samples, but got the class {function.__name__}; make one "
                f"of it: {function.__name__}(...)."
            )
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        wanted = _wants_conditions(function) if conditional is None else conditional
        self.conditional = check_flag("conditional", wanted)
        self._one_by_one = False
        self._turn = threading.Lock()

    def __call__(self, samples: Any, conditions: Sequence[Any] | None = None) -> Tensor:
        """Return the scores of a batch, shape ``(n,)``, with gradients off and modules in evaluation mode.

        Args:
            samples: a batch.
            conditions: one per sample.

        Raises:
            InputError: if the score takes conditions and there are none, or it returns anything but one number per
                sample.
        """
        if self.conditional and (conditions is None or (len(samples) and not len(conditions))):
            raise InputError(
                f"Expected `conditions` (prompts, labels, ...), because the score {self.name!r} takes them, but got "
                "none; give `update(samples, conditions)`, or `conditions=` to the selector."
            )
        count = len(samples)
        if self.conditional and conditions is not None and len(conditions) != count:
            raise InputError(f"Expected one condition per sample, but got {len(conditions)} for {count} samples.")
        if isinstance(conditions, tuple):
            conditions = list(conditions)
        given = (samples, conditions) if self.conditional else (samples,)
        with torch.no_grad():
            if isinstance(self.function, Metric):
                return self._check(self._from_metric(self.function, given, count), count)
            values = self.function
            if not isinstance(values, nn.Module):
                return self._check(values(*map(_stacked, given)), count)
            weight = next((p for p in values.parameters() if p.is_floating_point()), None)
            with evaluating(values):
                return self._check(values(*(_at(_stacked(part), weight) for part in given)), count)

    def _from_metric(self, metric: Metric, given: tuple[Any, ...], count: int) -> Any:
        # What a metric is asked goes through its states, so threads take turns.
        with self._turn, evaluating(metric):
            try:
                value = None if self._one_by_one and count > 1 else metric(*map(_stacked, given))
                if count > 1 and (value is None or (isinstance(value, Tensor) and value.numel() == 1)):
                    self._one_by_one = True
                    singles = [[part[i : i + 1] for part in given] for i in range(count)]
                    value = torch.stack([torch.as_tensor(metric(*map(_stacked, one))).reshape(()) for one in singles])
            finally:
                metric.reset()
        return value

    def _check(self, values: Any, count: int) -> Tensor:
        if isinstance(values, Tensor) and values.shape in ((count, 1), ()) and values.numel() == count:
            values = values.reshape(count)
        if not isinstance(values, Tensor) or tuple(values.shape) != (count,):
            raise InputError(
                f"Expected the score {self.name!r} to return one number per sample, a tensor of shape ({count},), but "
                f"got {form_of(values)}; do not average over the batch."
            )
        return values.detach()

    def to(self, device: torch.device) -> None:
        """Move the module inside, if there is one, for all metrics that share it."""
        if isinstance(self.function, nn.Module):
            self.function.to(device)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the lock to this process."""
        return {name: value for name, value in vars(self).items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._turn = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Score:
        """Return the score itself: twenty arms hold one network."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


def _wants_conditions(function: Callable[..., Any]) -> bool:
    # Modules and metrics are called through wrappers that take anything.
    inner = function.update if isinstance(function, Metric) else function
    inner = inner.forward if isinstance(inner, nn.Module) else inner
    try:
        parameters = list(inspect.signature(inner).parameters.values())
    except (TypeError, ValueError):
        return False
    parameters = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][1:2]
    return any(p.default is p.empty or p.name in _NAMES for p in parameters)


def _stacked(part: Any) -> Any:
    """Return a list of tensors as one tensor, and anything else as it is."""
    tensors = isinstance(part, (list, tuple)) and len(part) > 0 and all(isinstance(item, Tensor) for item in part)
    return torch.stack(tuple(part)) if tensors else part


def _at(part: Any, weight: Tensor | None) -> Any:
    """Return a tensor on the device of the network's weights, in their dtype if it is a floating one."""
    if weight is None or not isinstance(part, Tensor):
        return part
    return part.to(weight.device, weight.dtype if part.is_floating_point() else None)
