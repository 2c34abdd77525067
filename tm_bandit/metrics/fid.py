"""The Frechet distance of a generator, streaming, with an optimistic bound."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tm_bandit._arguments import check_count, check_flag, check_number
from tm_bandit.bounds.bound import Bound
from tm_bandit.bounds.fd_bounds import FD_BOUNDS, FrechetTuning
from tm_bandit.comparison import Pair
from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.extractors import Extractor
from tm_bandit.functional.confidence import ScoreMoments, WidthKind, deviation
from tm_bandit.functional.crossfit import FOLDS, MIN_ROWS, Fitting
from tm_bandit.functional.frechet_basis import FrechetBasis
from tm_bandit.functional.moments import Moments, add_rows_, merge_moments, moments_from_rows
from tm_bandit.functional.paired import paired_frechet_scores, safe_bias
from tm_bandit.metrics._attributes import Setting, optional, state
from tm_bandit.metrics.frechet_view import FrechetWitnessBound, RowView
from tm_bandit.metrics.referenced_metric import ReferencedMetric
from tm_bandit.metrics.row_log import RowLog, as_list, exact_arithmetic
from tm_bandit.reference import ReferenceStatistics

#: Rows that are kept unless `max_rows` says otherwise: a limit on memory, not tuned.
_ROWS_PER_DIMENSION, _LEAST_ROWS = 4, 4096

#: Rotated rows of the two arms that were compared last: a leader meets its rivals one after the other, and rotating its
#: rows is most of the work. Those of all arms would take as much memory as their rows.
_last_turned: WeakKeyDictionary[RowLog, tuple[FrechetBasis, int, int, Tensor]] = WeakKeyDictionary()


class OptimisticFID(ReferencedMetric):
    r"""Frechet distance between generated and real samples, with an optimistic lower bound.

    .. math::
        \mathrm{FD} = \|\mu - \mu_r\|^2 + \mathrm{Tr}\bigl[\Sigma + \Sigma_r - 2 (\Sigma \Sigma_r)^{1/2}\bigr]

    where :math:`\mu, \Sigma` are mean and covariance of the features of generated samples and :math:`\mu_r, \Sigma_r`
    those of real ones. :meth:`estimate` is the plain plug-in value, the same as torchmetrics' FID. :meth:`compute` is
    *optimistic*: from ten samples on it is rarely above the distance to the given reference. Policies choose by it.
    :meth:`bounds` is the interval with the guarantee. A value of zero or below is vacuous.

    As input to ``forward`` and ``update`` the metric accepts samples (images for the named extractors) and
    ``real=False``; as output of ``forward`` and ``compute`` it returns a scalar tensor.

    Everything is float64 and centred. The estimate depends neither on the order of samples nor on batches or ranks. The
    witness bound depends on the order, which decides what a witness is fitted on and what it scores. While there
    are no more samples than dimensions, an arm holds its rows and Gram matrices of size ``n``, and nothing of size
    ``d x d`` is decomposed.

    All states are lists that are concatenated over ranks, so a rank without samples is not a special case and moments
    of ranks are merged exactly. A reference given to the constructor is not a state: every rank already has it.

    Which bound:

    - ``"witness"``: our own; tight and dimension-free. For any quadratic *witness* the mean of a score over samples is
      below the distance in expectation (Kantorovich duality; :mod:`tm_bandit.functional.witness_fd` derives it), so all
      that is needed is the width of an ordinary mean. No witness scores the samples it was fitted on.
    - ``"paper"``: the paper's Theorem 1, with the trace term that its printed proof drops; valid for Gaussian features,
      wide.
    - ``"bounded"``: its Theorem 4, for features whose norm is at most ``norm_bound``; wider still.
    - ``"authors"``: the authors' published code, with every constant set to one; a heuristic.
    - ``"naive"``: the Naive-UCB baseline, dimension-based terms in place of the samples' norms; a heuristic.
    - ``"none"``: no bound, ``compute`` is the plain estimate.

    The paper defines the plug-in with the ``1/n`` covariance, and ``"paper"`` and ``"bounded"`` subtract their bonus
    from that one; the authors' code has ``1/(n - 1)``, and ``"authors"`` and ``"naive"`` follow it.

    What ``"witness"`` promises. Each end of :meth:`bounds` may fail with probability ``delta / 2``, so both hold
    together. At each sample count the expectations are on the right sides for every distribution with two moments. The
    widths need four, because a score is quadratic in a row and its variance is estimated: with Student's t of three
    degrees of freedom the lower end fails about twice as often as promised. They are confidence sequences, so looking
    after every sample is allowed; they are asymptotic. With ``fitting="predictable"`` the lower end's anytime validity
    is proved in that sense; with ``"crossfit"`` it is measured, because refits change old scores. ``width="lil"`` adds
    a third in width.

    No width allows for a far mode that no sample has hit. So nothing is promised below 200 samples, by which a mode of
    2% of the mass has been hit with probability 98%: the ends are 0 and infinity, and no arm is certified to be
    worse. For a far mode of 1% the lower end still fails in one run of eight, for one of 0.5% in two of five
    (``benchmarks/results/cures.md``).

    If the reference says how many images it was made from, :meth:`bounds` allows for their noise, or a perfect
    generator would be blamed for it (:mod:`tm_bandit.functional.reference_noise`); files of other tools do not say, and
    are taken as exact. :meth:`compute` and the comparison of arms take the reference as it is, since all arms share it.

    What :meth:`debiased` is: the plug-in minus the bias that Gaussian samples with the arm's spectrum would have
    (closed form, also with far fewer samples than dimensions). Up to half as many samples as dimensions ``d`` that is
    the bias of the fitted spectrum or of the reference's own, whichever is smaller; from ``d`` on it is that of the
    fitted one, and from ``2 d`` on the measured decay of the bias takes over. It is clipped to lie between the witness
    mean and the plug-in. Its standard error is a jackknife's, 0.8 to 1.7 times the spread over runs from 20 samples on,
    but twice that for an arm so near the reference that it is clipped at zero, and up to five times with a tenth as
    many samples as dimensions behind a ReLU. It includes neither the remaining bias, which below ``d`` samples can be
    several times as large, nor the reference's noise. So this is an estimate, not a bound.

    Settings (``delta``, ``horizon``, ``width``, ``fitting``, ``kappa``, ``threshold``, ``norm_bound``,
    ``paper_as_printed``) may be changed at any time, unless ``"witness"`` has settled rows with the old values.

    Args:
        feature: the feature extractor: 64, 192, 768 or 2048 for a layer of the FID Inception network, the name of
            another torch-fidelity network (such as ``"dinov2-vit-l-14"``), a module or callable that returns ``(N, d)``
            features, or ``"none"`` if only :meth:`update_features` is used.
        reference: statistics of the real data, or a path to an ``.npz`` file with ``mu`` and ``sigma``; if left out,
            real samples are fed with ``update(images, real=True)``.
        bound: see above.
        delta: failure probability of the bound.
        horizon: number of looks at which the bound must hold together; ``delta`` is divided by it (the paper's
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
            the older half is settled, its scores frozen and its moments kept. Arms with more are not compared draw by
            draw.
        normalize: whether images are floats in [0, 1] rather than uint8.
        reset_real_features: whether :meth:`reset` also forgets real samples.
        feature_extractor_weights_path: file with the weights of a named network.
        antialias: whether Inception's resize is antialiased.
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
    _wide_states = ("rows", "moment_mean", "real_mean")
    _needs_reference = "moments"

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
        feature: nn.Module | int | str | Callable[[Any], Any] | Extractor | None = 2048,
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
        super().__init__(bound, width, fitting, reset_real_features, delta=delta, horizon=horizon, **kwargs)
        self.kappa = kappa
        self.threshold = threshold
        self.norm_bound = norm_bound
        self.paper_as_printed = paper_as_printed
        self.max_rows = max_rows
        self._tuning()
        path = feature_extractor_weights_path
        self._take(feature, reference, weights_path=path, normalize=normalize, antialias=antialias)

    def _tuning(self) -> FrechetTuning:
        """Return the hyper-parameters of the bound, or raise ``InputError`` if it cannot work with them."""
        return FrechetTuning(self.kappa, self.threshold, self.norm_bound, self.paper_as_printed).checked(self.bound)

    def _before_change(self, setting: str, value: Any) -> None:
        """Refuse to change what settled scores depend on: the rows behind them are gone."""
        frozen = ("delta", "horizon", "width", "fitting", "reference")
        if setting in frozen and any(len(scores) for scores in self.settled):
            raise InputError(
                f"Expected `{setting}` to stay as it is once rows are settled, but got another one; set it before "
                "there are `max_rows` samples, or make a new metric."
            )

    def _make_reference(self) -> ReferenceStatistics:
        real = _read_moments(self.real_count, self.real_mean, self.real_scatter)
        if real is None or real.count < 2:
            raise NotReadyError(
                f"Expected at least two real samples, but got {0 if real is None else real.count}; give `reference=` "
                "to the constructor or feed real samples with `update(images, real=True)`."
            )
        return ReferenceStatistics.from_moments(real, self.extractor.name)

    def check_rows(self, rows: Tensor, real: bool = False) -> Tensor:
        """Return ``rows`` if they can be used, else raise; touches no state.

        Args:
            rows: features, shape ``(n, d)``.
            real: whether they belong to real samples.

        Raises:
            InputError: if dtype or shape are wrong, values are not finite, or norms exceed ``norm_bound``.
        """
        super().check_rows(rows, real)
        if self.norm_bound is not None and not real and rows.shape[0] > 0:
            longest = float(rows.detach().double().norm(dim=1).max())
            if longest > self.norm_bound * (1.0 + 1e-5):  # what rounding in float32 adds to a unit vector, and more
                raise InputError(
                    f"Expected features of norm at most `norm_bound` = {self.norm_bound:g}, but got a row of norm "
                    f"{longest:.6g}; normalise the features or raise `norm_bound`."
                )
        return rows

    def _layout(self, width: int) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
        mean, scatter = ((width,), torch.float64), ((width, width), torch.float64)
        moments = {"count": ((), torch.int64), "mean": mean, "scatter": scatter}
        return {
            "rows": ((width,), None),
            "settled": ((), torch.float64),
            **{f"{kind}_{name}": layout for kind in ("moment", "real") for name, layout in moments.items()},
        }

    def paired(self, other: OptimisticFID, count: int) -> Pair | None:
        """Return how two arms compare by one witness for both, or ``None``; see :mod:`tm_bandit.functional.paired`.

        Args:
            other: a copy of the same metric, with samples drawn from the same noise.
            count: how many samples of each.
        """
        logs = self.row_log, other.row_log
        one, two = (log.first(count) for log in logs)
        if count < MIN_ROWS or one is None or two is None or not self._bound.keeps_rows:
            return None
        if torch.equal(one, two):
            return Pair.of_twins()
        with exact_arithmetic(narrow=True):
            basis = self.reference.witness_basis
            scores = paired_frechet_scores([_turned(log, count, basis) for log in logs], basis, common=True)
            mine, theirs = (metric._view(metric._log_of(count)).parts() for metric in (self, other))
            noise = mine.stderr_of_difference(theirs, count) if mine is not None and theirs is not None else None
            return Pair.of(scores.scores, scores.means, noise)

    def certificate(self, other: OptimisticFID, count: int) -> float | None:
        """Return a lower bound of this arm's distance minus the other's from their first rows, or ``None``.

        See :mod:`tm_bandit.functional.paired`.

        Args:
            other: a copy of the same metric, with samples drawn from the same noise.
            count: how many samples of each.
        """
        logs = self.row_log, other.row_log
        if count < MIN_ROWS or not self._bound.keeps_rows or any(log.first(count) is None for log in logs):
            return None
        with exact_arithmetic(narrow=True):
            # A leader is compared with many rivals: its own part is computed once.
            mine, theirs = (
                log.derive("own scores", partial(metric._own_scores, count), log.epoch, metric.reference, count)
                for metric, log in zip((self, other), logs, strict=True)
            )
            key = (logs[1].epoch, other.reference, count)
            plug_in = logs[1].derive("safe plug-in", partial(other._safe_plug_in, count), *key)
        width = deviation(ScoreMoments.of(mine - theirs), other._level, upper=False, kind=self.width)
        return float(mine.mean()) - plug_in - width

    def _log_of(self, count: int) -> RowLog:
        return self.row_log if self.num_samples == count else self.row_log.prefix(count)

    def _own_scores(self, count: int) -> Tensor:
        """Return the scores of the first rows by witnesses that were fitted on this arm alone."""
        rows, basis = next(self.row_log.blocks(0, count, count)), self.reference.witness_basis
        return paired_frechet_scores((basis.rotate(rows),), basis, common=False).scores[0]

    def _safe_plug_in(self, count: int) -> float:
        """Return the plug-in distance of the first rows without the part of its bias that is beyond doubt."""
        rows, basis = next(self.row_log.blocks(0, count, count)), self.reference.witness_basis
        # No distance is negative, but next to the reference the difference may be; no witness shows its noise there.
        return max(self._view(self._log_of(count)).plug_in(unbiased=False) - safe_bias(basis.rotate(rows), basis), 0.0)

    def _view(self, log: RowLog | None = None) -> RowView:
        reference, log = self.reference, log or self.row_log
        if log.length < 2:
            raise NotReadyError(f"Expected at least two generated samples, but got {log.length}; add more.")
        if self._given_reference is None and reference.num_features != self.num_features:
            raise InputError(f"Expected samples of dimension {reference.num_features}, but got {self.num_features}.")
        return RowView(
            log, reference, self.settled, self._level, self.width, self.fitting, self._tuning, self._bound.keeps_rows
        )

    # ---- states: rows as they came, in their own dtype, until they are folded into centred float64 moments ----

    def _folded(self) -> Moments | None:
        return _read_moments(self.moment_count, self.moment_mean, self.moment_scatter)

    def _add_real(self, rows: Tensor) -> None:
        before = _read_moments(self.real_count, self.real_mean, self.real_scatter)
        self._store_moments(self.real_states, before, rows.to(self._state_device))
        self.row_log.forget("reference")

    def _add_generated(self, rows: Tensor) -> None:
        done, log, half, device = 0, self.row_log, self._half, self._state_device
        while done < len(rows):
            stop = done + max(2 * half - log.kept, 1) if half else len(rows)
            # A slice would keep all of its storage alive.
            log.append(rows[done:stop].to(device).clone())
            done = stop
            self._limit_rows(log, half)

    @property
    def _half(self) -> int:
        """Number of rows that are settled at a time, or 0 if none are.

        Without a reference from the constructor nothing is settled: a score under a reference that is still growing
        would soon be worthless.
        """
        if self._given_reference is None or not self.bound_table[self._bound_name].keeps_rows:
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
            # Adding in place is far cheaper, but states that were loaded or copied may be shared.
            mine = names[2] in owned
            after = add_rows_(before if mine else before._replace(scatter=before.scatter.clone()), rows)
        count = torch.tensor([after.count], dtype=torch.int64, device=after.mean.device)
        # Not reassigned as in torchmetrics: the history continues.
        vars(self).update(zip(names, ([count], [after.mean.unsqueeze(0)], [after.scatter.unsqueeze(0)]), strict=True))
        owned.add(names[2])
        return after


def _turned(log: RowLog, count: int, basis: FrechetBasis) -> Tensor:
    """Return the first rows of a log in the axes of the reference."""
    known = _last_turned.pop(log, None)
    if known is None or known[0] is not basis or known[1:3] != (log.epoch, count):
        known = basis, log.epoch, count, basis.rotate(next(log.blocks(0, count, count)))
    _last_turned[log] = known
    for old in list(_last_turned)[:-2]:
        _last_turned.pop(old, None)
    return known[3]


def _read_moments(count: Any, mean: Any, scatter: Any) -> Moments | None:
    """Read moments from their three states: lists here, one tensor after a sync, one entry per rank then."""
    parts = [
        Moments(int(n), m, s)
        for counts, means, scatters in zip(as_list(count), as_list(mean), as_list(scatter), strict=True)
        for n, m, s in zip(counts, means, scatters, strict=True)
    ]
    return merge_moments(*parts) if parts else None
