"""The Frechet distance of a generator, streaming, with an optimistic bound."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn

from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.extractors import NO_EXTRACTOR, Extractor
from tm_bandit.functional.confidence import WidthKind
from tm_bandit.functional.crossfit import MIN_ROWS, Fitting
from tm_bandit.functional.debias import slope_weight
from tm_bandit.functional.fd_bounds import (
    CovarianceNorms,
    covariance_norms,
    fd_bonus_authors,
    fd_bonus_bounded,
    fd_bonus_naive,
    fd_bonus_paper,
    fd_burn_in,
    threshold_covariance,
)
from tm_bandit.functional.frechet import assemble
from tm_bandit.metrics._debias import Fit, debiased_value, measure_parts
from tm_bandit.metrics._spectrum import SampleSpectrum
from tm_bandit.metrics._witness import WitnessRowMetric
from tm_bandit.metrics.base import LOSS_FIELDS, Debiased, Interval, check_level, exact_arithmetic, is_number, is_whole
from tm_bandit.reference import ReferenceStatistics


class _BonusInputs(NamedTuple):
    """What a bonus may use: the samples' norms are computed only if it asks for them."""

    num_samples: int
    dim: int
    mean_gap: float
    root_trace: float
    norms: Callable[[], CovarianceNorms]
    delta: float
    kappa: float
    norm_bound: float
    as_printed: bool


#: One line per bound that is "plug-in minus bonus": how its bonus is computed.
_BONUSES: dict[str, Callable[[_BonusInputs], float]] = {
    "paper": lambda i: fd_bonus_paper(
        i.num_samples, i.norms(), i.mean_gap, i.root_trace, i.delta, i.kappa, i.as_printed
    ),
    "authors": lambda i: fd_bonus_authors(i.num_samples, i.norms(), i.mean_gap, i.root_trace, i.delta, i.kappa),
    "bounded": lambda i: fd_bonus_bounded(
        i.num_samples, i.norms(), i.mean_gap, i.root_trace, i.delta, i.dim, i.norm_bound, i.kappa, i.as_printed
    ),
    "naive": lambda i: fd_bonus_naive(i.num_samples, i.dim, i.mean_gap, i.root_trace, i.delta, i.kappa),
}

BOUNDS = ("witness", *_BONUSES, "none")
#: What only this metric tells of an arm: there is no such thing as a shifted copy of a classifier's answers.
_COARSE_FIELDS = ("coarse_even", "coarse_plain")

#: Bounds whose own plug-in has the paper's 1/n covariance. The authors' code, and so "naive", has 1/(n - 1).
_BIASED_PLUG_IN = frozenset({"paper", "bounded", "witness"})


