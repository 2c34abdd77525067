"""The mean of any score of single samples, streaming, with an optimistic bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics.utilities.distributed import gather_all_tensors

from tm_bandit._arguments import check_choice, check_count, check_flag, check_number
from tm_bandit._device import as_float64, check_dense
from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.extractors import Score
from tm_bandit.functional.betting import betting_lower_bound
from tm_bandit.functional.confidence import LEAST_SCORES, MIN_CERTIFIED, WIDTHS, ScoreMoments, WidthKind, mean_interval
from tm_bandit.metrics._attributes import Setting, optional, state
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.metrics.row_log import RowLog, as_list, exact_arithmetic
from tm_bandit.metrics.traits import Traits

#: How far, in units of the range, a score may be beyond its limits: what rounding in float32 adds, and more.
_ROUNDING = 1e-5


def _check_limits(name: str, value: Any) -> tuple[float, float]:
    try:
        low, high = (check_number(name, end) for end in value)
    except (TypeError, ValueError) as error:
        raise InputError(f"Expected `{name}` to be a pair of numbers (low, high), but got {value!r}.") from error
    if not low < high:
        raise InputError(f"Expected `{name}` to be (low, high) with low below high, but got {value!r}.")
    return low, high


def _beyond(values: Tensor, limits: tuple[float, float]) -> str:
    """Return the range of scores that are beyond their limits by more than rounding; nothing if they are not."""
    (low, high), (least, most) = limits, (float(end) for end in values.aminmax())
    slack = _ROUNDING * (high - low)
    return f"{least:.6g} to {most:.6g}" if least < low - slack or most > high + slack else ""


class OptimisticMean(OptimisticMetric):
    r"""Mean of a score of single samples (CLIPScore, PickScore, aesthetics, ...), with an optimistic bound.

    .. math:: \bar s = \frac{1}{n} \sum_{i=1}^n s(x_i)

    :meth:`estimate` and :meth:`debiased` are this mean, which is unbiased. :meth:`compute` is *optimistic*: with
    probability ``1 - delta`` the true mean is not better. Looking after every sample is allowed.

    What the interval promises. Each end may fail with probability ``delta / 2``, at all sample counts together. With
    ``bounded=(low, high)`` that is proved at every count, from the first sample on, for any distribution within these
    limits (betting; see :func:`~tm_bandit.functional.betting_lower_bound`). Without limits it is an asymptotic
    confidence sequence (estimated variance): infinite below 10 samples, and up to about 50 a good approximation rather
    than a guarantee; no arm is certified below 200. The same holds for differences between arms. Narrow limits help:
    the first bets are cautious, so the interval is wider than that of scores without limits until there are several
    times ``(range / deviation)^2 / 4`` samples.

    As input to ``forward`` and ``update`` the metric accepts samples, whatever the score takes, and ``conditions``, one
    per sample, if the score needs them; as output of ``forward`` and ``compute`` it returns a scalar tensor.

    Args:
        score: ``samples -> (n,)`` or ``(samples, conditions) -> (n,)``: a callable, a module, or a torchmetrics metric
            (sample by sample, if it returns one value per batch; it is reset afterwards). It is shared by all copies
            and not saved. Left out if scores are computed elsewhere (:meth:`update_scores`).
        higher_is_better: the direction of the score; ``None`` is that of a torchmetrics metric that says so, else true.
        bounded: the smallest and the largest value that the score can have, or ``None`` if there are no limits.
        delta: failure probability of the bound.
        horizon: number of looks at which the bound must hold together; ``delta`` is divided by it.
        width: confidence sequence of scores without limits: ``"mixture"``, or ``"lil"``, wider and safer.
        conditional: whether the score takes conditions; ``None`` looks at its signature.
        kwargs: see torchmetrics' ``Metric``.

    Raises:
        InputError: if an argument is out of its range.

    Example:
        >>> import torch
        >>> from tm_bandit import OptimisticMean
        >>> brightness = OptimisticMean(lambda images: images.flatten(1).mean(1), bounded=(0.0, 1.0))
        >>> generator = torch.Generator().manual_seed(0)
        >>> for _ in range(4):
        ...     brightness.update(torch.rand(25, 3, 8, 8, generator=generator))
        >>> round(float(brightness.estimate()), 2), [round(float(end), 2) for end in brightness.bounds()]
        (0.5, [0.47, 0.54])
    """

    generated_states = ("scores",)
    row_width = 1

    scores: list[Tensor] = state()
    bounded = Setting(optional(_check_limits))
    width: Any = Setting(lambda name, value: check_choice(name, value, WIDTHS))

    def __init__(
        self,
        score: Callable[..., Any] | nn.Module | Score | None = None,
        higher_is_better: bool | None = None,
        bounded: tuple[float, float] | None = None,
        delta: float = 0.05,
        horizon: int | None = None,
        width: WidthKind = "mixture",
        conditional: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(delta=delta, horizon=horizon, **kwargs)
        if higher_is_better is None:
            function = score.function if isinstance(score, Score) else score
            # That of a metric may be None, too.
            higher_is_better = getattr(function, "higher_is_better", None) is not False
        self._higher = check_flag("higher_is_better", higher_is_better)
        self.bounded = bounded
        self.width = width
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self._score_of = score if score is None or isinstance(score, Score) else Score(score, conditional)

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """The direction of the score."""
        return self._higher

    @property
    def traits(self) -> Traits:
        """What the engine must know about this metric."""
        bound, least = ("betting", 0) if self.bounded else ("sequence", MIN_CERTIFIED)
        return Traits(self._higher, "unbiased", "anytime", "none", bound, certifies_from=least)

    @property
    def needs_conditions(self) -> bool:  # type: ignore[override]
        """Whether samples can only be scored together with their conditions."""
        return self._score_of is not None and self._score_of.conditional

    def extract(self, inputs: Any, conditions: Sequence[Any] | None = None) -> Tensor:
        """Return the scores of a batch, shape ``(n, 1)``; touches no state.

        Args:
            inputs: samples; without a score, the scores themselves.
            conditions: one per sample, for a score that needs them.
        """
        values = inputs if self._score_of is None else self._score_of(inputs, conditions)
        return self.check_rows(values)

    def check_rows(self, rows: Tensor) -> Tensor:
        """Return scores as float64 rows of shape ``(n, 1)``; touches no state.

        Args:
            rows: scores, shape ``(n,)`` or ``(n, 1)``.

        Raises:
            InputError: if shape or dtype are wrong, a score is not finite, or one lies outside of ``bounded``.
        """
        check_dense(rows)
        kind = isinstance(rows, Tensor) and not rows.dtype.is_complex
        if not kind or rows.ndim == 0 or tuple(rows.shape[1:]) not in ((), (1,)):
            got = f"{tuple(rows.shape)} of {rows.dtype}" if isinstance(rows, Tensor) else f"a {type(rows).__name__}"
            raise InputError(f"Expected one score per sample, a tensor of shape (n,), but got {got}.")
        values = as_float64(rows).reshape(-1, 1).to(self.device)
        bad = int((~values.isfinite()).sum())
        if bad:
            raise InputError(
                f"Expected finite scores, but got {bad} of {len(values)} that are NaN or infinite; look at the samples."
            )
        if self.bounded is None or len(values) == 0:
            return values
        low, high = self.bounded
        if found := _beyond(values, self.bounded):
            raise InputError(
                f"Expected scores between {low:g} and {high:g} because of `bounded`, but got some from {found}; give "
                "the limits that the score really has, or none."
            )
        return values.clamp(low, high)

    def update(self, inputs: Any, conditions: Sequence[Any] | None = None) -> None:
        """Add a batch of samples.

        Args:
            inputs: samples, what the score takes.
            conditions: one per sample, for a score that needs them.
        """
        self.add_rows(self.extract(inputs, conditions))

    def update_scores(self, values: Tensor | Sequence[float]) -> None:
        """Add scores that were computed elsewhere.

        Args:
            values: one per sample.
        """
        try:
            scores = values if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values, dtype=np.float64))
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"Expected one score per sample, but got {values!r}; give a list of numbers.") from error
        self.update_rows(scores)

    def add_rows(self, rows: Tensor) -> None:
        """Add scores, as :meth:`check_rows` returned them, to the states, without further checks.

        Args:
            rows: scores, shape ``(n, 1)``.
        """
        self._refuse_if_synced()
        with exact_arithmetic():
            self.row_log.append(rows.clone())

    @property
    def num_samples(self) -> int:
        """Number of samples so far (on this rank)."""
        return self.row_log.length

    @property
    def min_samples(self) -> int:
        """The fewest samples for which the bound is informative."""
        return 2 if self.bounded else LEAST_SCORES

    def losses(self, fields: Iterable[str]) -> dict[str, float]:
        """Return the requested fields of ``ArmStats``: the score, negated if higher is better.

        Args:
            fields: names from ``loss_fields``.

        Raises:
            InputError: if there is no such field.
            NotReadyError: if there are fewer than two samples.
        """
        wanted = self._check_fields(fields)
        with self._synced():
            log = self.row_log
            if log.length < 2:
                raise NotReadyError(f"Expected at least two samples, but got {log.length}; add more.")
            moments = log.derive("moments", lambda: ScoreMoments.of(self.row_scores()), log.key)
            found = dict.fromkeys(("witness", "estimate", "debiased"), moments.mean)
            found |= dict.fromkeys(("stderr", "debiased_stderr"), moments.stderr)
            if not found.keys() >= set(wanted):
                key = (log.key, self._level, self.width, self.bounded)
                found["optimistic"], found["pessimistic"] = log.derive("ends", lambda: self._interval(moments), *key)
        return {name: found[name] for name in wanted}

    def _interval(self, moments: ScoreMoments) -> tuple[float, float]:
        """Return both ends as losses, each with half of the failure probability."""
        if self.bounded is None:
            return mean_interval(moments, self._level / 2, self.width)
        low, high = (-end for end in reversed(self.bounded)) if self._higher else self.bounded
        unit = ((self.row_scores() - low) / (high - low)).clamp(0.0, 1.0)
        below, above = betting_lower_bound(torch.stack([unit, 1 - unit]), self._level / 2).tolist()
        return low + below * (high - low), high - above * (high - low)

    def certificate(self, other: OptimisticMean, count: int) -> float | None:
        """Return a lower bound of this loss minus the other's from ``count`` common draws; proved if there are limits.

        The differences of scores within limits have limits, too.

        Args:
            other: a copy of the same metric over other samples, drawn from the same noise.
            count: how many samples.
        """
        if self.bounded is None:
            return super().certificate(other, count)
        reach = self.bounded[1] - self.bounded[0]
        unit = (self.row_scores(count) - other.row_scores(count)) / (2.0 * reach) + 0.5
        return (2.0 * float(betting_lower_bound(unit.clamp(0.0, 1.0), other._level)) - 1.0) * reach

    def _before_change(self, setting: str, value: Any) -> None:
        """Refuse limits that some scores so far exceed: they would not have been accepted."""
        limited = setting == "bounded" and value is not None and self.num_samples
        if limited and (found := _beyond(torch.cat(as_list(self.scores)), value)):
            raise InputError(
                f"Expected `bounded` to hold the scores so far, {found}, but got {value}; give the limits that the "
                "score really has, or `reset` first."
            )

    def row_scores(self, count: int | None = None) -> Tensor:
        """Return the losses of single rows, where smaller is better; their mean is the loss.

        Args:
            count: how many rows, from the first one on; all by default.
        """
        log = self.row_log
        count = log.length if count is None else min(check_count("count", count, 0), log.length)
        rows = list(log.blocks(0, count, max(log.length, 1)))
        values = torch.cat(rows)[:, 0] if rows else torch.zeros(0, dtype=torch.float64, device=self.device)
        return -values if self._higher else values

    def _open_log(self) -> RowLog:
        return self._log_of_state("scores")

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        """Let ranks without samples take part with an empty tensor of the right kind."""
        if not self.scores:
            self.scores = [torch.zeros(0, 1, dtype=torch.float64, device=self.device)]
        super()._sync_dist(dist_sync_fn, process_group)

    def _share(self, template: Any) -> None:
        # Scores are computed by the template, so moving an arm must not move the network that all share.
        self._score_of = None

    def _follow(self, device: torch.device) -> None:
        if self._score_of is not None:
            self._score_of.to(device)
