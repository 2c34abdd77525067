"""The Inception Score with an optimistic bound."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torchmetrics.utilities.distributed import gather_all_tensors

from tm_bandit._arguments import check_count, check_flag
from tm_bandit._device import as_float64
from tm_bandit.bounds.bound import Bound
from tm_bandit.bounds.is_bounds import IS_BOUNDS
from tm_bandit.comparison import Pair, has_few_values
from tm_bandit.errors import InputError
from tm_bandit.extractors import Extractor, resolve
from tm_bandit.functional.confidence import ScoreMoments, WidthKind, deviation
from tm_bandit.functional.crossfit import MIN_ROWS, Fitting
from tm_bandit.functional.inception_score import ClassSums, check_probabilities, class_sums, log_inception_score
from tm_bandit.functional.paired import PairedScores, paired_kl_scores
from tm_bandit.functional.witness_is import uniform_prior
from tm_bandit.metrics._attributes import Setting, state
from tm_bandit.metrics.feature_metric import FeatureMetric
from tm_bandit.metrics.marginal_stream import MarginalSums, add_probs
from tm_bandit.metrics.marginal_view import InceptionWitnessBound, SumView
from tm_bandit.metrics.row_log import as_list, exact_arithmetic

#: States whose last dimension is the number of classes, which may be unknown until the first batch.
_PER_CLASS = ("prob", "prob_square", "real_prob", "fold_prob", "predictor")


class OptimisticIS(FeatureMetric):
    r"""Inception Score of generated samples, with an optimistic (upper) bound for choosing between generators.

    .. math::
        \mathrm{IS} = \exp\Big( H\Big(\frac{1}{n} \sum_i p_i\Big) - \frac{1}{n} \sum_i H(p_i) \Big)

    where :math:`p_i` are the class probabilities that a classifier gives to sample :math:`i` and :math:`H` is the
    entropy. :meth:`compute` returns the optimistic score, which is above the true one with high probability;
    :meth:`estimate` returns the formula above. Samples are not split into groups and not shuffled, so a value depends
    on the samples alone. Only a few vectors of class length are stored, however many samples there are.

    The bounds (``L`` is the logarithm in which the failure probability enters, ``d`` the number of classes):

    - ``"witness"``: the mean of :math:`\mathrm{KL}(p_i \| q)`, with :math:`q` fitted on other samples, plus its width;
      its expectation is at least :math:`\log \mathrm{IS}` for every :math:`q`.
    - ``"paper"``: theorem 2 of Hu, Leung and Farnia, :math:`L = \log(4 d / \delta)`.
    - ``"authors"``: the constants of their program, :math:`L = \log(4 / \delta)`; no guarantee.
    - ``"naive"``: theorem 2 with variances replaced by their dimension-based caps.
    - ``"none"``: no bound; :meth:`compute` returns the plain estimate.

    What ``"witness"`` promises. The upper end of :meth:`bounds` is never above the number of classes; the lower end is
    the plain estimate (which is too low on average) minus its own width. Each end may fail with probability
    ``delta / 2``. At each sample count the expectations are on the right sides for every distribution; the widths are
    confidence sequences, so looking after every sample is allowed. They are asymptotic (estimated variance). With
    ``fitting="predictable"`` the upper end's anytime validity is proved in that sense, with ``"crossfit"`` it is
    measured. Nothing is promised below 200 samples, where a class with 2% of the mass
    may still be missing: the ends are then 1 and the number of classes, though :meth:`compute`, for choosing
    between generators, is sharper.
    The paper's inequality is one-sided: with these bounds the lower end is ``-inf``.

    What :meth:`debiased` is: the plain estimate is too low by an amount that shrinks with the number of samples, so it
    must not be used to compare generators with different numbers of samples. This one may be. It is the
    mean of a jackknife over folds and of the midpoint between the plain estimate and the cross-fitted witness, and lies
    between the plain estimate and the witness mean; it is an estimate, not a bound. Its standard error is that of the
    witness's mean, but at least that of a sure classifier with these classes and one more sample, of any class. The
    spread over runs of 10 to 500 samples is 0.3 to 1.6 times as large, whether classes are equally frequent, follow
    Zipf's law, or one of ten has four fifths. With many more classes than samples (1,000 against 40) it is smaller, and
    the error is mostly an allowance for the bias.

    Real samples (``update(images, real=True)``) are not needed; the witness bound is tighter with them, because their
    classes are a good first guess at those of generated ones. Losses are in units of :math:`-\log \mathrm{IS}`.

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
        horizon: number of looks ``T`` at the score; ``delta`` is divided by it, as in the paper's algorithm.
        normalize: whether images are floats in [0, 1] rather than uint8.
        log_scale: report :math:`\log \mathrm{IS}` everywhere instead of :math:`\mathrm{IS}`.
        logits: whether the network returns logits; else it returns probabilities.
        num_classes: number of classes, checked from the first batch on if it is given.
        feature_extractor_weights_path: file with the Inception network's weights.
        reset_real_features: whether :meth:`reset` also forgets real samples.
        antialias: whether the Inception network's resize is antialiased.
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
    bound_table: ClassVar[Mapping[str, Bound]] = {"witness": InceptionWitnessBound(), **IS_BOUNDS}
    generated_states = (*ClassSums._fields, *MarginalSums._fields)
    real_states = ("real_num", "real_prob")
    later_states = ("rows",)
    _narrow = 4096  # sums of a few thousand numbers, nothing of size d x d

    num: Tensor = state()
    prob: Tensor = state()
    prob_square: Tensor = state()
    entropy: Tensor = state()
    entropy_square: Tensor = state()
    real_num: Tensor = state()
    real_prob: Tensor = state()
    fold_num: Tensor = state()
    fold_prob: Tensor = state()
    score_sums: Tensor = state()
    predictor: Tensor = state()
    rows: list[Tensor] = state()

    log_scale = Setting(check_flag)

    def __init__(
        self,
        feature: nn.Module | int | str | Callable[[Any], Any] | Extractor | None = "logits_unbiased",
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
        classes = 0 if num_classes is None else check_count("num_classes", num_classes, 1)
        super().__init__(bound, width, fitting, reset_real_features, delta=delta, horizon=horizon, **kwargs)
        self.log_scale = log_scale
        self.logits = logits
        path = feature_extractor_weights_path
        self._hold(resolve(feature, weights_path=path, normalize=normalize, antialias=antialias))
        classes = classes or self.extractor.num_features or 0
        try:
            empty = MarginalSums.empty(classes)
        except (RuntimeError, TypeError) as error:
            raise InputError(f"Expected `num_classes` that fit into memory, but got {classes}.") from error
        for name in ("num", "entropy", "entropy_square", "real_num"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("prob", "prob_square", "real_prob"):
            self.add_state(name, torch.zeros(classes, dtype=torch.float64), dist_reduce_fx="sum")
        for name, value in empty._asdict().items():
            self.add_state(name, value, dist_reduce_fx="sum")

    def extract(self, inputs: Any) -> Tensor:
        """Return the class probabilities of a batch, shape ``(N, d)``, in float64; touches no state.

        Args:
            inputs: what the feature network takes.
        """
        outputs = super().extract(inputs)
        if self.extractor.network is None or not self.logits or not outputs.is_floating_point():
            return outputs
        with exact_arithmetic(narrow=True):  # a softmax splits even the smallest batch among all threads
            return as_float64(outputs).softmax(dim=1)

    def check_rows(self, rows: Tensor, real: bool = False) -> Tensor:
        """Return class probabilities in float64 with rows that sum to exactly one; touches no state.

        Args:
            rows: class probabilities of shape ``(N, d)``.
            real: whether they belong to real samples, which makes no difference.

        Raises:
            InputError: if they are not probabilities, or their number of classes differs from what was seen before.
        """
        checked = check_probabilities(rows)
        if self.num_classes not in (0, checked.shape[1]):
            raise InputError(f"Expected {self.num_classes} classes, but got {checked.shape[1]}; use another metric.")
        return checked.to(self.device)

    def update_probs(self, probs: Tensor, real: bool = False) -> None:
        """Add samples whose class probabilities are already known.

        Args:
            probs: class probabilities, shape ``(N, d)``.
            real: whether they are real samples, see :meth:`update`.
        """
        self.update_rows(probs, real)

    @property
    def num_samples(self) -> int:
        """Number of samples so far (on this rank)."""
        return int(self.num)

    @property
    def num_classes(self) -> int:
        """Number of classes, or 0 while it is not known."""
        return self.prob.shape[0]

    @property
    def row_width(self) -> int | None:
        """Length of a row: the number of classes."""
        return self.num_classes or None

    def score_from_loss(self, loss: float) -> float:
        r"""Translate a loss, :math:`-\log \mathrm{IS}`, into the metric's own unit; infinite ends remain infinite.

        Args:
            loss: what :meth:`losses` returned.
        """
        if self.log_scale or math.isinf(loss):
            return -loss
        largest = math.log(torch.finfo(self._output_dtype).max) * (1.0 - 1e-9)
        return math.exp(min(-loss, largest))

    def _steepness(self, loss: float) -> float:
        # The standard error of exp(x), to first order.
        return 1.0 if self.log_scale else self.score_from_loss(loss)

    def _share(self, template: OptimisticIS) -> None:
        super()._share(template)
        # Arms are compared sample by sample; a metric used on its own needs only sums.
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def _first(self, count: int) -> Tensor | None:
        """Return the class probabilities of the first samples of an arm, or ``None`` if they are not kept."""
        rows = as_list(self.rows) if "rows" in self._defaults else []
        complete = sum(len(batch) for batch in rows) == self.num_samples
        return torch.cat(rows)[:count].double() if complete and 0 < count <= self.num_samples else None

    def _scored(self, other: OptimisticIS, count: int, *, common: bool) -> PairedScores | None:
        one, two = self._first(count), other._first(count)
        if count < MIN_ROWS or one is None or two is None:
            return None
        with exact_arithmetic(narrow=True):
            return paired_kl_scores(torch.stack([one, two]), self._priors(), common=common)

    def paired(self, other: OptimisticIS, count: int) -> Pair | None:
        """Return how two arms compare by one marginal for both, or ``None``; see :mod:`tm_bandit.functional.paired`.

        Args:
            other: a copy of the same metric, with samples drawn from the same noise.
            count: how many samples of each.
        """
        found = self._scored(other, count, common=True)
        if found is None:
            return None
        if torch.equal(*found.scores):
            return None if has_few_values(found.scores[0]) else Pair.of_twins()
        return Pair.of(-found.scores, -found.means)

    def certificate(self, other: OptimisticIS, count: int) -> float | None:
        """Return a lower bound of this arm's loss minus the other's from their first samples, or ``None``.

        See :mod:`tm_bandit.functional.paired`.

        Args:
            other: a copy of the same metric, with samples drawn from the same noise.
            count: how many samples of each.
        """
        found = self._scored(other, count, common=False) if self._bound.standard_errors else None
        rows = other._first(count)
        if found is None or rows is None:
            return None
        plug_in = float(log_inception_score(class_sums(rows)))
        moments = ScoreMoments.of(found.scores[1] - found.scores[0])
        width = deviation(moments, other._level, upper=False, kind=self.width)
        return plug_in - float(found.scores[0].mean()) - width

    def _view(self) -> SumView:
        sums = ClassSums(self.num, self.prob, self.prob_square, self.entropy, self.entropy_square)
        settings = (self._level, self.width, self.fitting)
        return SumView(self.row_log, sums, self._fold_sums(), self._priors, *settings)

    def _fold_sums(self) -> MarginalSums:
        return MarginalSums(self.fold_num, self.fold_prob, self.score_sums, self.predictor)

    def _priors(self) -> Tensor:
        """Return the first guesses at the marginal: uniform and, if there are real samples, theirs."""
        uniform = uniform_prior(self.num_classes, self.prob.device)
        if float(self.real_num) == 0:
            return uniform
        return torch.cat([uniform, (self.real_prob + uniform) / (self.real_num + 1)])

    def add_rows(self, rows: Tensor, real: bool = False) -> None:
        """Add rows, as :meth:`check_rows` returned them, to the states, without further checks.

        Args:
            rows: class probabilities of shape ``(N, d)``.
            real: whether they belong to real samples.
        """
        self._refuse_if_synced()
        with exact_arithmetic(self._is_narrow):
            self._know_classes(rows.shape[1])
            if real:
                self.real_num, self.real_prob = self.real_num + len(rows), self.real_prob + rows.sum(dim=0)
                return
            sums = {name: getattr(self, name) + value for name, value in class_sums(rows)._asdict().items()}
            # Not reassigned as in torchmetrics: the history continues.
            vars(self).update(sums, **add_probs(self._fold_sums(), rows, self._priors())._asdict())
            self.row_log.length += len(rows)
            if "rows" in self._defaults:
                self.rows.append(rows.float())

    # ---- states of a length that is known from the first batch on ----

    def _know_classes(self, num_classes: int) -> None:
        """Give the states that depend on the number of classes their length."""
        if num_classes != self.num_classes:
            for name in _PER_CLASS:
                setattr(self, name, _lengthen(getattr(self, name), num_classes))

    def _sync_dist(self, dist_sync_fn: Any = None, process_group: Any = None) -> None:
        """Let the ranks agree on the number of classes first: one without samples may not know it."""
        gather = dist_sync_fn or gather_all_tensors
        local = torch.tensor(self.num_classes, device=self.device)
        known = {int(number) for number in gather(local, group=process_group or self.process_group)} - {0}
        if len(known) > 1:
            raise InputError(
                f"Expected the same number of classes on all ranks, but got {sorted(known)}; use one classifier."
            )
        self._know_classes(max(known, default=0))
        super()._sync_dist(gather, process_group=process_group)

    def _reduce_states(self, incoming_state: Mapping[str, Any]) -> None:
        """Merge the states of another metric (``merge_state``); either may have no samples yet."""
        incoming = dict(incoming_state)
        self._check_states(incoming)
        self._know_classes(incoming["prob"].shape[-1])
        for name in _PER_CLASS:
            incoming[name] = _lengthen(incoming[name], self.num_classes)
        super()._reduce_states(incoming)


def _lengthen(state: Tensor, num_classes: int) -> Tensor:
    """Return ``state``, or zeros of the right length if it has none yet."""
    return state if state.shape[-1] else state.new_zeros(*state.shape[:-1], num_classes)
