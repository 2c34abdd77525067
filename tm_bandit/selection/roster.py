"""All arms of a run, and how they compare."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from tm_bandit._arguments import check_name
from tm_bandit.comparison import Pair
from tm_bandit.errors import ArmError, InputError, warn
from tm_bandit.execution.conditions import check_conditioned
from tm_bandit.execution.draw import Sampler
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.board import Board, differ
from tm_bandit.policies.policy import ArmStats, Policy
from tm_bandit.pull import Pull
from tm_bandit.selection.arm import Arm
from tm_bandit.selection.costs import Costs
from tm_bandit.selection.pairs import Pairs
from tm_bandit.selection.repeats import twins
from tm_bandit.selection.verdict import FEWEST_EVEN, Verdict, judge


class Survey(NamedTuple):
    """Where a run stands.

    Args:
        drawn: the arms that may be drawn from.
        newcomers: those of them that are in their burn-in.
        spent: samples drawn so far.
        pending: samples under way.
    """

    drawn: list[Arm]
    newcomers: list[Arm]
    spent: int
    pending: int


class Roster(dict[str, Arm]):
    """The arms in order of registration, including those that have been retired.

    Args:
        pairs: compares arms on their common draws.
        costs: what samples cost; ``None`` if they are all the same.
    """

    def __init__(self, pairs: Pairs, costs: Costs | None = None) -> None:
        super().__init__()
        self.pairs = pairs
        self.costs = costs

    def check_new(self, name: object, sampler: object, conditioned: bool = False) -> str:
        """Return the name of an arm that can join, or raise ``InputError``.

        Args:
            name: its name.
            sampler: its sampler, or ``None``.
            conditioned: whether it has to take conditions.
        """
        plain = check_name("an arm", name)
        if plain in self:
            raise InputError(f"Expected a new name for the arm, but got {name!r}, which exists; choose another name.")
        if sampler is not None and not callable(sampler):
            raise InputError(
                f"Expected a callable sampler for arm {name!r}, but got {type(sampler).__name__}; pass one."
            )
        if conditioned and sampler is not None:
            check_conditioned(sampler, f"the sampler of arm {name!r}")
        return plain

    def join(self, name: str, metric: OptimisticMetric, sampler: Sampler | None, growth: float) -> None:
        """Let an arm join.

        Args:
            name: its name.
            metric: its own metric.
            sampler: its sampler, or ``None``.
            growth: see :class:`~tm_bandit.selection.arm.Arm`.
        """
        joined = {arm.name: arm.stats.num_samples for arm in self.values() if arm.retired is None}
        self[name] = Arm(name, metric, sampler, growth, joined)

    @property
    def retired(self) -> dict[str, str]:
        """The arms that failed or were taken out, with the reason."""
        return {arm.name: arm.retired for arm in self.values() if arm.retired is not None}

    @property
    def spent(self) -> int:
        """Samples drawn so far."""
        return sum([arm.stats.num_samples for arm in self.values()])

    @property
    def cost(self) -> float:
        """What the samples have cost so far."""
        return sum(arm.stats.cost for arm in self.values())

    @property
    def samplers(self) -> dict[str, Sampler]:
        """The samplers of the arms that have one and have not been retired."""
        return {arm.name: arm.sampler for arm in self.values() if arm.sampler is not None and arm.retired is None}

    def known(self, name: str) -> Arm:
        """Return an arm.

        Raises:
            InputError: if there is none of this name.
        """
        if not isinstance(name, str) or name not in self:
            raise InputError(f"Expected one of the arms {list(self)}, but got {name!r}; add it with add_arm().")
        return self[name]

    def working(self, name: str) -> Arm:
        """Return an arm that has not been retired.

        Raises:
            InputError: if there is none of this name.
        """
        arm = self.known(name)
        if arm.retired is not None:
            raise InputError(
                f"Expected an active arm, but got {name!r}, which was retired ({arm.retired}); add another."
            )
        return arm

    def twins(self) -> dict[str, str]:
        """Return the active arms that are the same model as an arm before them."""
        return twins({arm.name: arm.fingerprints for arm in self.values() if arm.retired is None})

    def active(self) -> list[Arm]:
        """Return the arms that have not been retired.

        Raises:
            InputError: if there never was an arm.
            ArmError: if all have been retired.
        """
        if not self:
            raise InputError("Expected at least one arm, but got none; add one with add_arm().")
        active = [arm for arm in self.values() if arm.retired is None]
        if not active:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.retired.items())
            raise ArmError(
                f"Expected at least one working arm, but all of them have been retired ({reasons}); add another."
            )
        return active

    def survey(self, burn_in: int) -> Survey:
        """Return where a run stands.

        Args:
            burn_in: samples that an arm needs before a policy is asked about it.

        Raises:
            InputError: if there never was an arm.
            ArmError: if all have been retired.
        """
        drawn, newcomers, spent, pending = [], [], 0, 0
        for arm in self.values():
            spent += arm.stats.num_samples
            if arm.retired is None:
                pending += arm.pending
                if not arm.held:
                    drawn.append(arm)
                    if arm.stats.num_samples < burn_in:
                        newcomers.append(arm)
        if not drawn:
            self.active()
        return Survey(drawn, newcomers, spent, pending)

    def all_seen(self, arms: Iterable[Arm]) -> bool:
        """Whether a race of these arms may begin before the end of their burn-in.

        It may once something is known about each of them, if some cost more than others: cheap arms need not wait
        until the expensive ones have their burn-in. No arm is ruled out before its own.

        Args:
            arms: the arms that may be drawn from.
        """
        costs = self.costs
        return costs is not None and differ({arm.name: costs.price(arm) for arm in arms}) and all(a.trace for a in arms)

    def next_newcomer(self, newcomers: Iterable[Arm], size: int, burn_in: int) -> Arm | None:
        """Return the newcomer that will have cost the least after its next pull; ``None`` if all are under way.

        Args:
            newcomers: arms in their burn-in, in order of registration.
            size: samples of a pull.
            burn_in: samples that each needs.
        """
        counts = {arm.name: arm.stats.num_samples + arm.pending for arm in newcomers}
        price = (lambda arm: 1) if self.costs is None else self.costs.price
        left = [self[name] for name, count in counts.items() if count < burn_in]
        # Until a cost has been measured, the count decides.
        return min(left, key=lambda arm: ((counts[arm.name] + size) * price(arm), counts[arm.name]), default=None)

    def under_way(self, pull: Pull) -> tuple[Arm, Pull]:
        """Return the arm of a pull, and the pull as it was asked: a copy may have numpy's numbers.

        Raises:
            InputError: if this very pull is not under way.
        """
        if not isinstance(pull, Pull):
            raise InputError(f"Expected a Pull that ask() returned, but got {type(pull).__name__}; pass it unchanged.")
        arm = self.known(pull.arm)
        own = arm.asked(pull)
        if own is None:
            raise InputError(
                f"Expected a pull that is under way, but got draw {pull.draw} of {pull.arm!r}, which was never asked, "
                "or was told or given back before; tell or give back each pull of ask() once."
            )
        return arm, own

    def drawn_since(self, arm: Arm, most: Arm | None = None) -> int:
        """Return the most samples that any single arm drew since this one joined; zero for a held arm.

        A held arm cannot catch up; it is judged by what it has.

        Args:
            arm: the arm.
            most: the arm with the most samples of all, if that is known: it saves the search.
        """
        if arm.held:
            return 0
        # No arm drew more than this one in total, so none has since, if all of that was drawn since.
        if most is not None and arm.joined.get(most.name, 0 if most.retired is None else -1) == 0:
            return most.stats.num_samples
        names = list(self)
        later = names[names.index(arm.name) :]
        # Arms that are neither had been retired before this one joined.
        before = {**arm.joined, **dict.fromkeys(later, 0)}
        return max(self[name].stats.num_samples - count for name, count in before.items() if name in self)

    def board(self, arms: Iterable[Arm], spent: int, delta: float, best: str | None = None) -> Board:
        """Return what a policy sees of some arms.

        Args:
            arms: these arms.
            spent: samples drawn from all arms.
            delta: failure probability of the comparisons of one arm with all others, if none joins later.
            best: the arm that is recommended at the moment.
        """
        stats, pending, traces, prices, unbiased = [], {}, {}, {}, False
        for arm in arms:
            stats.append(arm.stats)
            pending[arm.name], traces[arm.name] = arm.pending, arm.trace
            if self.costs is not None:
                prices[arm.name] = self.costs.price(arm)
                unbiased = arm.metric.traits.centre == "unbiased"
        each, known = delta / max(len(self), 1), (self._pair, self._certificate)
        return Board(stats, pending, spent, traces, each, *known, prices, best, self.pairs.paired, unbiased)

    def _pair(self, first: str, second: str, n: int) -> Pair | None:
        return self.pairs.at(self[first], self[second], n)

    def _certificate(self, first: str, second: str) -> float | None:
        return self.pairs.certificate(self[first], self[second])

    def ends_a_round(self, arm: Arm, out: Collection[str]) -> bool:
        """Whether an arm whose numbers were refreshed need not wait for others with as many samples to draw too.

        A look at arms that draw in step waits until all of them are there; anything else would be wasted work.

        Args:
            arm: the arm.
            out: arms that are ruled out.
        """
        counts = list(arm.trace)
        behind = counts[-2] if len(counts) > 1 else 0
        return not any(
            behind <= other.stats.num_samples < arm.stats.num_samples
            for other in self.values()
            if other.retired is None and not other.held and other.name not in out
        )

    def warn_of_a_small_budget(self, burn_in: int, budget: float) -> None:
        """Warn if the budget does not even cover the burn-in of the arms.

        Args:
            burn_in: samples that each arm needs.
            budget: samples that may be drawn in total, or what they may cost.
        """
        price = (lambda arm: 1) if self.costs is None else self.costs.price
        drawn = [arm for arm in self.active() if not arm.held]
        needed = sum(max(0, burn_in - arm.stats.num_samples) * price(arm) for arm in drawn)
        left = max(budget - (self.spent if self.costs is None else self.cost), 0)
        if needed > left:
            more = "more samples" if self.costs is None else f"more in {self.costs.unit}"
            warn(
                f"The burn-in of the arms needs {needed:g} {more}, but {left:g} are left in the budget, so "
                "the arms can hardly be compared. Raise the budget, or lower burn_in or batch_size."
            )

    def verdict(
        self,
        numbers: Mapping[str, ArmStats],
        *,
        burn_in: int,
        delta: float,
        epsilon: float,
        certifies_from: int | None,
        policy: Policy | None,
        before: Verdict,
    ) -> Verdict:
        """Say which arm is the best and how sure that is.

        Args:
            numbers: the arms' numbers.
            burn_in: samples that an arm needs to be judged.
            delta: failure probability of all arms together.
            epsilon: differences up to this do not matter.
            certifies_from: fewest samples with which anything is certified; ``None`` if nothing is.
            policy: may have its own opinion; ``None`` if it has not begun.
            before: what was said before.
        """
        candidates = [arm for arm in self.values() if arm.is_candidate(burn_in)]
        arms = [arm for arm in candidates if arm.trace]
        most = max(self.values(), key=lambda arm: arm.stats.num_samples, default=None)
        board = self.board(arms, self.spent, delta).only([numbers[arm.name] for arm in arms])
        settled = bool(arms) and all(arm.num_samples >= burn_in for arm in board)
        verdict = judge(
            board,
            drawn_since={arm.name: self.drawn_since(arm, most) for arm in arms},
            epsilon=epsilon,
            preferred=policy.recommend(board) if settled and policy is not None else None,
            certifies_from=certifies_from,
            before=before,
            burn_in=burn_in,
        )
        # No arm has won against arms about which nothing is known yet.
        if len(arms) < len(candidates):
            return replace(verdict, level="open")
        left = {arm.name for arm in arms} - set(verdict.likely_out)
        if verdict.level == "open" and left == {verdict.best, *verdict.tied} and self._one_model(left):
            return replace(verdict, level="tie")
        return verdict

    def _one_model(self, names: Collection[str]) -> bool:
        """Whether arms are the same model, as far as enough samples can tell: more of them would change nothing."""
        twins = self.twins()
        seen = all(self[name].stats.num_samples >= FEWEST_EVEN for name in names)
        return seen and len({twins.get(name, name) for name in names}) == 1
