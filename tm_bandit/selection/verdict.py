r"""Which arm is the best, and how sure that is: pure functions over the numbers of the arms.

Three levels of certainty, from strong to weak:

- *certified*: the rival's loss minus the leader's has a lower bound above zero. It rests on the certificate of the
  difference if arms drew from the same noise, else on the arms' own intervals, and on nothing else.
- *likely*: the interval of the difference, see :func:`~tm_bandit.policies.board.compare`, is above zero. A heuristic:
  it assumes that the biases of the two arms are alike. It is wrong for arms that are bad only through a rotation of
  their covariance.
- *recommended*: the smallest loss among the arms that have been sampled enough, see :func:`recommend`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tm_bandit.comparison import Comparison
from tm_bandit.policies.board import Board, differ
from tm_bandit.policies.policy import ArmStats, central

#: With fewer samples than this an arm is recommended only if the others do not have many more: its own standard error
#: is then known to a tenth at best.
FEWEST = 50

#: Arms are not called even before this many samples: those that differ in 2 % of them look like one model until one of
#: these is drawn, and by now one has been with probability 98 %.
FEWEST_EVEN = 200

#: Standard errors from which on an arm waits. With 1.5 the pick of 28 near ties was right after 2,500 samples in 48 of
#: 48 races, with 1 in 44 of 48, with 2 in 21 of 24.
_SEEMS = 1.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What can be said about the arms at one moment.

    Args:
        best: the recommended arm, or ``None`` if there is none to recommend.
        level: ``"won"``, ``"likely"``, ``"tie"`` (the arms that are left differ by at most ``epsilon``) or
            ``"open"``.
        likely_out: rivals that are likely worse (those that are certainly worse included), by the arm that beat them.
        certified_out: rivals that are certainly worse, by the arm that beat them.
        tied: arms that have about as many samples as the best one and cannot be told apart from it.
        waiting: arms that seem worse, by 1.5 standard errors: a race turns to them when it is decided without them.
    """

    best: str | None
    level: Literal["won", "likely", "tie", "open"]
    likely_out: Mapping[str, str] = field(default_factory=dict)
    certified_out: Mapping[str, str] = field(default_factory=dict)
    tied: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()

    def among(self, there: Container[str]) -> Verdict:
        """Return what is left of it when some arms are gone.

        A beaten arm stays beaten if the arm that beat it is there, or one that beat that one.

        Args:
            there: names of the arms that are left.
        """
        likely, certified = (_still_out(beaten, there) for beaten in (self.likely_out, self.certified_out))
        tied, waiting = (tuple(name for name in names if name in there) for names in (self.tied, self.waiting))
        kept = self.best is not None and self.best in there
        return Verdict(self.best if kept else None, self.level if kept else "open", likely, certified, tied, waiting)


def contenders(
    arms: Sequence[ArmStats], drawn_since: Mapping[str, int], prices: Mapping[str, float] | None = None
) -> list[ArmStats]:
    """Return the arms that have been sampled enough to be recommended.

    An arm that a policy has left alone looks better or worse than it is. So an arm counts if it has at least half as
    many samples as any arm got since it joined, and not next to nothing. For arms that were there from the start this
    is half of the largest count; a newcomer that has taken over the sampling need not catch up with all of the past.
    An arm also counts if at least half as much was spent on it as on any other, however few samples that buys.

    Args:
        arms: the active arms.
        drawn_since: for each arm, the most samples that any single arm drew since this one joined.
        prices: cost of a sample by arm, if they differ.
    """
    most = max((arm.num_samples for arm in arms), default=0)
    found = [arm for arm in arms if 2 * arm.num_samples >= max(drawn_since.get(arm.name, 0), min(most, 2 * FEWEST))]
    if prices:
        spent = {arm.name: arm.num_samples * prices[arm.name] for arm in arms}
        found = [arm for arm in arms if arm in found or 2 * spent[arm.name] >= max(spent.values())]
    return found or list(arms)


def recommend(board: Board, drawn_since: Mapping[str, int]) -> str | None:
    """Return the contender with the smallest loss, any two of them compared by :meth:`Board.behind`.

    Args:
        board: the arms to choose from.
        drawn_since: see :func:`contenders`.
    """
    pool = sorted(
        contenders(board, drawn_since, board.prices if differ(board.prices) else None), key=lambda arm: -arm.num_samples
    )
    if not pool:
        return None
    known = [arm for arm in pool if not math.isnan(central(arm))]
    # The likely best one first: its comparisons are needed for the verdict anyway.
    champion, *others = sorted(known, key=lambda arm: (-arm.num_samples, central(arm))) or pool
    for arm in others:
        if board.behind(arm.name, champion.name) < 0.0:
            champion = arm
    return champion.name


