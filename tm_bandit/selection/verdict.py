r"""Which arm is the best, and how sure that is: pure functions over the numbers of the arms.

Three levels of certainty, from strong to weak:

- *certified*: a rival is out when its optimistic loss is above the smallest pessimistic one. This follows from the
  confidence intervals and from nothing else.
- *likely*: at equal sample counts both the witness mean :math:`W` and the plug-in estimate :math:`P` of the rival are
  above the leader's by more than :math:`z_n \sqrt{\mathrm{se}_g^2 + \mathrm{se}_L^2}`. A heuristic: it assumes that the
  biases of the two arms are alike. It is wrong for arms that are bad only through a rotation of their covariance.
- *recommended*: the smallest debiased loss among the arms that have been sampled enough, see :func:`recommend`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tm_bandit.comparison import Comparison
from tm_bandit.policies.base import ArmStats, Trace, central, lowest
from tm_bandit.policies.board import Board, compare

Status = Literal["won", "likely", "tie", "target_met", "budget_exhausted", "unfinished"]

#: With fewer samples than this an arm is recommended only if the others have not many more either.
FEWEST = 50


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


def recommend(board: Board, drawn_since: Mapping[str, int]) -> str | None:
    """Return the contender with the smallest debiased loss, any two of them compared at equal sample counts.

    The plug-in estimate of the Frechet distance falls with the count. Debiasing takes out most of that, and for
    features that are far from Gaussian too much of it; at equal counts what is left hits all arms alike.

    Args:
        board: the active arms.
        drawn_since: see :func:`contenders`.
    """
    pool = sorted(contenders(board, drawn_since), key=lambda arm: -arm.num_samples)
    if not pool:
        return None
    known = [arm for arm in pool if not math.isnan(central(arm))]
    champion, *others = known or pool
    for arm in others:
        if board.compare(arm.name, champion.name).difference < 0.0:
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


def judge(
    board: Board,
    *,
    drawn_since: Mapping[str, int],
    epsilon: float = 0.0,
    preferred: str | None = None,
    certifies: bool = True,
) -> Verdict:
    """Say which arm is the best and how sure that is.

    Args:
        board: the active arms of which something is known, in order of registration.
        drawn_since: see :func:`contenders`.
        epsilon: differences up to this do not matter.
        preferred: what the policy recommends, if it has an opinion.
        certifies: whether the intervals promise anything; those of heuristic bounds do not.
    """
    if not board:
        return Verdict(None, "open")
    out = certified_out(board, epsilon) if certifies or len(board) == 1 else frozenset()
    if len(out) == len(board) - 1:
        winner = next(arm.name for arm in board if arm.name not in out)
        return Verdict(winner, "won", out, out)
    standing = [arm for arm in board if arm.name not in out]
    best = preferred
    if best not in {arm.name for arm in standing}:
        best = recommend(board.only(standing), drawn_since)
    leader = next(arm for arm in standing if arm.name == best)
    duels = {arm.name: board.compare(arm.name, leader.name) for arm in standing if arm is not leader}
    weak = out | {name for name, duel in duels.items() if duel.lower > -epsilon}
    if len(weak) == len(board) - 1:
        return Verdict(best, "likely", out, weak)
    least = min(FEWEST, leader.num_samples)
    rest = [arm.name for arm in standing if arm.name in duels and arm.name not in weak and arm.num_samples >= least]
    tied = tuple(name for name in rest if _alike(duels[name], epsilon))
    return Verdict(best, "tie" if tied else "open", out, weak, tied)


def _alike(duel: Comparison, epsilon: float) -> bool:
    # An infinite error is ignorance, not likeness.
    return math.isfinite(duel.stderr) and abs(duel.difference) <= max(epsilon, 2.0 * duel.stderr)


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
        traces: the arms' numbers at earlier sample counts.
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
        if not compare(rival[n], leader[n], num_arms=num_arms, delta=delta).lower > -epsilon:
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
