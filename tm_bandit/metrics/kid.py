"""The kernel distance of a generator (KID, CMMD), streaming, with an optimistic bound."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tm_bandit._arguments import check_choice, check_count, check_number
from tm_bandit._device import as_float64, form_of
from tm_bandit.bounds.bound import Bound, NoBound
from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.extractors import Extractor
from tm_bandit.functional.confidence import WidthKind
from tm_bandit.functional.kernels import GaussianKernel, Kernel, PolynomialKernel
from tm_bandit.metrics._attributes import Setting, state
from tm_bandit.metrics.kernel_view import HajekBound, KernelView
from tm_bandit.metrics.referenced_metric import ReferencedMetric
from tm_bandit.metrics.row_log import RowLog, as_list, exact_arithmetic
from tm_bandit.reference import ReferenceStatistics
from tm_bandit.reference_rows import ReferenceRows

#: Kernel values beyond this have fourth powers, of which their noise is computed, that are not finite.
_LARGEST_KERNEL = 1e70


class OptimisticKID(ReferencedMetric):
    r"""Kernel distance between generated and real samples, with an optimistic lower bound.

    .. math::
        \mathrm{KID} = \frac{\sum_{i \ne j} k(x_i, x_j)}{n(n-1)} - \frac{2 \sum_{i, a} k(x_i, y_a)}{n m}
            + \frac{\sum_{a \ne b} k(y_a, y_b)}{m(m-1)}

    where :math:`x` are features of generated samples, :math:`y` those of real ones and :math:`k` is a kernel: cubic for
    KID, Gaussian for CMMD (:meth:`cmmd`). It is the unbiased squared maximum mean discrepancy of *all* rows (what
    torchmetrics and torch-fidelity average over random subsets), so it may be negative, and arms with different
    numbers of samples can be compared by it: :meth:`estimate` and :meth:`debiased` are the same. :meth:`compute` is
    *optimistic*: with probability ``1 - delta`` it is not above the true distance.

    What the interval promises. Up to second-order terms, the distance is the mean of one number per generated row (its
    Hajek projection, :meth:`row_scores`), and the interval is the confidence sequence of that mean: looking after every
    sample is allowed, and each end may fail with probability ``delta / 2``. It is asymptotic: infinite below 10
    samples, and up to about 50 a good approximation; no arm is certified below 200, because a rare far mode may not
    have shown. Near the reference the statistic is *degenerate*: the projection vanishes, and what is left is
    second-order and skewed. The bound therefore adds that variance to the projection's, which keeps it valid and makes
    it wide; :attr:`is_degenerate` says when that happens. The reference's rows are taken as they are: the truth is the
    distance to them, and they are the same for all arms.

    A row is compared with the reference once, when it arrives, and with every other row of its arm once. An arm keeps
    its rows; the reference's rows exist once, whatever the number of arms.

    As input to ``forward`` and ``update`` the metric accepts samples (images for the named extractors) and
    ``real=False``; as output of ``forward`` and ``compute`` it returns a scalar tensor.

    Args:
        feature: the feature extractor, as in :class:`~tm_bandit.OptimisticFID`.
        reference: statistics of the real data with their rows (``ReferenceStatistics.from_features(..., keep_rows=
            True)``), or a path to an ``.npz`` file with ``feats``, as clean-fid and ``tm-bandit stats --rows`` write
            it; if left out, real samples are fed with ``update(images, real=True)``.
        kernel: ``"polynomial"``, ``"rbf"``, or a kernel of :mod:`tm_bandit.functional`.
        bound: ``"hajek"`` (see above), or ``"none"``: ``compute`` is the plain estimate.
        delta: failure probability of the bound.
        horizon: number of looks at which the bound must hold together; ``delta`` is divided by it.
        degree: degree of the polynomial kernel.
        gamma: its factor; ``None`` means one over the dimension.
        coef: its constant.
        sigma: width of the Gaussian kernel.
        scale: factor by which the distance is multiplied.
        width: confidence sequence of the bound: ``"lil"``, or ``"mixture"``, which is narrower by a quarter; with the
            long tails of a cubic kernel its upper end fails in up to 7% of the runs where 5% are promised.
        normalize: whether images are floats in [0, 1] rather than uint8.
        reset_real_features: whether :meth:`reset` also forgets real samples.
        feature_extractor_weights_path: file with the weights of a named network.
        antialias: whether Inception's resize smooths before it samples.
        kwargs: see torchmetrics' ``Metric``.

    Raises:
        InputError: if an argument is out of its range, or the reference has no rows or belongs to another extractor.

    Example:
        >>> import torch
        >>> from tm_bandit import OptimisticKID, ReferenceStatistics
        >>> generator = torch.Generator().manual_seed(0)
        >>> reference = ReferenceStatistics.from_features(torch.randn(500, 4, generator=generator), keep_rows=True)
        >>> kid = OptimisticKID(feature="none", reference=reference)
        >>> for _ in range(20):
        ...     kid.update_features(torch.randn(5, 4, generator=generator) + 1)
        >>> kid.num_samples, round(float(kid.estimate()), 1), bool(kid.compute() < kid.estimate()), kid.is_degenerate
        (100, 7.3, True, False)
    """

    higher_is_better: bool = False
    bound_table: ClassVar[Mapping[str, Bound]] = {"hajek": HajekBound(), "none": NoBound(2)}
    generated_states = ("rows", "similarity")
    real_states = ("real_rows",)
    _wide_states = ("rows", "real_rows")
    _needs_reference = "rows"
    _centre = "unbiased"

    similarity: list[Tensor] = state()
    real_rows: list[Tensor] = state()

    scale = Setting(lambda name, value: check_number(name, value, above=0))

    def __init__(
        self,
        feature: int | str | nn.Module | Callable[[Any], Any] | Extractor | None = 2048,
        reference: ReferenceStatistics | str | os.PathLike[str] | None = None,
        kernel: str | Kernel = "polynomial",
        bound: str = "hajek",
        delta: float = 0.05,
        horizon: int | None = None,
        degree: int = 3,
        gamma: float | None = None,
        coef: float = 1.0,
        sigma: float = 10.0,
        scale: float = 1.0,
        width: WidthKind = "lil",
        normalize: bool = False,
        reset_real_features: bool = True,
        feature_extractor_weights_path: str | os.PathLike[str] | None = None,
        antialias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(bound, width, "crossfit", reset_real_features, delta=delta, horizon=horizon, **kwargs)
        gamma = None if gamma is None else check_number("gamma", gamma, above=0)
        named: dict[str, Kernel] = {
            "polynomial": PolynomialKernel(check_count("degree", degree, 1), gamma, check_number("coef", coef)),
            "rbf": GaussianKernel(check_number("sigma", sigma, above=0)),
        }
        if isinstance(kernel, type):
            raise InputError(f"Expected a kernel, but got the class {kernel.__name__}; give {kernel.__name__}(...).")
        self._kernel = kernel if callable(kernel) else named[check_choice("kernel", kernel, named)]
        self.scale = scale
        path = feature_extractor_weights_path
        self._take(feature, reference, weights_path=path, normalize=normalize, antialias=antialias)

    @property
    def kernel(self) -> Kernel:
        """The kernel; it stays, because its values with the reference are states."""
        return self._kernel

    @classmethod
    def cmmd(cls, feature: Any = "clip-vit-l-14-336px", reference: Any = None, **kwargs: Any) -> OptimisticKID:
        """Return the metric with the settings of CMMD (Jayasumana et al., 2024).

        A Gaussian kernel of width 10 on CLIP features of length one, times 1,000. Their program counts every row's
        similarity to itself, which adds about ``1000 (1 - mean k) (1/n + 1/m)``; this one is unbiased.

        Args:
            feature: the CLIP network.
            reference: as in the constructor.
            kwargs: as in the constructor.
        """
        return cls(feature, reference, kernel=GaussianKernel(10.0, unit_length=True), scale=1000.0, **kwargs)

    def use_reference(self, reference: ReferenceStatistics | None) -> None:
        """Take a reference as if it had been given to the constructor; ``None`` removes it.

        Args:
            reference: statistics of the real data, with rows.

        Raises:
            InputError: if the reference has no rows, or belongs to another extractor.
        """
        if isinstance(reference, ReferenceStatistics) and reference.rows is None:
            raise InputError(
                "Expected a reference with rows, which kernel distances are computed from, but got one with mean and "
                "covariance only; make it with `keep_rows=True`, or with `tm-bandit stats --rows`."
            )
        if isinstance(reference, ReferenceStatistics) and reference.rows is not None:
            self._check_kernel(reference.rows.values)
        before = self._given_reference
        super().use_reference(reference)
        if reference is not before:
            # Not reassigned as in torchmetrics: the rows are the same.
            vars(self)["similarity"] = [torch.full_like(part, torch.nan) for part in as_list(self.similarity)]
            for name in ("scores", "similarity"):
                self.row_log.forget(name)

    @property
    def is_degenerate(self) -> bool:
        """Whether the generator is so near to the reference that the distance is mostly second-order noise."""
        with self._synced():
            return self._view().is_degenerate()

    def row_scores(self, count: int | None = None) -> Tensor:
        """Return the projection of the distance on single rows, ``(n,)``; their mean is the distance of these rows.

        The mean difference between two arms over common rows estimates the difference of their distances, with
        standard error ``sd / sqrt(n)`` to first order.

        Args:
            count: how many rows, from the first one on; all by default.
        """
        with exact_arithmetic(self._is_narrow):
            return self._view(count).projection(count)

    def _view(self, count: int | None = None) -> KernelView:
        log = self.row_log
        least = log.length if count is None else min(check_count("count", count, 0), log.length)
        if least < 2:
            raise NotReadyError(f"Expected at least two generated samples, but got {least}; add more.")
        reference = self._reference_rows()
        near, within = partial(self._similarities, reference), partial(reference.mean_of_pairs, self.kernel)
        return KernelView(log, self.kernel, near, within, self.scale, self._level, self.width)

    def check_rows(self, rows: Tensor, real: bool = False) -> Tensor:
        """Return ``rows`` if they and their kernel can be used, else raise; touches no state.

        Args:
            rows: features, shape ``(n, d)``.
            real: whether they belong to real samples.

        Raises:
            InputError: if dtype or shape are wrong, values are not finite, or kernel values would not be.
        """
        rows = super().check_rows(rows, real)
        self._check_kernel(rows)
        return rows

    def _check_kernel(self, rows: Tensor) -> None:
        """Refuse rows whose kernel values are so large that their squares' squares are not finite."""
        if not rows.shape[0]:
            return
        values = as_float64(rows.detach())
        longest = values[values.norm(dim=1).argmax()][None]
        # A positive definite kernel is largest where a row meets itself; those in use grow with its length.
        value = self.kernel(longest, longest)
        if not isinstance(value, Tensor) or value.shape != (1, 1):
            raise InputError(
                f"Expected the kernel to return a tensor of shape (n, m) for n and m rows, but got {form_of(value)}."
            )
        largest = self.scale * abs(float(value))
        if not largest <= _LARGEST_KERNEL:
            raise InputError(
                f"Expected features whose kernel values are at most {_LARGEST_KERNEL:g}, but got {largest:.3g}; scale "
                "the features down."
            )

    def _reference_rows(self) -> ReferenceRows:
        given = self._given_reference
        if given is not None and given.rows is not None:
            return given.rows.to(self._state_device)
        return self.row_log.derive("real", self._real)

    def _real(self) -> ReferenceRows:
        real = as_list(self.real_rows)
        count = sum(map(len, real))
        if count < 2:
            raise NotReadyError(
                f"Expected at least two real samples, but got {count}; give `reference=` to the constructor or feed "
                "real samples with `update(images, real=True)`."
            )
        return ReferenceRows(torch.cat(real))

    def _make_reference(self) -> ReferenceStatistics:
        rows = self._reference_rows().values
        return ReferenceStatistics.from_features(rows, self.extractor.name, keep_rows=len(rows))

    def _similarities(self, reference: ReferenceRows) -> Tensor:
        """Return the rows' mean kernel values with the reference; those with a given one are states."""
        log = self.row_log
        if self._given_reference is None:
            return log.derive("similarity", lambda: self._compare(log, reference), log.key, len(reference))
        values = torch.cat(as_list(self.similarity))
        if values.isnan().any():  # the reference came after the rows
            values = self._compare(log, reference)
            if not self._is_synced:
                vars(self)["similarity"] = [values]
        return values

    def _compare(self, log: RowLog, reference: ReferenceRows) -> Tensor:
        blocks = log.blocks(0, log.length, max(log.length, 1))
        return torch.cat([reference.similarity(block, self.kernel) for block in blocks])

    def _add_real(self, rows: Tensor) -> None:
        vars(self)["real_rows"] = [*as_list(self.real_rows), rows.to(self._state_device).clone()]
        for name in ("reference", "real", "scores"):
            self.row_log.forget(name)

    def _add_generated(self, rows: Tensor) -> None:
        new = rows.to(self._state_device).clone()
        if self._given_reference is None:
            near = torch.full((len(new),), torch.nan, dtype=torch.float64, device=new.device)
        else:
            near = self._reference_rows().similarity(new, self.kernel)
        # The log first: opening one reads the states.
        log = self.row_log
        self.similarity.append(near)
        log.append(new)

    def _layout(self, width: int) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
        return {"rows": ((width,), None), "similarity": ((), torch.float64), "real_rows": ((width,), None)}
