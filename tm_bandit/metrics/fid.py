"""The Frechet distance of a generator, streaming, with an optimistic bound."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torchmetrics.utilities.distributed import gather_all_tensors

from tm_bandit._arguments import check_count, check_flag, check_number
from tm_bandit.bounds.bound import Bound
from tm_bandit.bounds.fd_bounds import FD_BOUNDS, FrechetTuning
from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.extractors import NO_EXTRACTOR, Extractor, resolve
from tm_bandit.functional.confidence import WidthKind
from tm_bandit.functional.crossfit import FOLDS, Fitting
from tm_bandit.functional.moments import LARGEST_FEATURE, Moments, add_rows_, merge_moments, moments_from_rows
from tm_bandit.metrics._attributes import Setting, optional, state
from tm_bandit.metrics.base import as_list, exact_arithmetic
from tm_bandit.metrics.feature_metric import FeatureMetric
from tm_bandit.metrics.frechet_view import FrechetWitnessBound, RowView
from tm_bandit.metrics.row_log import RowLog
from tm_bandit.reference import ReferenceStatistics

#: Float dtypes by number, so that ranks can agree on one.
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Rows that are kept unless `max_rows` says else: a limit on memory, chosen by hand.
_ROWS_PER_DIMENSION, _LEAST_ROWS = 4, 4096


class OptimisticFID(FeatureMetric):
    r"""Frechet distance between generated and real samples, with an optimistic lower bound.

    .. math::
        \mathrm{FD} = \|\mu - \mu_r\|^2 + \mathrm{Tr}\bigl[\Sigma + \Sigma_r - 2 (\Sigma \Sigma_r)^{1/2}\bigr]

    where :math:`\mu, \Sigma` are mean and covariance of the features of generated samples and :math:`\mu_r, \Sigma_r`
    those of real ones. :meth:`estimate` is the plain plug-in value, the same as torchmetrics' FID. :meth:`compute` is
    *optimistic*: with probability ``1 - delta`` it is not above the true distance. Zero or less says nothing.

    As input to ``forward`` and ``update`` the metric accepts samples (images for the named extractors) and
    ``real=False``; as output of ``forward`` and ``compute`` it returns a scalar tensor.

    Everything is float64 and centred; the order of samples, batch sizes and the number of ranks do not matter. While
    there are no more samples than dimensions, an arm holds its rows and Gram matrices of size ``n``, and nothing of
    size ``d x d`` is decomposed.

    All states are lists that are concatenated over ranks, so a rank without samples is no special case and moments of
    ranks are merged exactly. A reference that was given to the constructor is no state: every rank has it already.

    Which bound:

    - ``"witness"``: our own; tight and dimension-free. For any quadratic *witness* the mean of a score over samples is
      below the distance in expectation (Kantorovich duality; :mod:`tm_bandit.functional.witness_fd` derives it), so all
      that is needed is the width of an ordinary mean. Witnesses are fitted on other samples than they score.
    - ``"paper"``: the paper's Theorem 1, with the trace term that its proof loses; valid for Gaussian features, wide.
    - ``"bounded"``: its Theorem 4, for features whose norm is at most ``norm_bound``; wider still.
    - ``"authors"``: the authors' published code, every constant one; a heuristic.
    - ``"naive"``: the Naive-UCB baseline, dimension-based terms in place of the samples' norms; a heuristic.
    - ``"none"``: no bound, ``compute`` is the plain estimate.

    The paper defines the plug-in with the ``1/n`` covariance, and ``"paper"`` and ``"bounded"`` subtract their bonus
    from that one; the authors' code has ``1/(n - 1)``, and ``"authors"`` and ``"naive"`` follow it.

    What ``"witness"`` promises. Each end of :meth:`bounds` may fail with probability ``delta / 2``, so both hold
    together. At each sample count the expectations are on the right sides for every distribution with two moments. The
    widths are confidence sequences: looking after every sample is allowed. They are asymptotic (estimated variance), so
    below about 50 samples they are a good approximation, not a guarantee. With ``fitting="predictable"`` the lower
    end's anytime validity is proved in that sense; with ``"crossfit"`` it is measured, because refits change old
    scores. ``width="lil"`` adds a third in width for heavy tails. The reference's moments are taken as exact. Vacuous
    are a lower end of 0 and an upper end of infinity (always below 10 samples).

    What :meth:`debiased` is: the plug-in minus the bias that Gaussian samples with the arm's spectrum would have
    (closed form, also far below as many samples as dimensions). Up to half as many samples as dimensions ``d`` that is
    the bias of the fitted spectrum or of the reference's own, whichever is smaller; from ``d`` on it is that of the
    fitted one, and from ``2 d`` on the measured decay of the bias takes over. Clipped to what lies between the witness
    mean and the plug-in. Its standard error is that of the noise: what the scores show and, of second order, the noise
    that the reference itself would have, together, or from 100 samples on the spread of tenths of the samples,
    whichever is more. It does not contain what is left of the bias, which below ``d`` samples can be several times as
    large. So this is an estimate, not a bound.

    Settings (``delta``, ``horizon``, ``width``, ``fitting``, ``kappa``, ``threshold``, ``norm_bound``,
    ``paper_as_printed``) may be changed at any time, unless ``"witness"`` has settled rows with the old ones.

    Args:
        feature: the feature extractor: 64, 192, 768 or 2048 for a layer of the FID Inception network, the name of
            another torch-fidelity network (such as ``"dinov2-vit-l-14"``), a module or callable that returns ``(N, d)``
            features, or ``"none"`` if only :meth:`update_features` is used.
        reference: statistics of the real data, or a path to an ``.npz`` file with ``mu`` and ``sigma``; if left out,
            real samples are fed with ``update(images, real=True)``.
        bound: see above.
        delta: failure probability of the bound.
        horizon: number of looks that the bound shall hold for at once; it divides ``delta`` (the paper's
            :math:`\delta / T`).
        kappa: the paper's sub-Gaussian constant.
        threshold: the paper's threshold ``M`` for small entries of the covariance (Cai and Liu). Anything above 0 needs
            the full ``d x d`` covariance at each ``compute``.
        norm_bound: the bound ``C`` on the norm of features, for ``bound="bounded"``.
        paper_as_printed: reproduce ``"paper"`` and ``"bounded"`` exactly as printed, errors included.
        width: confidence sequence of ``"witness"``: ``"mixture"``, or ``"lil"``, which is wider and safer.
        fitting: how ``"witness"`` keeps its witnesses independent of the rows they score: ``"crossfit"``, or
            ``"predictable"``, which is looser but whose anytime guarantee is proved.
        max_rows: how many rows ``"witness"`` may keep (default: the larger of 4096 and four times the dimension); then
            the older half is settled, its scores frozen and its moments kept.
        normalize: whether images are floats in [0, 1] rather than uint8.
        reset_real_features: whether :meth:`reset` also forgets real samples.
        feature_extractor_weights_path: file with the weights of a named network.
        antialias: whether Inception's resize smooths before it samples.
        kwargs: see torchmetrics' ``Metric``.

    Raises:
        InputError: if an argument is out of its range, or the reference belongs to another extractor.

    Example:
        >>> import torch
        >>> from tm_bandit import OptimisticFID, ReferenceStatistics
        >>> generator = torch.Generator().manual_seed(0)
        >>> reference = ReferenceStatistics(torch.zeros(4), torch.eye(4))
        >>> fid = OptimisticFID(feature="none", reference=reference, bound="authors")
        >>> for _ in range(20):
        ...     fid.update_features(torch.randn(5, 4, generator=generator) + 1)
        >>> fid.num_samples, round(float(fid.estimate()), 2), bool(fid.compute() < fid.estimate())
        (100, 4.74, True)
    """

    higher_is_better: bool = False
    bound_table: ClassVar[Mapping[str, Bound]] = {"witness": FrechetWitnessBound(), **FD_BOUNDS}
    generated_states = ("rows", "moment_count", "moment_mean", "moment_scatter", "settled")
    real_states = ("real_count", "real_mean", "real_scatter")
    _needs_reference = "moments"

    rows: list[Tensor] = state()
    moment_count: list[Tensor] = state()
    moment_mean: list[Tensor] = state()
    moment_scatter: list[Tensor] = state()
    settled: list[Tensor] = state()
    real_count: list[Tensor] = state()
    real_mean: list[Tensor] = state()
    real_scatter: list[Tensor] = state()

    kappa = Setting(lambda name, value: check_number(name, value, above=0))
    threshold = Setting(lambda name, value: check_number(name, value, least=0))
    norm_bound = Setting(optional(lambda name, value: check_number(name, value, above=0)))
    paper_as_printed = Setting(check_flag)
    max_rows = Setting(optional(lambda name, value: check_count(name, value, 2)))

    def __init__(
        self,
        feature: int | str | nn.Module | Callable[[Any], Any] | Extractor | None = 2048,
        reference: ReferenceStatistics | str | os.PathLike[str] | None = None,
        bound: str = "witness",
        delta: float = 0.05,
        horizon: int | None = None,
        kappa: float = 1.0,
        threshold: float = 0.0,
        norm_bound: float | None = None,
        paper_as_printed: bool = False,
        width: WidthKind = "mixture",
        fitting: Fitting = "crossfit",
        max_rows: int | None = None,
        normalize: bool = False,
        reset_real_features: bool = True,
        feature_extractor_weights_path: str | os.PathLike[str] | None = None,
        antialias: bool = True,
        **kwargs: Any,
    ) -> None:
        if reference is not None and not isinstance(reference, ReferenceStatistics):
            if not isinstance(reference, (str, os.PathLike)):
                raise InputError(
                    "Expected `reference` to be ReferenceStatistics or a path to an .npz file, but got a "
                    f"{type(reference).__name__}; use `ReferenceStatistics.from_features` for feature rows."
                )
            reference = ReferenceStatistics.load(reference)
        super().__init__(bound, width, fitting, reset_real_features, delta=delta, horizon=horizon, **kwargs)
        self.kappa = kappa
        self.threshold = threshold
        self.norm_bound = norm_bound
        self.paper_as_printed = paper_as_printed
        self.max_rows = max_rows
        self._tuning()
        self._given_reference: ReferenceStatistics | None = None
        for name in (*self.generated_states, *self.real_states):
            self.add_state(name, default=[], dist_reduce_fx="cat")
        path = feature_extractor_weights_path
        self._hold(resolve(feature, weights_path=path, normalize=normalize, antialias=antialias))
        self.use_reference(reference)

    def _tuning(self) -> FrechetTuning:
        """Return the hyper-parameters of the bound, or raise ``InputError`` if it cannot work with them."""
        return FrechetTuning(self.kappa, self.threshold, self.norm_bound, self.paper_as_printed).checked(self.bound)

    def use_reference(self, reference: ReferenceStatistics | None) -> None:
        """Take a reference as if it had been given to the constructor; ``None`` takes it away again.

        Args:
            reference: statistics of the real data.

        Raises:
            InputError: if the reference belongs to another extractor, or rows were settled with another reference.
        """
        extractor = self._extractor
        if reference is not None and extractor.num_features not in (None, reference.num_features):
            raise InputError(
                f"Expected a reference of dimension {extractor.num_features} for the extractor {extractor.name!r}, but "
                f"got one of dimension {reference.num_features}; make it with the same `feature`."
            )
        recorded = None if reference is None else reference.extractor
        if recorded is not None and extractor.name not in (NO_EXTRACTOR, recorded):
            raise InputError(
                f"Expected a reference of the extractor {extractor.name!r}, but got one of {recorded!r}; "
                "make it with the same `feature`."
            )
        if reference is not self._given_reference:
            self._before_change("reference")
        self._given_reference = reference
        self._computed = None

    def _before_change(self, setting: str) -> None:
        """Refuse what settled scores depend on: the rows behind them are gone."""
        frozen = ("delta", "horizon", "width", "fitting", "reference")
        if setting in frozen and any(len(scores) for scores in self.settled):
            raise InputError(
                f"Expected `{setting}` to stay as it is once rows are settled, but got another one; set it before "
                "there are `max_rows` samples, or make a new metric."
            )

    @property
    def num_samples(self) -> int:
        """Number of generated samples so far (on this rank)."""
        return self.row_log.length

    @property
    def num_features(self) -> int | None:
        """Dimension of a row, or ``None`` before anything is known about it."""
        if self._given_reference is not None:
            return self._given_reference.num_features
        for held in (self.rows, self.moment_mean, self.real_mean):
            for tensor in as_list(held):
                return int(tensor.shape[1])
        return self._extractor.num_features

    row_width = num_features

    @property
    def reference(self) -> ReferenceStatistics:
        """Statistics of the real data: those given to the constructor, or those of the real samples so far.

        Raises:
            NotReadyError: if there is neither a reference nor two real samples.
        """
        if self._given_reference is not None:
            return self._given_reference.to(self._state_device)
        return self.row_log.derive("reference", self._make_reference)

    def _make_reference(self) -> ReferenceStatistics:
        real = _read_moments(self.real_count, self.real_mean, self.real_scatter)
        if real is None or real.count < 2:
            raise NotReadyError(
                f"Expected at least two real samples, but got {0 if real is None else real.count}; give `reference=` "
                "to the constructor or feed real samples with `update(images, real=True)`."
            )
        return ReferenceStatistics.from_moments(real, self._extractor.name)

    @property
    def _state_device(self) -> torch.device:
        return torch.device("cpu") if self.compute_on_cpu else self.device

    def _move_list_states_to_cpu(self) -> None:
        """Do nothing: with ``compute_on_cpu`` rows are put there as they come."""

    def check_rows(self, rows: Tensor, real: bool = False) -> Tensor:
        """Return ``rows`` if they can be used, else raise; touches no state.

        Args:
            rows: features, shape ``(n, d)``.
            real: whether they belong to real samples.

        Raises:
            InputError: if dtype or shape are wrong, values are not finite, or norms exceed ``norm_bound``.
        """
        if real and self._given_reference is not None:
            raise InputError(
                "Expected generated samples only, because the metric was given a `reference`, but got real ones; leave "
                "`reference` out to build it from real samples."
            )
        if not isinstance(rows, Tensor) or not rows.is_floating_point():
            got = f"dtype {rows.dtype}" if isinstance(rows, Tensor) else f"a {type(rows).__name__}"
            raise InputError(
                f"Expected features as a floating-point tensor, but got {got}; convert them with `.float()`."
            )
        width = self.num_features
        if rows.ndim != 2 or rows.shape[1] == 0 or (width is not None and rows.shape[1] != width):
            wanted = "d" if width is None else width
            raise InputError(
                f"Expected features of shape (n, {wanted}), but got {tuple(rows.shape)}; reference and samples must "
                "come from the same extractor."
            )
        # In narrow dtypes the limit itself becomes infinite, and infinite values would pass a mere comparison.
        usable = rows.detach().isfinite() & (rows.detach().abs() <= LARGEST_FEATURE)
        bad = rows.shape[0] - int(usable.all(dim=1).sum())
        if bad:
            raise InputError(
                f"Expected finite features, but got {bad} of {rows.shape[0]} rows with NaN, infinite or absurdly large "
                "values; look at the sampler's output (half precision overflows at 65504)."
            )
        if self.norm_bound is not None and not real and rows.shape[0] > 0:
            longest = float(rows.detach().double().norm(dim=1).max())
            if longest > self.norm_bound * (1.0 + 1e-5):  # what rounding in float32 adds to a unit vector, and more
                raise InputError(
                    f"Expected features of norm at most `norm_bound` = {self.norm_bound:g}, but got a row of norm "
                    f"{longest:.6g}; normalise the features or raise `norm_bound`."
                )
        return rows

    def update_features(self, rows: Tensor, real: bool = False) -> None:
        """Add features that were computed elsewhere, of images or of anything else.

        Args:
            rows: features, shape ``(n, d)``.
            real: whether they belong to real samples, which make up the reference.
        """
        self.update_rows(rows, real)

    def reset(self) -> None:
        """Forget all samples; real ones only if ``reset_real_features`` is set."""
        reference = self.row_log.known("reference")
        super().reset()
        if reference is not None and not self.reset_real_features:
            self.row_log.derive("reference", lambda: reference)

    def _share(self, template: OptimisticFID) -> None:
        super()._share(template)
        if self.real_count:
            # One decomposition of the reference for all arms instead of one each.
            self.use_reference(template.reference)
            for name in self.real_states:
                setattr(self, name, [])

    def _view(self, log: RowLog | None = None) -> RowView:
        reference, log = self.reference, log or self.row_log
        if log.length < 2:
            raise NotReadyError(f"Expected at least two generated samples, but got {log.length}; add more.")
        if self._given_reference is None and reference.num_features != self.num_features:
            raise InputError(
                f"Expected samples of the reference's dimension {reference.num_features}, but got {self.num_features}."
            )
        return RowView(
            log,
            reference,
            self.settled,
            self._level,
            self.width,
            self.fitting,
            self._tuning,
            self._bound.keeps_rows,
        )

    # ---- states: rows as they came, in their own dtype, until they are folded into centred float64 moments ----

    def _open_log(self) -> RowLog:
        batches = [batch for batch in as_list(self.rows) if len(batch)]
        if not self._is_synced:
            vars(self)["rows"] = batches
        return RowLog(batches, _read_moments(self.moment_count, self.moment_mean, self.moment_scatter))

    def _add(self, rows: Tensor, real: bool) -> None:
        """Put checked rows into the states."""
        self._refuse_if_synced()
        if rows.shape[0] == 0:
            return
        with exact_arithmetic():
            log, rows = self.row_log, rows.detach()
            if real:
                before = _read_moments(self.real_count, self.real_mean, self.real_scatter)
                self._store_moments(self.real_states, before, rows.to(self._state_device))
                log.forget("reference")
                return
            done, half, device = 0, self._half, self._state_device
            while done < len(rows):
                stop = done + max(2 * half - log.kept, 1) if half else len(rows)
                # A copy: callers may reuse their buffers, and a slice would keep all of its storage alive.
                log.append(rows[done:stop].to(device).clone())
                done = stop
                self._limit_rows(log, half)

    @property
    def _half(self) -> int:
        """Number of rows that are settled at a time, or 0 if none are.

        Without a reference from the constructor nothing is settled: a score under a reference that is still growing
        would soon be worthless.
        """
        if self._given_reference is None or not self._bound.keeps_rows:
            return 0
        most = self.max_rows or max(_ROWS_PER_DIMENSION * self._given_reference.num_features, _LEAST_ROWS)
        # Multiples of the number of folds leave the other rows in the folds they had.
        return max(most // (2 * FOLDS), 1) * FOLDS

    def _limit_rows(self, log: RowLog, half: int) -> None:
        """Settle the older half of the rows whenever ``max_rows`` are kept; without a witness, fold all beyond ``d``.

        It happens at fixed row counts, so values do not depend on how rows were batched.
        """
        while half and log.kept >= 2 * half:
            full = log if log.kept == 2 * half else log.prefix(2 * half)
            scores = self._view(full).stream().scores(full)
            self.settled.append(scores[: max(len(scores) - half, 0)].clone())
            self._fold(log, half)
        if not half and log.length > log.batches[-1].shape[1] and not self._bound.keeps_rows:
            spectrum = log.known("spectrum")
            if spectrum is not None:
                spectrum.prepare_fold(log)
            self._fold(log, log.kept)

    def _fold(self, log: RowLog, count: int) -> None:
        """Replace the oldest rows by their moments."""
        folded = log.folded
        for block in log.blocks(0, count, count):
            folded = self._store_moments(self.generated_states[1:4], folded, block)
        if folded is not None:
            log.fold(count, folded)
        vars(self)["rows"] = log.batches

    def _store_moments(self, names: tuple[str, ...], before: Moments | None, rows: Tensor) -> Moments:
        """Add rows to moments that are kept in three states."""
        owned = self.row_log.owned
        if before is None:
            after = moments_from_rows(rows)
        else:
            # Adding in place is far cheaper, but states that were loaded or copied may belong to somebody else too.
            mine = names[2] in owned
            after = add_rows_(before if mine else before._replace(scatter=before.scatter.clone()), rows)
        count = torch.tensor([after.count], dtype=torch.int64, device=after.mean.device)
        # Not assigned as torchmetrics does it: history goes on.
        vars(self).update(zip(names, ([count], [after.mean.unsqueeze(0)], [after.scatter.unsqueeze(0)]), strict=True))
        owned.add(names[2])
        return after

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        """Let ranks without samples take part: they have to send tensors of the others' dtype and width."""
        group = process_group or self.process_group
        mine = {_DTYPES.index(batch.dtype) for batch in self.rows}
        layout = [self.num_features or 0, *(int(number in mine) for number in range(len(_DTYPES)))]
        device = self._state_device
        layouts = torch.stack(dist_sync_fn(torch.tensor(layout, device=device), group=group))
        widths = set(layouts[:, 0].tolist()) - {0}
        if len(widths) > 1:
            raise InputError(f"Expected features of one dimension on all ranks, but got {sorted(widths)}.")
        width = max(widths, default=0)
        # One that holds the values of all: two different halves make a float32.
        used = [_DTYPES[number] for number in layouts[:, 1:].sum(dim=0).nonzero().flatten().tolist()]
        row_dtype = reduce(torch.promote_types, used or [torch.float32])
        shapes = {"rows": (width,), "settled": (), "count": (), "mean": (width,), "scatter": (width, width)}
        for name in (*self.generated_states, *self.real_states):
            kind = name.rpartition("_")[2]
            held = getattr(self, name)
            if not held:
                dtype_of = {"rows": row_dtype, "count": torch.int64}.get(kind, torch.float64)
                setattr(self, name, [torch.empty((0, *shapes[kind]), dtype=dtype_of, device=device)])
            elif kind == "rows":
                setattr(self, name, [batch.to(row_dtype) for batch in held])
        super()._sync_dist(dist_sync_fn, process_group)


def _read_moments(count: Any, mean: Any, scatter: Any) -> Moments | None:
    """Read moments from their three states: lists here, one tensor after a sync, one entry per rank then."""
    parts = [
        Moments(int(n), m, s)
        for counts, means, scatters in zip(as_list(count), as_list(mean), as_list(scatter), strict=True)
        for n, m, s in zip(counts, means, scatters, strict=True)
    ]
    return merge_moments(*parts) if parts else None
