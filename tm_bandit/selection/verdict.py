r"""Which arm is the best, and how sure that is: pure functions over the numbers of the arms.

Three levels of certainty, from strong to weak:

- *certified*: a rival is out when its optimistic loss is above the smallest pessimistic one. This follows from the
  confidence intervals and from nothing else.
- *likely*: at equal sample counts both the witness mean :math:`W` and the plug-in estimate :math:`P` of the rival are
  above the leader's by more than :math:`z_n \sqrt{\mathrm{se}_g^2 + \mathrm{se}_L^2}`. A heuristic: it assumes that the
  biases of the two arms are alike. It is wrong for arms that are bad only through a rotation of their covariance.
- *recommended*: the smallest debiased loss among the arms that have been sampled enough, drawn towards the witness mean
  as far as the two differ by noise, see :func:`recommend`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tm_bandit.policies.base import ArmStats, Trace, at_equal_n, central, lowest

Status = Literal["won", "likely", "tie", "target_met", "budget_exhausted", "unfinished"]

#: With fewer samples than this an arm is recommended only if the others have not many more either.
FEWEST = 50
#: Below about this many samples what the witness misses is noisier than the standard error of its mean says.
_EARLY = 30
#: An arm whose standard error is smaller than the largest of the arms by this factor has no noise at all.
_NO_NOISE = 1e-6


@dataclass(frozen=True, slots=True)
class Verdict:
    """What can be said about the arms at one moment.

    Args:
        best: the recommended arm, or ``None`` if there is no arm to recommend.
        level: ``"won"``, ``"likely"``, ``"tie"`` or ``"open"`` (too little is known).
        certified_out: rivals that are certainly worse.
        likely_out: rivals that are likely worse (those that are certainly worse included).
        tied: arms with more than next to no samples that cannot be told from the best one.
    """

    best: str | None
    level: Literal["won", "likely", "tie", "open"]
    certified_out: frozenset[str] = frozenset()
    likely_out: frozenset[str] = frozenset()
    tied: tuple[str, ...] = ()


def race_margin(n: int, num_arms: int, delta: float) -> float:
    r"""Return the number of standard errors of a normal-mixture confidence sequence over ``num_arms`` arms.

    .. math:: z_n = \sqrt{\tfrac{n + r}{n} \left(2 \ln \tfrac{G}{\delta} + \ln \tfrac{n + r}{r}\right)}, \quad r = 100

    Args:
        n: sample count.
        num_arms: :math:`G`.
        delta: failure probability of all arms together.

    Example:
        >>> round(race_margin(1000, 5, 0.05), 2)
        3.57
    """
    ratio = (n + 100.0) / 100.0
    return math.sqrt((n + 100.0) / n * (2.0 * math.log(num_arms / delta) + math.log(ratio)))


def contenders(arms: Sequence[ArmStats], drawn_since: Mapping[str, int]) -> list[ArmStats]:
    """Return the arms that have been sampled enough to be recommended.

    An arm that a policy has left alone looks better or worse than it is. So an arm counts if it has at least half as
    many samples as any arm got since it joined, and not next to nothing. For arms that were there from the start this
    is half of the largest count; a newcomer that has taken over the sampling need not catch up with all of the past.

    Args:
        arms: the active arms.
        drawn_since: for each arm, the most samples that any single arm drew since this one joined.
    """
    most = max((arm.num_samples for arm in arms), default=0)
    return [
        arm for arm in arms if 2 * arm.num_samples >= max(drawn_since.get(arm.name, 0), min(most, 2 * FEWEST))
    ] or list(arms)


def trust_in_looseness(arms: Sequence[ArmStats], traces: Mapping[str, Trace]) -> float:
    r"""Return how far to believe that the witnesses of some arms are loose by different amounts.

    The debiased loss :math:`D` is the witness mean :math:`W` plus what the witness is thought to miss, which has noise
    of its own. If it differs between :math:`G` arms by no more than noise, they are better compared by :math:`W`, and
    in between by :math:`s D + (1 - s) W`, where :math:`s` is the share of its scatter that is not noise,

    .. math:: s = \max\Bigl(0, 1 - \frac{(1 + 30 / n) \max(1, G - 2)}{Q}\Bigr), \qquad
        Q = \sum_g \frac{(D_g - W_g - m)^2}{s_{W,g}^2},

    :math:`m` being the mean of :math:`D - W` with weights :math:`1 / s_W^2`. (The :math:`I^2` of meta-analysis has
    :math:`G - 1` there; one degree less from three arms on, because a single arm that differs among many alike is worth
    believing.) Each arm is measured by its own error, so a bad and noisy one hardly hides what tells the good ones
    apart; sixteen of them do, as each adds its noise to what is expected.

    The standard error of :math:`W` stands in for that of :math:`D - W`, which is not known: it can be several times too
    large (many samples, Inception Score) or too small (few dimensions, few samples :math:`n`). So this is a rule of
    thumb, which was tried on the benchmark's scenarios: arms that are loose alike are told apart with fewer samples, at
    the expense of some more for those that are not (classes dropped, covariance rotated). The factor is one if an arm
    has far fewer samples than another, because noise at few samples says nothing about many.

    Args:
        arms: the arms, which are compared at the largest sample count at which all of them are known.
        traces: see :func:`~tm_bandit.policies.base.at_equal_n`.

    Example:
        >>> from tm_bandit.policies import ArmStats
        >>> def trust(stderr):
        ...     losses = {"a": (1.0, 1.4), "b": (1.5, 2.1), "c": (2.0, 2.4), "d": (3.0, 3.6)}
        ...     arms = [ArmStats(name, 2, 10, witness=w, stderr=stderr, debiased=d) for name, (w, d) in losses.items()]
        ...     return round(trust_in_looseness(arms, {arm.name: {10: arm} for arm in arms}), 2)
        >>> trust(0.1), trust(0.04), trust(0.01)
        (0.0, 0.68, 0.98)
    """
    counts = [set(traces.get(arm.name, {})) for arm in arms]
    common = set.intersection(*counts) if len(arms) > 1 else set()
    if not common or 3 * max(common) < max(arm.num_samples for arm in arms):
        return 1.0
    n = max(common)
    known = [traces[arm.name][n] for arm in arms]
    if not all(math.isfinite(central(arm) - arm.witness) and 0.0 <= arm.stderr < math.inf for arm in known):
        # Too little is known of some arm.
        return 1.0
    # The scores of a generator that always makes the same differ by rounding; it says nothing about noise.
    floor = _NO_NOISE * max(arm.stderr for arm in known)
    known = [arm for arm in known if arm.stderr > floor]
    if len(known) < 2:
        return 1.0
    gaps, errors = [central(arm) - arm.witness for arm in known], [arm.stderr for arm in known]
    least = min(errors)
    weights = [(least / error) ** 2 for error in errors]
    mean = sum(weight * gap for weight, gap in zip(weights, gaps, strict=True)) / sum(weights)
    scatter = math.hypot(*((gap - mean) / error for gap, error in zip(gaps, errors, strict=True)))
    if scatter == 0.0:
        return 1.0
    expected = (1.0 + _EARLY / n) * max(1, len(known) - 2)
    return max(0.0, 1.0 - expected / scatter / scatter)


def recommend(arms: Sequence[ArmStats], drawn_since: Mapping[str, int], traces: Mapping[str, Trace]) -> str | None:
    """Return the contender with the smallest debiased loss, any two of them compared at equal sample counts.

    The plug-in estimate of the Frechet distance falls with the count. Debiasing takes out most of that, and for
    features that are far from Gaussian too much of it; at equal counts what is left hits all arms alike. Where it
    contradicts the witness it is believed as far as :func:`trust_in_looseness` says.

    Args:
        arms: the active arms.
        drawn_since: see :func:`contenders`.
        traces: see :func:`~tm_bandit.policies.base.at_equal_n`.
    """
    pool = sorted(contenders(arms, drawn_since), key=lambda arm: -arm.num_samples)
    if not pool:
        return None
    trust = trust_in_looseness(pool, traces)

    def loss(arm: ArmStats) -> float:
        return central(arm) if trust == 1.0 else trust * central(arm) + (1.0 - trust) * arm.witness

    champion = pool[0]
    for arm in pool[1:]:
        mine, theirs = at_equal_n(champion, arm, traces) or (champion, arm)
        if loss(theirs) < loss(mine) or math.isnan(loss(mine)):
            champion = arm
    return champion.name


def certified_out(arms: Sequence[ArmStats], epsilon: float = 0.0) -> frozenset[str]:
    """Return the arms that are certainly worse than some other arm, up to ``epsilon``.

    Args:
        arms: the active arms.
        epsilon: an arm may also go if it is better than the best by less than this.

    Example:
        >>> from tm_bandit.policies import ArmStats
        >>> a = ArmStats("a", 9, 90, optimistic=1.0, pessimistic=2.0)
        >>> b = ArmStats("b", 9, 90, optimistic=2.5, pessimistic=4.0)
        >>> sorted(certified_out([a, b]))
        ['b']
    """
    leader = lowest(arms, lambda arm: arm.pessimistic)
    return frozenset(
        arm.name for arm in arms if arm.name != leader.name and arm.optimistic > leader.pessimistic - epsilon
    )


def likely_worse(rival: ArmStats, leader: ArmStats, *, num_arms: int, delta: float, epsilon: float = 0.0) -> bool:
    """Whether both the witness and the plug-in of ``rival`` are significantly above those of ``leader``.

    Args:
        rival: the rival's numbers at some sample count; without standard errors nothing can be said.
        leader: the leader's numbers at the same sample count.
        num_arms: number of arms that are compared.
        delta: failure probability.
        epsilon: a difference that does not matter.
    """
    if not (rival.stderr > 0.0 and leader.stderr > 0.0):
        return False
    width = race_margin(leader.num_samples, num_arms, delta) * math.hypot(rival.stderr, leader.stderr) - epsilon
    return rival.witness - leader.witness > width and rival.estimate - leader.estimate > width


def judge(
    arms: Sequence[ArmStats],
    *,
    drawn_since: Mapping[str, int],
    traces: Mapping[str, Trace],
    delta: float,
    epsilon: float = 0.0,
    preferred: str | None = None,
    certifies: bool = True,
) -> Verdict:
    """Say which arm is the best and how sure that is.

    Args:
        arms: the active arms of which something is known, in order of registration.
        drawn_since: see :func:`contenders`.
        traces: see :func:`~tm_bandit.policies.base.at_equal_n`.
        delta: failure probability of all arms together.
        epsilon: differences up to this do not matter.
        preferred: what the policy recommends, if it has an opinion.
        certifies: whether the intervals promise anything; those of heuristic bounds do not.
    """
    if not arms:
        return Verdict(None, "open")
    out = certified_out(arms, epsilon) if certifies or len(arms) == 1 else frozenset()
    if len(out) == len(arms) - 1:
        winner = next(arm.name for arm in arms if arm.name not in out)
        return Verdict(winner, "won", out, out)
    standing = [arm for arm in arms if arm.name not in out]
    own = preferred not in {arm.name for arm in standing}
    best = recommend(standing, drawn_since, traces) if own else preferred
    leader = next(arm for arm in standing if arm.name == best)
    weak = set(out)
    for rival in standing:
        pair = at_equal_n(rival, leader, traces) if rival is not leader else None
        if pair is not None and likely_worse(*pair, num_arms=len(arms), delta=delta, epsilon=epsilon):
            weak.add(rival.name)
    if len(weak) == len(arms) - 1:
        return Verdict(best, "likely", out, frozenset(weak))
    least = min(FEWEST, leader.num_samples)
    rest = [arm for arm in standing if arm is not leader and arm.name not in weak and arm.num_samples >= least]
    pairs = [at_equal_n(arm, leader, traces) or (arm, leader) for arm in rest]
    tied = tuple(rival.name for rival, best_one in pairs if _alike(rival, best_one, epsilon, by_witness=own))
    return Verdict(best, "tie" if tied else "open", out, frozenset(weak), tied)


def _alike(rival: ArmStats, leader: ArmStats, epsilon: float, *, by_witness: bool) -> bool:
    error = math.hypot(rival.debiased_stderr, leader.debiased_stderr)
    difference = central(rival) - central(leader)
    # An infinite error is ignorance, not likeness. A rival whose debiased loss is even smaller than that of a leader by
    # its witness cannot be told from it either.
    return math.isfinite(error) and (difference if by_witness else abs(difference)) <= max(epsilon, 2.0 * error)


def uniform_cost(
    arms: Sequence[ArmStats], verdict: Verdict, traces: Mapping[str, Trace], *, delta: float, epsilon: float = 0.0
) -> int:
    """Return how many samples it would have cost to be as sure with the same number of samples from every arm.

    For each rival that is out, the arms' own traces are searched for the first common sample count at which it would
    have been out too: for good, if it is likely worse. (Beyond an arm's last count its last bound is taken, so the
    answer is never too small for lack of data.) All arms need the largest of these counts. Where some rival is not out
    the certainty is that of the recommended arm's own interval, which uniform evaluation reaches with as many samples
    from each arm.

    Args:
        arms: the active arms.
        verdict: what was said about them.
        traces: see :func:`~tm_bandit.policies.base.at_equal_n`.
        delta: failure probability of all arms together.
        epsilon: differences up to this do not matter.
    """
    if verdict.best is None:
        return 0
    leader = next(arm for arm in arms if arm.name == verdict.best)
    decided = len(verdict.likely_out) == len(arms) - 1
    certified = _first_certified(arms, traces, epsilon)
    needed = [0 if decided else leader.num_samples]
    for rival in arms:
        if rival.name in verdict.certified_out:
            count = certified.get(rival.name)
        elif rival.name in verdict.likely_out:
            count = _first_likely(traces[rival.name], traces[leader.name], len(arms), delta, epsilon)
        else:
            continue
        needed.append(max(rival.num_samples, leader.num_samples) if count is None else count)
    return max(needed) * len(arms)


def _first_likely(rival: Trace, leader: Trace, num_arms: int, delta: float, epsilon: float) -> int | None:
    """Return the sample count from which on a rival is likely worse, or ``None``."""
    answer = None
    for n in sorted(rival.keys() & leader.keys(), reverse=True):
        if not likely_worse(rival[n], leader[n], num_arms=num_arms, delta=delta, epsilon=epsilon):
            break
        answer = n
    return answer


def _first_certified(arms: Sequence[ArmStats], traces: Mapping[str, Trace], epsilon: float) -> dict[str, int]:
    """Return the sample count of all arms at which each of some of them is certainly worse for the first time."""
    counts = sorted({n for arm in arms for n in traces.get(arm.name, {})})
    latest: dict[str, ArmStats] = {}
    first: dict[str, int] = {}
    for n in counts:
        latest |= {arm.name: traces[arm.name][n] for arm in arms if n in traces.get(arm.name, {})}
        for name in certified_out(list(latest.values()), epsilon):
            first.setdefault(name, n)
    return first
