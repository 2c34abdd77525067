"""What metrics over a feature network share: the network, real samples, and a bound that is chosen once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from tm_bandit._arguments import check_choice, check_flag
from tm_bandit.bounds.bound import Bound
from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.extractors import Extractor, NetworkHandle
from tm_bandit.functional.confidence import WIDTHS
from tm_bandit.functional.crossfit import FITTINGS
from tm_bandit.metrics._attributes import Setting
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.metrics.row_log import exact_arithmetic
from tm_bandit.metrics.traits import Traits


class FeatureMetric(OptimisticMetric):
    """A metric over the rows of a feature network, which is shared by copies, follows ``.to`` and is not saved.

    Subclasses list their bounds in ``bound_table``, store rows or sums in :meth:`add_rows`, and present them to the
    bound in :meth:`_view`.

    Args:
        bound: a name from ``bound_table``.
        width: confidence sequence of the witness bound.
        fitting: how witnesses are kept independent of what they score.
        reset_real_features: whether :meth:`reset` also forgets real samples.
        kwargs: see :class:`~tm_bandit.metrics.base.OptimisticMetric`.
    """

    bound_table: ClassVar[Mapping[str, Bound]] = {}
    #: States of real samples.
    real_states: tuple[str, ...] = ()
    #: What :attr:`traits` says about the need for real samples.
    _needs_reference: ClassVar[Any] = "none"
    #: What :attr:`traits` says about the loss called ``witness``.
    _centre: ClassVar[Any] = "optimistic"

    #: The attribute through which torchmetrics' ``FeatureShare`` finds, and replaces, the network.
    feature_network: str = "inception"
    inception: Any
    extractor: Extractor

    width: Any = Setting(lambda name, value: check_choice(name, value, WIDTHS))
    fitting = Setting(lambda name, value: check_choice(name, value, FITTINGS))

    def __init__(self, bound: str, width: str, fitting: str, reset_real_features: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._bound_name = check_choice("bound", bound, self.bound_table)
        self.width = width
        self.fitting = fitting
        self.reset_real_features = check_flag("reset_real_features", reset_real_features)

    def _hold(self, extractor: Extractor) -> None:
        """Take a feature network; last in the constructor, because it may be slow to load."""
        self.extractor = extractor
        self.inception = None if extractor.network is None else NetworkHandle(extractor.network)

    @abstractmethod
    def check_rows(self, rows: Tensor, real: bool = False) -> Tensor:
        """Return ``rows`` if they can be used, else raise ``InputError``; touches no state."""

    @abstractmethod
    def _view(self) -> Any:
        """Return a view of the present states for the bound; raise ``NotReadyError`` if there are too few samples.

        Besides what the bound needs, it has ``estimate()`` and ``debiased()``, with a standard error, as losses.
        """

    @abstractmethod
    def add_rows(self, rows: Tensor, real: bool = False) -> None:
        """Add rows, as :meth:`check_rows` returned them, to the states, without further checks."""

    @property
    def bound(self) -> str:
        """Name of the bound; can be changed at any time, unless the new one needs rows that this one discards."""
        return self._bound_name

    @bound.setter
    def bound(self, name: str) -> None:
        wanted = self.bound_table[check_choice("bound", name, self.bound_table)]
        if wanted.keeps_rows != self._bound.keeps_rows and self.num_samples:
            raise InputError(f"Expected the same rows as {self.bound!r} needs, but got {name!r}; call reset() first.")
        self._bound_name, self._computed = name, None

    @property
    def _bound(self) -> Bound:
        return self.bound_table[self._bound_name]

    @property
    def traits(self) -> Traits:
        """What the engine must know about this metric with its bound."""
        bound, higher = self._bound, bool(self.higher_is_better)
        said = (bound.standard_errors, bound.certifies_from, bound.interval)
        return Traits(higher, self._centre, bound.guarantee, self._needs_reference, self._bound_name, *said)

    @property
    def extractor_name(self) -> str:
        """Name of the feature network, as reference files record it."""
        return self.extractor.name

    def extract(self, inputs: Any) -> Tensor:
        """Turn a batch of samples into rows; touches no state."""
        # The network itself, or the cache that `FeatureShare` put in its place.
        return self.extractor(inputs, self.inception)

    def update(self, imgs: Any, real: bool = False) -> None:
        """Add a batch of samples.

        Args:
            imgs: what the feature network takes: images, or whatever a module or callable understands.
            real: whether they are real samples.
        """
        self.add_rows(self.check_rows(self.extract(imgs), real), real)

    def update_rows(self, rows: Tensor, real: bool = False) -> None:
        """Check and add rows (what :meth:`extract` returned): the same as one ``update``.

        Args:
            rows: the rows.
            real: whether they belong to real samples.
        """
        self.add_rows(self.check_rows(rows, real), real)
        self.note_update()

    def forward(self, imgs: Any, real: bool = False) -> Any:
        """Add a batch of generated samples and return the optimistic score of this batch alone.

        Args:
            imgs: as in :meth:`update`.
            real: must be false: a batch of real samples has no score.

        Raises:
            InputError: if the samples are real ones.
            NotReadyError: if the batch is too small for a score; nothing is added then; use ``update`` instead.
        """
        if check_flag("real", real):
            raise InputError("Expected generated samples in `forward`, but got real ones; use `update(real=True)`.")
        return super().forward(imgs)

    def reset(self) -> None:
        """Forget all samples; real ones only if ``reset_real_features`` is set."""
        states = {} if self.reset_real_features else {name: getattr(self, name) for name in self.real_states}
        kept = {name: list(state) if isinstance(state, list) else state for name, state in states.items()}
        super().reset()
        vars(self).update(kept)

    def losses(self, fields: Iterable[str]) -> dict[str, float]:
        """Return the requested fields of ``ArmStats``, computing nothing else.

        For bounds without a witness, ``witness`` is the bound's own plug-in and ``stderr`` is 0.

        Args:
            fields: names from ``loss_fields``.

        Raises:
            InputError: if there is no such field.
            NotReadyError: if there are too few samples, or no reference.
        """
        wanted = self._check_fields(fields)
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
        """The fewest samples for which the bound is informative."""
        return self._bound.min_samples

    @property
    def burn_in_met(self) -> bool:
        """Whether there are enough samples (on this rank), and a reference if needed, for the bound's guarantee."""
        if self.num_samples < self.min_samples:
            return False
        with exact_arithmetic(self._is_narrow):
            try:
                return self._bound.burn_in_met(self._view())
            except NotReadyError:
                return False

    def _share(self, template: Any) -> None:
        # Rows are extracted by the template, so moving an arm must not move the network that all share.
        self._hold(Extractor(None, self.extractor.name, num_features=self.extractor.num_features))

    def _follow(self, device: torch.device) -> None:
        self.extractor.follow(device)