class OptimisticFID(WitnessRowMetric):
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
            the older half is settled, its scores frozen and its moments kept. A kept row is held twice: as it came, and
            rotated into the reference's eigenbasis (in float32 beyond 256 dimensions).
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
    loss_fields = (*LOSS_FIELDS, *_COARSE_FIELDS)

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
        if not isinstance(reset_real_features, bool):
            raise InputError(f"Expected `reset_real_features` to be a bool, but got {reset_real_features!r}.")
        check_level(delta, horizon)
        _check_arguments(bound, kappa, threshold, norm_bound, paper_as_printed, max_rows)
        super().__init__(reference, reset_real_features, width=width, fitting=fitting, max_rows=max_rows, **kwargs)
        self.bound = bound
        self.delta = float(delta)
        self.horizon = horizon
        self.kappa = float(kappa)
        self.threshold = float(threshold)
        self.norm_bound = norm_bound
        self.paper_as_printed = paper_as_printed
        self._hold_network(
            feature, weights_path=feature_extractor_weights_path, normalize=normalize, antialias=antialias
        )
        self._check_reference()

    def use_reference(self, reference: ReferenceStatistics | None) -> None:
        """Take a reference as if it had been given to the constructor; ``None`` takes it away again.

        Args:
            reference: statistics of the real data.

        Raises:
            InputError: if the reference belongs to another extractor.
        """
        kept, self._given_reference = self._given_reference, reference
        try:
            self._check_reference()
        except InputError:
            self._given_reference = kept
            raise
        self._caches.clear()
        self._computed = None

    def _check_reference(self) -> None:
        """Refuse a reference that this metric's extractor cannot have made."""
        reference, extractor = self._given_reference, self._extractor
        if reference is None:
            return
        if extractor.num_features not in (None, reference.num_features):
            raise InputError(
                f"Expected a reference of dimension {extractor.num_features} for the extractor {extractor.name!r}, but "
                f"got one of dimension {reference.num_features}; make it with the same `feature`."
            )
        if reference.extractor is not None and extractor.name not in (NO_EXTRACTOR, reference.extractor):
            raise InputError(
                f"Expected a reference of the extractor {extractor.name!r}, but got one of {reference.extractor!r}; "
                "make it with the same `feature`."
            )

    def check_rows(self, rows: Tensor, real: bool = False) -> Tensor:
        """Return ``rows`` if they can be used, else raise; touches no state.

        Args:
            rows: features, shape ``(n, d)``.
            real: whether they belong to real samples.

        Raises:
            InputError: if dtype or shape are wrong, values are not finite, or norms exceed ``norm_bound``.
        """
        rows = super().check_rows(rows, real)
        if self.norm_bound is not None and not real and rows.shape[0] > 0:
            longest = float(rows.detach().double().norm(dim=1).max())
            if longest > self.norm_bound * (1.0 + 1e-5):
                raise InputError(
                    f"Expected features of norm at most `norm_bound` = {self.norm_bound:g}, but got a row of norm "
                    f"{longest:.6g}; normalise the features or raise `norm_bound`."
                )
        return rows

    def compute(self) -> Tensor:
        """Return the optimistic score: a lower confidence bound of the distance (the estimate for ``bound="none"``).

        Raises:
            NotReadyError: if there are fewer than two samples, or no reference.
        """
        return self._output(self._optimistic())

    def estimate(self) -> Tensor:
        """Return the plain Frechet distance of the samples so far, with the ``n - 1`` covariance.

        The same as torchmetrics' FID on the same features, but more exact and never negative.

        Raises:
            NotReadyError: if there are fewer than two samples, or no reference.
        """
        with self._synced():
            return self._output(self._plug_in(unbiased=True))

    def bounds(self) -> Interval:
        """Return lower and upper confidence bound; a side about which nothing can be said is infinite.

        With ``bound="witness"`` the lower end is the mean of the witness scores minus its width, the upper end the
        plug-in (which is too large on average) plus its own; each end may fail with probability ``delta / 2``, so both
        hold together. What is promised:

        - At each sample count the expectations are on the right sides for every distribution with two moments.
        - The widths are confidence sequences: looking after every sample is allowed. They are asymptotic (estimated
          variance), so below about 50 samples they are a good approximation, not a guarantee. With
          ``fitting="predictable"`` the lower end's anytime validity is proved in that sense; with ``"crossfit"`` it is
          measured, because refits change old scores. ``width="lil"`` adds a third in width for heavy tails.
        - The reference's moments are taken as exact.

        Vacuous: a lower end of 0 (always below 10 samples), and an upper end of infinity below 10 samples.

        Raises:
            NotReadyError: if there are fewer than two samples, or no reference.
        """
        with self._synced():
            lower, upper = self._interval()
            return Interval(self._output(lower), self._output(upper))

    def debiased(self) -> Debiased:
        """Return a near-unbiased estimate and its standard error, for comparing arms of different sample counts.

        The plug-in minus the bias that Gaussian samples with the arm's spectrum would have (closed form, also far below
        as many samples as dimensions). Up to half as many samples as dimensions ``d`` that is the bias of the fitted
        spectrum or of the reference's own, whichever is smaller; from ``d`` on it is that of the fitted one, and from
        ``2 d`` on the measured decay of the bias takes over. Clipped to what lies between the witness mean and the
        plug-in.

        The standard error is that of the noise: what the scores show and, of second order, the noise that the reference
        itself would have, together, or from 100 samples on the spread of tenths of the samples, whichever is more. It
        does not contain what is left of the bias, which below ``d`` samples can be several times as large. So this is
        an estimate, not a bound.

        Raises:
            NotReadyError: if there are fewer than two samples, or no reference.
        """
        with self._synced():
            value, stderr = self._debiased()
            return Debiased(self._output(value), self._output(stderr))

    @property
    def burn_in_met(self) -> bool:
        """Whether there are enough samples (on this rank) for the bound: ``4 r + log(3 / delta)`` for the paper's."""
        if self.num_samples < self.min_samples:
            return False
        if self.bound not in _BONUSES:
            return True
        with exact_arithmetic():
            try:
                spectrum = self._spectrum()
            except NotReadyError:  # there is no reference yet
                return False
            if self.bound == "naive":
                dim = spectrum.reference.num_features
                norms = CovarianceNorms(trace=float(dim), frobenius=math.sqrt(dim), spectral=1.0)
            else:
                norms = self._norms(spectrum)
            return spectrum.count >= fd_burn_in(norms, self._level)

    @property
    def min_samples(self) -> int:
        """The fewest samples with which the bound says anything at all."""
        return MIN_ROWS if self.bound == "witness" else 2

    def losses(self, fields: Iterable[str]) -> dict[str, float]:
        """Return the asked-for fields of ``ArmStats``; the distance is a loss already.

        For bounds without a witness, ``witness`` is the bound's own plug-in, ``stderr`` is 0, and the coarse fields are
        ``nan``.

        Args:
            fields: names out of ``loss_fields``.

        Raises:
            InputError: if there is no such field.
            NotReadyError: if there are fewer than two samples, or no reference, and anything but ``nan`` is asked for.
        """
        wanted = set(fields)
        if not wanted <= set(self.loss_fields):
            unknown = sorted(wanted - set(self.loss_fields))
            raise InputError(f"Expected fields out of {self.loss_fields}, but got {unknown}.")
        result: dict[str, float] = {}
        with self._synced():
            if "optimistic" in wanted:
                result["optimistic"] = self._optimistic()
            if "pessimistic" in wanted:
                result["pessimistic"] = self._pessimistic()
            if "estimate" in wanted:
                result["estimate"] = self._plug_in(unbiased=True)
            if wanted & {"witness", "stderr"}:
                result["witness"], result["stderr"] = self._witness_mean()
            if wanted & {"debiased", "debiased_stderr"}:
                result["debiased"], result["debiased_stderr"] = self._debiased()
            for name in wanted & set(_COARSE_FIELDS):
                result[name] = getattr(self._witness_summary(), name) if self.bound == "witness" else math.nan
        return {name: value for name, value in result.items() if name in wanted}

    def score_from_loss(self, loss: float) -> float:
        """Translate a loss back into the metric's own unit: it is the same."""
        return loss

    def _limit_rows(self) -> None:
        """Fold all rows once there are more of them than dimensions; a witness has its own rule."""
        if self.bound == "witness":
            self._settle_rows()
            return
        if self.num_samples > self.rows[-1].shape[1]:
            before, rows = self._folded(), list(self.rows)
            after = self._fold_oldest(len(rows))
            spectrum: SampleSpectrum | None = self._caches.get("spectrum")
            if spectrum is not None:
                spectrum.fold(before, rows, after)

    def _spectrum(self) -> SampleSpectrum:
        """Return the spectra of the samples so far."""
        reference = self._ready_reference()
        spectrum: SampleSpectrum | None = self._caches.get("spectrum")
        if spectrum is None or spectrum.reference is not reference:
            norms = self.bound in _BONUSES and self.bound != "naive" and self.threshold == 0
            spectrum = self._caches["spectrum"] = SampleSpectrum(reference, norms)
        spectrum.read(self._folded(), self._kept_rows())
        return spectrum

    def _plug_in(self, unbiased: bool) -> float:
        spectrum = self._spectrum()
        divisor = spectrum.count - int(unbiased)
        cross = spectrum.root_trace / math.sqrt(divisor)
        return float(assemble(spectrum.mean_gap_squared, spectrum.trace / divisor, spectrum.reference.trace, cross))

    def _norms(self, spectrum: SampleSpectrum) -> CovarianceNorms:
        divisor = spectrum.count - int(self.bound not in _BIASED_PLUG_IN)
        if self.threshold > 0:
            return covariance_norms(threshold_covariance(spectrum.scatter() / divisor, spectrum.count, self.threshold))
        return spectrum.norms(divisor)

    def _bonus(self) -> float:
        spectrum = self._spectrum()
        inputs = _BonusInputs(
            num_samples=spectrum.count,
            dim=spectrum.reference.num_features,
            mean_gap=math.sqrt(float(spectrum.mean_gap_squared)),
            root_trace=float(spectrum.reference.trace_root),
            norms=lambda: self._norms(spectrum),
            delta=self._level,
            kappa=self.kappa,
            norm_bound=self.norm_bound or 0.0,
            as_printed=self.paper_as_printed,
        )
        return _BONUSES[self.bound](inputs)

    def _optimistic(self) -> float:
        if self.bound == "witness":
            return self._witness_lower()
        plug_in = self._plug_in(unbiased=self.bound not in _BIASED_PLUG_IN)
        return plug_in if self.bound == "none" else plug_in - self._bonus()

    def _interval(self) -> tuple[float, float]:
        if self.bound == "witness":
            return self._witness_lower(), self._witness_upper()
        plug_in = self._plug_in(unbiased=self.bound not in _BIASED_PLUG_IN)
        if self.bound == "none":
            return -math.inf, math.inf
        bonus = self._bonus()
        return plug_in - bonus, plug_in + bonus

    def _pessimistic(self) -> float:
        return self._witness_upper() if self.bound == "witness" else self._interval()[1]

    def _witness_mean(self) -> tuple[float, float]:
        """Return the witness's mean and standard error; for bounds without a witness their plug-in and 0."""
        if self.bound == "witness":
            return super()._witness_mean()
        return self._plug_in(unbiased=self.bound not in _BIASED_PLUG_IN), 0.0

    def _debiased(self) -> tuple[float, float]:
        """Return the near-unbiased estimate and its standard error."""
        spectrum = self._spectrum()
        reference, folded, rows = spectrum.reference, self._folded(), self._kept_rows()
        parts = None
        if rows:
            # What was measured holds as long as the rows begin with the same object.
            known, first, of = self._caches.get("parts", (None, None, None))
            same = first is rows[0] and of is reference
            wanted = slope_weight(spectrum.count, reference.num_features) > 0
            parts = measure_parts(reference, folded, rows, wanted, known if same else None)
            self._caches["parts"] = (parts, rows[0], reference)
        if folded is not None and self.bound != "witness":
            # These bounds keep no single rows beyond the dimension, and so no scores.
            fit = Fit.of_moments(reference, folded)
        else:
            fit = Fit.of_summary(self._witness_summary())
        return debiased_value(spectrum, self._plug_in(unbiased=False), fit, parts)


