"""What metrics over a feature network share: the network, real samples, and a bound that is chosen once."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from tm_bandit._arguments import check_choice, check_flag
from tm_bandit._device import exact_device
from tm_bandit._exceptions import InputError, NotReadyError
from tm_bandit.bounds.bound import Bound
from tm_bandit.extractors import Extractor, NetworkHandle, resolve
from tm_bandit.functional.confidence import WIDTHS
from tm_bandit.functional.crossfit import FITTINGS
from tm_bandit.metrics._attributes import Setting
from tm_bandit.metrics.base import OptimisticMetric, exact_arithmetic
from tm_bandit.metrics.traits import Traits

M = TypeVar("M", bound="FeatureMetric")


class View(Protocol):
    """What the samples so far say without a bound."""

    def estimate(self) -> float:
        """Return the plug-in loss."""

    def debiased(self) -> tuple[float, float]:
        """Return the near-unbiased loss and its standard error."""


class FeatureMetric(OptimisticMetric):
    """A metric over the rows of a feature network, which copies share, which follows ``.to``, and which is not saved.

    Subclasses say in ``bound_table`` which bounds they have, keep rows or sums in :meth:`_add`, and show them to the
    bound in :meth:`_view`.

    Args:
        feature: the feature network, see the subclasses.
        bound: a name out of ``bound_table``.
        width: confidence sequence of the witness bound.
        fitting: how witnesses are kept independent of what they score.
        normalize: whether images are floats in [0, 1] rather than uint8.
        reset_real_features: whether :meth:`reset` also forgets real samples.
        weights_path: file with the weights of a named network.
        antialias: whether Inception's resize smooths before it samples.
        kwargs: see :class:`~tm_bandit.metrics.base.OptimisticMetric`.
    """

    bound_table: ClassVar[Mapping[str, Bound[Any]]] = {}
    #: States of real samples.
    real_states: tuple[str, ...] = ()
    #: What :attr:`traits` says about the need of real samples.
    _needs_reference: ClassVar[Any] = "none"

    #: The attribute through which torchmetrics' ``FeatureShare`` finds, and replaces, the network.
    feature_network: str = "inception"
    inception: Any
    _extractor: Extractor

    width = Setting(lambda name, value: check_choice(name, value, WIDTHS))
    fitting = Setting(lambda name, value: check_choice(name, value, FITTINGS))

    def __init__(
        self,
        feature: Any,
        bound: str,
        width: str,
        fitting: str,
        normalize: bool,
        reset_real_features: bool,
        weights_path: str | os.PathLike[str] | None,
        antialias: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._bound_name = check_choice("bound", bound, self.bound_table)
        self.width = width
        self.fitting = fitting
        self.reset_real_features = check_flag("reset_real_features", reset_real_features)
        self._extractor = resolve(feature, weights_path=weights_path, normalize=normalize, antialias=antialias)
        network = self._extractor.network
        self.inception = None if network is None else NetworkHandle(network)

    @abstractmethod
    def check_rows(self, rows: Tensor, real: bool = False) -> Tensor:
        """Return ``rows`` if they can be used, else raise ``InputError``; touches no state."""

    @abstractmethod
    def _view(self) -> View:
        """Return what the states say, as they are; raise ``NotReadyError`` if they are too few."""

    @abstractmethod
    def _add(self, rows: Tensor, real: bool) -> None:
        """Put checked rows into the states."""

    @property
    def bound(self) -> str:
        """Name of the bound; to be changed at any time, unless rows would be needed that the present one lets go of."""
        return self._bound_name

    @bound.setter
    def bound(self, name: str) -> None:
        wanted = self.bound_table[check_choice("bound", name, self.bound_table)]
        if wanted.keeps_rows != self._bound.keeps_rows and self.num_samples:
            raise InputError(
                f"Expected a bound that needs the same rows as {self.bound!r}, because there are samples already, but "
                f"got {name!r}; call reset() first."
            )
        self._bound_name, self._computed = name, None

    @property
    def _bound(self) -> Bound[Any]:
        return self.bound_table[self._bound_name]

    @property
    def traits(self) -> Traits:
        """What the engine must know of this metric, with the bound it has."""
        return Traits(
            higher_is_better=bool(self.higher_is_better),
            centre="optimistic",
            guarantee=self._bound.guarantee,
            reference=self._needs_reference,
            bound=self._bound_name,
            standard_errors=self._bound.standard_errors,
        )

    @property
    def extractor_name(self) -> str:
        """Name of the feature network, as reference files record it."""
        return self._extractor.name

    def extract(self, inputs: Any) -> Tensor:
        """Turn a batch of samples into rows; touches no state."""
        # The network itself, or the cache that `FeatureShare` put in its place.
        return self._extractor(inputs, self.inception)

    def update(self, imgs: Any, real: bool = False) -> None:
        """Add a batch of samples.

        Args:
            imgs: what the feature network takes: images, or whatever a module or callable understands.
            real: whether they are real samples.
        """
        self._add(self.check_rows(self.extract(imgs), real), real)

    def update_rows(self, rows: Tensor) -> None:
        """Check and add rows of generated samples (what :meth:`extract` returned): the same as one ``update``."""
        self._add_rows(rows, False)

    def _add_rows(self, rows: Tensor, real: bool) -> None:
        self._add(self.check_rows(rows, real), real)
        self._note_update()

    def forward(self, imgs: Any, real: bool = False) -> Any:
        """Add a batch of generated samples and return the optimistic score of this batch alone.

        Args:
            imgs: as in :meth:`update`.
            real: must be false: a batch of real samples has no score.

        Raises:
            InputError: if the samples are real ones.
            NotReadyError: if the batch is too small for a score; nothing is added then, use ``update`` for it.
        """
        if real:
            raise InputError(
                "Expected generated samples in `forward`, but got real ones; use `update(..., real=True)`."
            )
        return super().forward(imgs)

    def reset(self) -> None:
        """Forget all samples; real ones only if ``reset_real_features`` is set."""
        states = {} if self.reset_real_features else {name: getattr(self, name) for name in self.real_states}
        kept = {name: list(state) if isinstance(state, list) else state for name, state in states.items()}
        super().reset()
        vars(self).update(kept)

    def losses(self, fields: Iterable[str]) -> dict[str, float]:
        """Return the asked-for fields of ``ArmStats``, computing nothing else.

        For bounds without a witness, ``witness`` is the bound's own plug-in and ``stderr`` is 0.

        Args:
            fields: names out of ``loss_fields``.

        Raises:
            InputError: if there is no such field.
            NotReadyError: if there are too few samples, or no reference.
        """
        wanted = list(fields)
        unknown = [name for name in wanted if name not in self.loss_fields]
        if unknown:
            raise InputError(f"Expected fields out of {self.loss_fields}, but got {unknown}.")
        found: dict[str, float] = {}
        if not wanted:
            return found
        bound = self._bound
        with self._synced():
            view = self._view()
            if "optimistic" in wanted:
                found["optimistic"] = bound.optimistic(view)
            if "pessimistic" in wanted:
                found["pessimistic"] = bound.pessimistic(view)
            if "estimate" in wanted:
                found["estimate"] = view.estimate()
            if "witness" in wanted or "stderr" in wanted:
                found["witness"], found["stderr"] = bound.centre(view)
            if "debiased" in wanted or "debiased_stderr" in wanted:
                found["debiased"], found["debiased_stderr"] = view.debiased()
        return {name: found[name] for name in wanted}

    def _ends(self) -> tuple[float, float]:
        return self._bound.ends(self._view())

    @property
    def min_samples(self) -> int:
        """The fewest samples with which the bound says anything at all."""
        return self._bound.min_samples

    @property
    def burn_in_met(self) -> bool:
        """Whether there are enough samples (on this rank), and a reference if need be, for the bound's guarantee."""
        if self.num_samples < self.min_samples:
            return False
        with exact_arithmetic():
            try:
                return self._bound.burn_in_met(self._view())
            except NotReadyError:
                return False

    def fork(self: M, delta: float | None = None, device: str | torch.device | None = None) -> M:
        """Return a copy for one arm: statistics of its own, no network, everything else that is heavy shared.

        Args:
            delta: failure probability of the copy's bounds; ``None`` leaves this metric's.
            device: where its statistics live; ``None`` means with this metric's.
        """
        copy = super().fork(delta)
        # Rows are extracted by the template, so moving an arm must not move the network that all share.
        held = copy._extractor
        copy._extractor = Extractor(None, held.name, num_features=held.num_features)
        copy.inception = None
        return copy if device is None else copy.to(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        """Move states and network together; states stay on the CPU where the target has no float64."""
        target = fn(torch.zeros(1, device=self.device)).device
        if exact_device(target) == target:
            super()._apply(fn, exclude_state)
        self._extractor.follow(target)
        return self
