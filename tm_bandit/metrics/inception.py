"""The Inception Score with an optimistic bound."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.utilities.distributed import gather_all_tensors

from tm_bandit._device import as_float64
from tm_bandit.errors import InputError
from tm_bandit.extractors import Extractor
from tm_bandit.functional.confidence import WIDTHS, ScoreMoments, WidthKind
from tm_bandit.functional.crossfit import FITTINGS, MIN_ROWS, Fitting
from tm_bandit.functional.debias import debiased_log_is
from tm_bandit.functional.inception_score import (
    ClassSums,
    check_probabilities,
    class_sums,
    log_inception_score,
)
from tm_bandit.functional.is_bounds import IS_BOUNDS
from tm_bandit.functional.marginal_stream import (
    MarginalSums,
    add_probs,
    marginal_spread,
    witness_interval,
    witness_moments,
)
from tm_bandit.functional.witness_is import uniform_prior
from tm_bandit.metrics._network import FeatureNetworkMixin
from tm_bandit.metrics.base import (
    Debiased,
    Interval,
    OptimisticMetric,
    check_level,
    exact_arithmetic,
    is_whole,
)

_BOUNDS = ("witness", *IS_BOUNDS, "none")
#: States whose last dimension is the number of classes, which may be unknown until the first batch.
_PER_CLASS = ("prob", "prob_square", "real_prob", "fold_prob", "predictor")
#: States of real samples.
_REAL = ("real_num", "real_prob")


class OptimisticIS(FeatureNetworkMixin, OptimisticMetric):
    r"""Inception Score of generated samples, with an optimistic (upper) bound for choosing between generators.

    .. math::
        \mathrm{IS} = \exp\Big( H\Big(\frac{1}{n} \sum_i p_i\Big) - \frac{1}{n} \sum_i H(p_i) \Big)

    where :math:`p_i` are the class probabilities that a classifier gives to sample :math:`i` and :math:`H` is the
    entropy. :meth:`compute` returns the optimistic score, which is above the true one with high probability;
    :meth:`estimate` returns the formula above. Samples are not split into groups and not shuffled, so a value depends
    on the samples alone. What is stored are a few vectors of class length, however many samples there are.

    The bounds (``L`` is the logarithm in which the failure probability enters, ``d`` the number of classes):

    - ``"witness"``: the mean of :math:`\mathrm{KL}(p_i \| q)`, with :math:`q` fitted on other samples, plus its width;
      its expectation is at least :math:`\log \mathrm{IS}` for every :math:`q`.
    - ``"paper"``: theorem 2 of Hu, Leung and Farnia, :math:`L = \log(4 d / \delta)`.
    - ``"authors"``: the constants of their program, :math:`L = \log(4 / \delta)`; no guarantee.
    - ``"naive"``: theorem 2 with variances replaced by their dimension-based caps.
    - ``"none"``: no bound; :meth:`compute` returns the plain estimate.

    As input to ``forward`` and ``update`` the metric accepts

    - ``imgs`` (:class:`~torch.Tensor`): a batch for the feature network: uint8 images of shape ``(N, 3, H, W)``, or
      floats in [0, 1] with ``normalize=True``; for other modules whatever they take.

    As output of ``forward`` and ``compute`` the metric returns

    - ``score`` (:class:`~torch.Tensor`): the optimistic score, a float64 scalar tensor.

    Args:
        feature: the classifier: a layer of the Inception network (as in torchmetrics), a module or callable that
            returns logits of shape ``(N, d)``, or ``"none"`` if probabilities are computed elsewhere
            (:meth:`update_probs`).
        bound: one of the above.
        delta: failure probability of the bound.
        horizon: number of looks ``T`` at the score; divides ``delta``, as in the paper's algorithm.
        normalize: whether images are floats in [0, 1] rather than uint8.
        log_scale: report :math:`\log \mathrm{IS}` everywhere instead of :math:`\mathrm{IS}`.
        logits: whether the network returns logits; else it returns probabilities.
        num_classes: number of classes, if it shall be checked from the first batch on.
        feature_extractor_weights_path: file with the Inception network's weights.
        reset_real_features: whether :meth:`reset` also forgets real samples.
        antialias: whether the Inception network's resize smooths before it samples.
        width: confidence sequence of ``"witness"``: ``"mixture"``, or ``"lil"``, which is wider and safer.
        fitting: how ``"witness"`` keeps its witnesses independent of the samples they score: ``"crossfit"``, or
            ``"predictable"``, which is looser but whose anytime guarantee is proved.
        kwargs: see torchmetrics' ``Metric``.

    Raises:
        InputError: if an argument is not one of those described.
        WeightsError: if the weights of a named network cannot be found or fetched.

    Example:
        >>> import torch
        >>> from tm_bandit import OptimisticIS
        >>> metric = OptimisticIS(feature="none", bound="paper")
        >>> metric.update_probs(torch.eye(4).repeat(100, 1))
        >>> metric.estimate()
        tensor(4., dtype=torch.float64)
        >>> bool(metric.compute() > 4)
        True
    """

    higher_is_better: bool = True
    plot_lower_bound: float = 0.0

    generated_states = (*ClassSums._fields, *MarginalSums._fields)

    num: Tensor
    prob: Tensor
    prob_square: Tensor
    entropy: Tensor
    entropy_square: Tensor
    real_num: Tensor
    real_prob: Tensor
    fold_num: Tensor
    fold_prob: Tensor
    score_sums: Tensor
    predictor: Tensor

    def __init__(
        self,
        feature: int | str | nn.Module | Callable[[Any], Any] | Extractor | None = "logits_unbiased",
        bound: str = "witness",
        delta: float = 0.05,
        horizon: int | None = None,
        normalize: bool = False,
        log_scale: bool = False,
        logits: bool = True,
        num_classes: int | None = None,
        feature_extractor_weights_path: str | os.PathLike[str] | None = None,
        reset_real_features: bool = True,
        antialias: bool = True,
        width: WidthKind = "mixture",
        fitting: Fitting = "crossfit",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(reset_real_features, bool):
            raise InputError(f"Expected `reset_real_features` to be a bool, but got {reset_real_features!r}.")
        if bound not in _BOUNDS:
            raise InputError(f"Expected `bound` to be one of {', '.join(_BOUNDS)}, but got {bound!r}.")
        check_level(delta, horizon)
        if num_classes is not None and not is_whole(num_classes, least=1):
            raise InputError(f"Expected `num_classes` to be a positive integer or None, but got {num_classes!r}.")
        if width not in WIDTHS:
            raise InputError(f"Expected `width` to be one of {', '.join(WIDTHS)}, but got {width!r}.")
        if fitting not in FITTINGS:
            raise InputError(f"Expected `fitting` to be one of {', '.join(FITTINGS)}, but got {fitting!r}.")
        self.bound = bound
        self.width = width
        self.fitting = fitting
        self.delta = float(delta)
        self.horizon = horizon
        self.log_scale = log_scale
        self.logits = logits
        self.reset_real_features = reset_real_features
        self._hold_network(
            feature, weights_path=feature_extractor_weights_path, normalize=normalize, antialias=antialias
        )
        classes = num_classes or self._extractor.num_features or 0
        for name in ("num", "entropy", "entropy_square", "real_num"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("prob", "prob_square", "real_prob"):
            self.add_state(name, torch.zeros(classes, dtype=torch.float64), dist_reduce_fx="sum")
        for name, value in MarginalSums.empty(classes)._asdict().items():
            self.add_state(name, value, dist_reduce_fx="sum")

    def extract(self, inputs: Any) -> Tensor:
        """Return the class probabilities of a batch, shape ``(N, d)``, in float64; touches no state.

        Args:
            inputs: what the feature network takes.
        """
        outputs = self._extract_rows(inputs)
        if self._extractor.network is None or not self.logits or not outputs.is_floating_point():
            return outputs
        return as_float64(outputs).softmax(dim=1)

    def check_rows(self, rows: Tensor) -> Tensor:
        """Return class probabilities in float64 with rows that sum to exactly one; touches no state.

        Args:
            rows: class probabilities of shape ``(N, d)``.

        Raises:
            InputError: if they are no probabilities, or their number of classes differs from what was seen before.
        """
        checked = check_probabilities(rows)
        if self.num_classes not in (0, checked.shape[1]):
            raise InputError(
                f"Expected probabilities of {self.num_classes} classes, but got {checked.shape[1]}; use one metric per "
                "classifier."
            )
        return checked.to(self.device)

    def update(self, imgs: Any, real: bool = False) -> None:
        """Add a batch of samples.

        Args:
            imgs: what the feature network takes; with ``feature="none"`` class probabilities.
            real: whether they are real samples. The score needs none; the witness bound is tighter with them, because
                the classes of real samples are a good first guess at those of generated ones.
        """
        self._add(self.check_rows(self.extract(imgs)), real)

    def update_probs(self, probs: Tensor, real: bool = False) -> None:
        """Add samples of which the class probabilities are known already.

        Args:
            probs: class probabilities, shape ``(N, d)``.
            real: whether they are real samples, see :meth:`update`.
        """
        self._add(self.check_rows(probs), real)
        self._note_update()

    def update_rows(self, rows: Tensor) -> None:
        """Add what :meth:`extract` returned; the same as :meth:`update_probs`.

        Args:
            rows: class probabilities, shape ``(N, d)``.
        """
        self.update_probs(rows)

    def forward(self, imgs: Any, real: bool = False) -> Any:
        """Add a batch of generated samples and return the optimistic score of this batch alone.

        Args:
            imgs: as in :meth:`update`.
            real: must be false: a batch of real samples has no score.

        Raises:
            InputError: if the samples are real ones.
            NotReadyError: if the batch is too small for a score; nothing is added then.
        """
        if real:
            raise InputError(
                "Expected generated samples in `forward`, but got real ones; use `update(..., real=True)`."
            )
        return super().forward(imgs)

    def reset(self) -> None:
        """Forget all samples; real ones only if ``reset_real_features`` is set."""
        kept = {} if self.reset_real_features else {name: getattr(self, name) for name in _REAL}
        super().reset()
        for name, state in kept.items():
            setattr(self, name, state)

    def _add(self, rows: Tensor, real: bool) -> None:
        self._refuse_if_synced()
        with exact_arithmetic():
            self._know_classes(rows.shape[1])
            if real:
                self.real_num = self.real_num + len(rows)
                self.real_prob = self.real_prob + rows.sum(dim=0)
                return
            for name, value in class_sums(rows)._asdict().items():
                setattr(self, name, getattr(self, name) + value)
            for name, value in add_probs(self._fold_sums(), rows, self._priors())._asdict().items():
                setattr(self, name, value)

    def compute(self) -> Tensor:
        """Return the optimistic score: with probability ``1 - delta`` the true score is below it."""
        return self._report(self._optimistic())

    def estimate(self) -> Tensor:
        """Return the plain Inception Score of the samples so far."""
        with self._synced():
            return self._report(log_inception_score(self._sums()))

    def bounds(self) -> Interval:
        """Return lower and upper bound of the score.

        The paper's inequality is one-sided: with these bounds the lower side is ``-inf``.

        With ``bound="witness"`` the upper end is the mean of the witness scores plus its width, never above the number
        of classes; the lower end is the plain estimate (which is too low on average) minus the same width. Each end may
        fail with probability ``delta / 2``. At each sample count the expectations are on the right sides for every
        distribution; the widths are confidence sequences, so looking after every sample is allowed. They are asymptotic
        (estimated variance): a good approximation, not a guarantee, below about 50 samples. With
        ``fitting="predictable"`` the upper end's anytime validity is proved in that sense, with ``"crossfit"`` it is
        measured. Vacuous are a lower end of 1 and an upper end that equals the number of classes.
        """
        with self._synced():
            lower, upper = self._interval()
            return Interval(self._report(lower), self._report(upper))

    def debiased(self) -> Debiased:
        """Return a near-unbiased estimate and its standard error.

        The plain estimate is too low by an amount that shrinks with the number of samples, so it must not be used to
        compare generators of which different numbers of samples were drawn. This one may. It is the mean of a jackknife
        over folds and of the midpoint between the plain estimate and the cross-fitted witness, and lies between the
        plain estimate and the witness mean; it is an estimate, not a bound.

        The standard error is that of the witness's mean, but at least that of a sure classifier with these classes and
        one sample more, of any class. The spread over runs of 10 to 500 samples is 0.3 to 1.6 times as large, whether
        classes are equally frequent, follow Zipf's law, or one of ten has four fifths. Where there are many more
        classes than samples (a thousand, and forty) it is smaller, and the error is mostly an allowance for the bias.
        """
        with self._synced():
            value, stderr = self._debiased()
            # On the plain scale, the standard error of exp(x) to first order.
            scale = 1.0 if self.log_scale else self._report(value)
            return Debiased(self._report(value), self._output(stderr * scale))

    @property
    def num_samples(self) -> int:
        """Number of samples so far (on this rank)."""
        return int(self.num)

    @property
    def num_classes(self) -> int:
        """Number of classes, or 0 while it is not known."""
        return self.prob.shape[0]

    @property
    def burn_in_met(self) -> bool:
        """Whether there are enough samples for the bound; the theorem on the score asks for two only."""
        return self.num_samples >= self.min_samples

    @property
    def min_samples(self) -> int:
        """The fewest samples with which the bound says anything."""
        return {"none": 1, "witness": MIN_ROWS}.get(self.bound, 2)

    def losses(self, fields: Iterable[str]) -> dict[str, float]:
        r"""Return fields of ``ArmStats`` in units of :math:`-\log \mathrm{IS}`, computing nothing else.

        Args:
            fields: names out of ``loss_fields``. For bounds without a witness, ``witness`` is the plain estimate and
                ``stderr`` is zero.

        Raises:
            InputError: if a name is unknown.
        """
        wanted = list(fields)
        unknown = [name for name in wanted if name not in self.loss_fields]
        if unknown:
            raise InputError(f"Expected fields out of {', '.join(self.loss_fields)}, but got {', '.join(unknown)}.")
        with self._synced():
            values: dict[str, float] = {}
            if {"witness", "stderr"} & set(wanted):
                values["witness"], values["stderr"] = self._witness_loss()
            if "estimate" in wanted:
                values["estimate"] = -float(log_inception_score(self._sums()))
            if "optimistic" in wanted:
                values["optimistic"] = -float(self._optimistic())
            if "pessimistic" in wanted:
                values["pessimistic"] = -float(self._interval()[0])
            if {"debiased", "debiased_stderr"} & set(wanted):
                value, stderr = self._debiased()
                values["debiased"], values["debiased_stderr"] = -float(value), float(stderr)
        return {name: values[name] for name in wanted}

    def score_from_loss(self, loss: float) -> float:
        r"""Translate a loss, :math:`-\log \mathrm{IS}`, into the metric's own unit.

        Args:
            loss: what :meth:`losses` returned.
        """
        return float(self._report(torch.tensor(-loss, dtype=torch.float64)))

    # ---- what the samples say, from the states as they are (synced by the caller) ----

    def _sums(self) -> ClassSums:
        return ClassSums(self.num, self.prob, self.prob_square, self.entropy, self.entropy_square)

    def _optimistic(self) -> Tensor:
        """Return the optimistic value of log IS."""
        if self.bound == "none":
            return log_inception_score(self._sums())
        if self.bound == "witness":
            return self._witness_interval()[1]
        return IS_BOUNDS[self.bound](self._sums(), self._level)

    def _interval(self) -> tuple[Tensor, Tensor]:
        """Return lower and upper bound of log IS."""
        if self.bound == "witness":
            return self._witness_interval()
        infinity = torch.full_like(self.entropy, math.inf)
        return -infinity, infinity if self.bound == "none" else self._optimistic()

    def _debiased(self) -> tuple[Tensor, Tensor]:
        """Return the debiased log IS and its standard error."""
        # The plain estimate first: it says so if there are no samples.
        log_inception_score(self._sums())
        scores = self._witness_scores()
        mean_entropy = float(self.entropy / self.num)
        value = debiased_log_is(self.fold_prob, self.fold_num, mean_entropy, scores.mean)
        # With few samples the witness is nearly uniform, and its scores vary less than those of the marginal itself;
        # one sample more, of any class, for the case that all were of one.
        smooth = (self.prob + 1.0 / len(self.prob)) / (self.num + 1)
        least = float(marginal_spread(smooth)) / math.sqrt(float(self.num))
        return self.entropy.new_tensor(value), self.entropy.new_tensor(max(scores.stderr, least))

    def _witness_loss(self) -> tuple[float, float]:
        """Return the mean of the witness scores as a loss, and its standard error; else the plain estimate and 0."""
        estimate = log_inception_score(self._sums())
        if self.bound != "witness":
            return -float(estimate), 0.0
        scores = self._witness_scores()
        return -scores.mean, scores.stderr

    def _witness_interval(self) -> tuple[Tensor, Tensor]:
        """Return the interval of log IS that the witness gives; each end has half of ``delta``."""
        estimate = float(log_inception_score(self._sums()))
        ends = witness_interval(
            self._witness_scores(),
            estimate,
            self.num_classes,
            self._level / 2,
            self.width,
            least_spread=float(marginal_spread(self.prob / self.num)),
        )
        return self.entropy.new_tensor(ends[0]), self.entropy.new_tensor(ends[1])

    def _witness_scores(self) -> ScoreMoments:
        # One look asks for them several times; states are replaced, never changed in place.
        states = (*self._fold_sums(), self.entropy, self.real_num, self.real_prob, self.fitting)
        known: tuple[tuple[Tensor | str, ...], ScoreMoments] | None = self._caches.get("scores")
        if known is None or any(old is not new for old, new in zip(known[0], states, strict=True)):
            known = states, witness_moments(self._fold_sums(), self.entropy, self._priors(), self.fitting)
            self._caches["scores"] = known
        return known[1]

    def _fold_sums(self) -> MarginalSums:
        return MarginalSums(self.fold_num, self.fold_prob, self.score_sums, self.predictor)

    def _priors(self) -> Tensor:
        """Return the first guesses at the marginal: uniform and, if there are real samples, theirs."""
        uniform = uniform_prior(self.num_classes, self.prob.device)
        if float(self.real_num) == 0:
            return uniform
        return torch.cat([uniform, (self.real_prob + uniform) / (self.real_num + 1)])

    def _report(self, log_value: Tensor) -> Tensor:
        """Turn a logarithm into the metric's own unit; infinite sides of an interval remain infinite."""
        if self.log_scale:
            return self._output(log_value)
        largest = math.log(torch.finfo(self._output_dtype).max) * (1.0 - 1e-9)
        finite = log_value.clamp(max=largest).exp()
        return self._output(torch.where(log_value.isinf(), log_value, finite))

    # ---- states of a length that is known from the first batch on ----

    def _know_classes(self, num_classes: int) -> None:
        """Give the states that wait for the number of classes their length."""
        for name in _PER_CLASS:
            setattr(self, name, _lengthen(getattr(self, name), num_classes))

    def _sync_dist(self, dist_sync_fn: Any = None, process_group: Any = None) -> None:
        """Let the ranks agree on the number of classes first: one without samples may not know it."""
        gather = dist_sync_fn or gather_all_tensors
        local = torch.tensor(self.num_classes, device=self.device)
        known = {int(number) for number in gather(local, group=process_group or self.process_group)} - {0}
        if len(known) > 1:
            raise InputError(
                f"Expected the same number of classes on all ranks, but got {sorted(known)}; use one classifier "
                "everywhere."
            )
        self._know_classes(max(known, default=0))
        super()._sync_dist(gather, process_group=process_group)

    def _reduce_states(self, incoming_state: Mapping[str, Any]) -> None:
        """Merge the states of another metric (``merge_state``); either may not have seen a sample yet."""
        incoming = dict(incoming_state)
        self._know_classes(incoming["prob"].shape[-1])
        for name in _PER_CLASS:
            incoming[name] = _lengthen(incoming[name], self.num_classes)
        super()._reduce_states(incoming)


def _lengthen(state: Tensor, num_classes: int) -> Tensor:
    """Return ``state``, or zeros of the right length if it has none yet."""
    return state if state.shape[-1] else state.new_zeros(*state.shape[:-1], num_classes)