def _check_arguments(
    bound: str,
    kappa: float,
    threshold: float,
    norm_bound: float | None,
    paper_as_printed: bool,
    max_rows: int | None,
) -> None:
    """Refuse constructor arguments out of their range."""
    if bound not in BOUNDS:
        raise InputError(f"Expected `bound` to be one of {BOUNDS}, but got {bound!r}.")
    if not is_number(kappa) or kappa <= 0:
        raise InputError(f"Expected `kappa` to be a positive number, but got {kappa!r}.")
    if not is_number(threshold) or threshold < 0:
        raise InputError(f"Expected `threshold` to be a number of at least 0, but got {threshold!r}.")
    if norm_bound is not None and (not is_number(norm_bound) or norm_bound <= 0):
        raise InputError(f"Expected `norm_bound` to be a positive number or None, but got {norm_bound!r}.")
    if bound == "bounded" and norm_bound is None:
        raise InputError("Expected `norm_bound` with `bound='bounded'`, but got None; give the largest feature norm.")
    if paper_as_printed and bound not in ("paper", "bounded"):
        raise InputError(f"Expected `paper_as_printed` with `bound='paper'` or 'bounded', but got {bound!r}.")
    if max_rows is not None and not is_whole(max_rows, least=2):
        raise InputError(f"Expected `max_rows` to be an integer of at least 2 or None, but got {max_rows!r}.")