def judge(
    board: Board,
    *,
    drawn_since: Mapping[str, int],
    before: Verdict | None = None,
    epsilon: float = 0.0,
    preferred: str | None = None,
    certifies_from: int | None = 0,
    burn_in: int = 0,
) -> Verdict:
    """Say which arm is the best and how sure that is.

    An arm that was beaten stays so as long as the arm that beat it is there, or one that beat that one.

    Args:
        board: the active arms about which something is known, in order of registration.
        drawn_since: see :func:`contenders`.
        before: what was said before.
        epsilon: differences up to this do not matter.
        preferred: what the policy recommends, if it has an opinion; it counts unless it is certainly worse.
        certifies_from: fewest samples with which anything is certified; ``None`` if nothing ever is.
        burn_in: fewest samples with which an arm may be beaten or beat others, so that nobody's luck at the start shuts
            an arm out.
    """
    if not board:
        return Verdict(None, "open")
    there = {arm.name for arm in board}
    known = Verdict(None, "open") if before is None else before
    likely, certified = (_still_out(beaten, there) for beaten in (known.likely_out, known.certified_out))
    standing = [arm for arm in board if arm.name not in likely] or list(board)
    settled = {arm.name for arm in board if arm.num_samples >= burn_in}
    enough = set() if certifies_from is None else {arm.name for arm in board if arm.num_samples >= certifies_from}

    def proved(worse: str, better: str) -> bool:
        return {worse, better} <= settled & enough and board.certified(worse, better) > -epsilon

    best = recommend(board.only(standing), drawn_since) or standing[0].name
    if preferred != best and any(arm.name == preferred for arm in standing) and not proved(str(preferred), best):
        best = str(preferred)
    duels = {arm.name: board.compare(arm.name, best) for arm in standing if arm.name != best}
    likely |= {name: best for name, duel in duels.items() if duel.lower > -epsilon and {name, best} <= settled}
    likely.pop(best, None)
    rivals = [arm.name for arm in board if arm.name != best and arm.name not in certified]
    certified |= {name: best for name in rivals if proved(name, best)}
    likely |= certified
    if len(certified) == len(board) - 1:
        winner = next(name for name in there if name not in certified)
        return Verdict(winner, "won", likely, certified)
    if len(likely) == len(board) - 1 and best not in certified:
        return Verdict(best, "likely", likely, certified)
    left = {name: duel for name, duel in duels.items() if name not in likely}
    leader = board[best]
    tied = tuple(name for name, duel in left.items() if _alike(duel, leader.num_samples, epsilon))
    # Sums of the same rows may differ in their last digits.
    slack = epsilon + 1e-6 * abs(central(leader))
    known_well = {name: duel for name, duel in left.items() if duel.n >= FEWEST_EVEN}
    even = {name for name, duel in known_well.items() if -slack <= duel.lower and duel.upper <= slack}
    alike = bool(left) and len(even) == len(left)
    waiting = tuple(name for name, duel in left.items() if _seems_out(duel, epsilon))
    # Even arms stay even: with no others to draw, the race is decided without the ones that wait.
    if even and len(even) + len(waiting) == len(left):
        waiting = ()
    return Verdict(best, "tie" if alike else "open", likely, certified, tied, waiting)


def _seems_out(duel: Comparison, epsilon: float) -> bool:
    return duel.n > 0 and duel.difference - _SEEMS * duel.stderr > -epsilon


def _still_out(beaten: Mapping[str, str], there: Container[str]) -> dict[str, str]:
    """Return who was beaten by whom among the arms that are there.

    Args:
        beaten: who was beaten by whom, the others included.
        there: the arms that are there.
    """
    found = {}
    for name, by in beaten.items():
        for _ in beaten:  # no path is longer
            by = by if by in there else beaten.get(by, by)
        if name in there and by in there:
            found[name] = by
    return found


def _alike(duel: Comparison, most: int, epsilon: float) -> bool:
    # An infinite error, or a few samples, mean ignorance, not similarity.
    known = math.isfinite(duel.stderr) and enough(duel.n, most)
    return known and abs(duel.difference) <= max(epsilon, 2.0 * duel.stderr)


def enough(num_samples: int, most: int) -> bool:
    """Whether an arm with this many samples can be compared with one that has ``most``.

    Args:
        num_samples: samples of the arm, or those that the two have in common.
        most: samples of the other arm.
    """
    return 2 * num_samples >= most and num_samples >= min(FEWEST, most)


def uniform_cost(verdict: Verdict, counts: Mapping[str, int]) -> int:
    """Return what it would have cost to be as sure with equally many samples from every arm; 0 if it is not decided.

    All arms would need as many samples as the last rival that was ruled out.

    Args:
        verdict: what was said about the arms.
        counts: samples of each arm.
    """
    if verdict.level not in ("won", "likely") or verdict.best is None:
        return 0
    return len(counts) * max((counts[name] for name in verdict.likely_out), default=counts[verdict.best])
