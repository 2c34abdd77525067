"""What a policy sees, and the one place that says how two arms compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import overload

from tm_bandit.comparison import Comparison, Pair, anytime_margin, fit_margin
from tm_bandit.policies.policy import ArmStats, Trace, central


# Each look asks again about the waiting arms, whose numbers have not changed: of 200 arms nearly all.
@lru_cache(maxsize=4096)
def compare(first: ArmStats, second: ArmStats, pair: Pair | None = None, *, delta: float = 0.05) -> Comparison:
    r"""Compare two arms at equal sample counts, on the same draws if possible.

    With the paired difference :math:`C` of the arms' scores, the difference :math:`D` of their debiased losses and the
    correlation :math:`r` of the scores (0 if it is negative, or without a pair), the difference is

    .. math:: E = r C + (1 - r) D, \qquad \mathrm{se}(E) = r \sqrt{s^2 + f^2} + (1 - r)\, \mathrm{se}(D),

    where :math:`s` is the noise of the draws in :math:`C` and :math:`f` that of its fit.
    To the extent that arms share their noise, one witness for both tells them apart best; to the extent that they do
    not, it misleads when arms are far apart, and the debiased losses do not. :math:`\mathrm{se}(D)` is the pair's own;
    if that is not known, it is :math:`\sqrt{s_a^2 + s_b^2 - 2 r s_a s_b}` from the standard errors of the debiased
    losses.

    The interval is :math:`E \pm (r \max(z_n s, y_n f) + (1 - r) z_n \mathrm{se}(D))` with :math:`z_n` of
    :func:`~tm_bandit.comparison.anytime_margin` and :math:`y_n` of :func:`~tm_bandit.comparison.fit_margin`: a
    difference has to show above the noise of the draws at all counts together, and above two standard errors of the
    fit, more at small counts, where the fit is biased. The interval is widened until it holds :math:`D` and the
    difference of the arms' own witness means: an arm is not out as long as one of them contradicts. If it excludes
    zero, the end next to zero is final. A witness says too little next to the reference, so every other end is moved
    out to :math:`D \pm z_n \mathrm{se}(D)`. The interval is infinite at unequal counts, where biases do not cancel.

    It is a heuristic: its margin is honest over time, but does not include the bias that remains.
    benchmarks/results/paired.md says how often it misses the truth.

    Args:
        first: one arm's numbers.
        second: the other arm's numbers, at the same sample count if there is one.
        pair: the two on the same draws.
        delta: failure probability of the interval, at all sample counts together.

    Example:
        >>> a = ArmStats("a", 20, 100, witness=2.0, stderr=0.1, estimate=4.0, debiased=3.0, debiased_stderr=0.3)
        >>> b = ArmStats("b", 20, 100, witness=1.0, stderr=0.1, estimate=3.0, debiased=1.5, debiased_stderr=0.4)
        >>> found = compare(a, b)
        >>> found.difference, found.stderr, round(found.lower, 2), round(found.upper, 2)
        (1.5, 0.5, -0.03, 3.03)
    """
    n = min(first.num_samples, second.num_samples)
    by_debiased, by_witness = central(first) - central(second), first.witness - second.witness
    pair = pair or Pair(by_debiased, 0.0, 0.0)
    share = max(pair.correlation, 0.0)
    noise = pair.debiased_stderr
    if noise is None:
        own = first.debiased_stderr**2 + second.debiased_stderr**2
        noise = math.sqrt(max(own - 2.0 * share * first.debiased_stderr * second.debiased_stderr, 0.0))
    difference = share * pair.difference + (1.0 - share) * by_debiased
    error = share * math.hypot(pair.stderr, pair.fit_stderr) + (1.0 - share) * noise
    known = first.num_samples == second.num_samples > 0 and first.stderr > 0.0 and second.stderr > 0.0
    margin = anytime_margin(n, delta) if known else math.nan
    if math.isnan(difference + by_witness + margin * (error + noise)):
        return Comparison(n, difference, error, pair.correlation, -math.inf, math.inf)
    held = (by_debiased, by_witness)
    width = share * max(margin * pair.stderr, fit_margin(n) * pair.fit_stderr) + (1.0 - share) * margin * noise
    lower, upper = min(difference - width, *held), max(difference + width, *held)
    ends = (
        lower if lower > 0.0 else min(lower, by_debiased - margin * noise),
        upper if upper < 0.0 else max(upper, by_debiased + margin * noise),
    )
    return Comparison(n, difference, error, pair.correlation, *ends)


def differ(prices: Mapping[str, float]) -> bool:
    """Whether samples of some arms cost more than those of others.

    Args:
        prices: cost of a sample by arm; empty if all cost the same.

    Example:
        >>> differ({}), differ({"a": 2.0, "b": 2.0}), differ({"a": 2.0, "b": 1.0})
        (False, False, True)
    """
    return len(set(prices.values())) > 1


@dataclass(frozen=True)
class Board(Sequence[ArmStats]):
    """The arms that a policy may choose from, as a sequence of their numbers.

    Args:
        arms: the arms' numbers, in order of registration.
        pending: samples under way by arm: asked for, but not told yet.
        spent: samples drawn from all arms so far.
        traces: the arms' numbers at earlier sample counts.
        delta: failure probability of one comparison.
        pair: returns two arms on this many first draws; ``None`` if these are not the same.
        certificate: returns a lower bound of the loss of one arm minus that of another from their common draws;
            ``None`` if there is none.
        prices: cost of a sample by arm; empty if all cost the same.
        best: the arm that is recommended at the moment, if there are prices.
        paired: whether the arms draw from the same noise.
        unbiased: whether the arms' losses have no bias that falls with the sample count.

    Example:
        >>> board = Board([ArmStats("a", 2, 10, estimate=2.0), ArmStats("b", 2, 10, estimate=3.0)], pending={"b": 5})
        >>> [board.promised(arm) for arm in board]
        [10, 15]
        >>> board.compare("a", "b").difference
        -1.0
    """

    arms: Sequence[ArmStats]
    pending: Mapping[str, int] = field(default_factory=dict)
    spent: float = 0
    traces: Mapping[str, Trace] = field(default_factory=dict, repr=False)
    delta: float = 0.05
    pair: Callable[[str, str, int], Pair | None] = field(default=lambda a, b, n: None, repr=False)
    certificate: Callable[[str, str], float | None] = field(default=lambda a, b: None, repr=False)
    prices: Mapping[str, float] = field(default_factory=dict)
    best: str | None = None
    paired: bool = False
    unbiased: bool = False

    def only(self, arms: Sequence[ArmStats]) -> Board:
        """Return a board with some of the arms."""
        return replace(self, arms=arms)

    def promised(self, arm: ArmStats) -> int:
        """Return the samples that an arm has or will have once everything under way is told."""
        return arm.num_samples + self.pending.get(arm.name, 0)

    def compare(self, a: str, b: str) -> Comparison:
        """Compare two arms at the largest sample count at which both are known, or by their latest numbers.

        Args:
            a: name of one arm.
            b: name of the other.

        Raises:
            KeyError: if there is no such arm.
        """
        one, two = self.traces.get(a, {}), self.traces.get(b, {})
        n = next((n for n in reversed(one) if n in two), None)
        if n is None:
            return compare(self[a], self[b], delta=self.delta)
        return compare(one[n], two[n], self.pair(a, b, n), delta=self.delta)

    def behind(self, a: str, b: str) -> float:
        """Return how much larger the loss of ``a`` is than that of ``b``, as :meth:`compare` finds it.

        Where prices differ, a cheap arm has more samples than an expensive one. If losses are unbiased, all of its
        samples count: in :math:`E = r C + (1 - r) D` of :func:`compare`, only :math:`C` is at equal counts, and
        :math:`D` is that of the latest numbers. With equal spreads, that is the regression on the draws in common.

        Args:
            a: name of one arm.
            b: name of the other.
        """
        found = self.compare(a, b)
        one, two = self.traces.get(a, {}).get(found.n), self.traces.get(b, {}).get(found.n)
        if one is None or two is None or not (self.unbiased and differ(self.prices)):
            return found.difference
        gained = central(self[a]) - central(one) - (central(self[b]) - central(two))
        return found.difference + (1.0 - max(found.correlation, 0.0)) * gained

    def certified(self, a: str, b: str) -> float:
        """Return a lower bound of how much larger the loss of ``a`` is than that of ``b``, proved if the bound is.

        Args:
            a: name of one arm.
            b: name of the other.
        """
        paired = self.certificate(a, b)
        return self[a].optimistic - self[b].pessimistic if paired is None else paired

    @overload
    def __getitem__(self, key: int | str) -> ArmStats: ...

    @overload
    def __getitem__(self, key: slice) -> Sequence[ArmStats]: ...

    def __getitem__(self, key: int | str | slice) -> ArmStats | Sequence[ArmStats]:
        """Return an arm by position or name, or several."""
        if not isinstance(key, str):
            return self.arms[key]
        for arm in self.arms:
            if arm.name == key:
                return arm
        raise KeyError(key)

    def __iter__(self) -> Iterator[ArmStats]:
        return iter(self.arms)

    def __len__(self) -> int:
        return len(self.arms)
