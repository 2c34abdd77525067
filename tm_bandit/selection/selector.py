"""The engine: it asks a policy which arm to pull, hands out pulls, and keeps the books of what it is told."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from tm_bandit._arguments import check_count, check_number
from tm_bandit._failures import failure_of
from tm_bandit._guards import uninterrupted
from tm_bandit.errors import ArmError, InputError
from tm_bandit.execution.conditions import Conditions, ConditionsLike
from tm_bandit.execution.draw import DrawPlan, Pairing, Sampler, stable_seed
from tm_bandit.execution.workers import WorkersLike
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.policy import ArmStats, Policy
from tm_bandit.pull import BATCH_SIZE, Pull
from tm_bandit.report.result import SelectionResult
from tm_bandit.selection.arm import Arm
from tm_bandit.selection.checkpoints import selector_from_checkpoints
from tm_bandit.selection.costs import BudgetLike, CostLike, admit, resolve_costs, timed
from tm_bandit.selection.history import History
from tm_bandit.selection.outcome import build_result
from tm_bandit.selection.pairs import Pairs
from tm_bandit.selection.roster import Roster
from tm_bandit.selection.running import prepare, run_selector
from tm_bandit.selection.setup import (
    arm_delta,
    check_arms,
    check_budget,
    check_choices,
    check_metric,
    resolve_burn_in,
    resolve_policy,
    resolve_stop,
)
from tm_bandit.selection.standing import Standing
from tm_bandit.selection.state import load_state, state_of
from tm_bandit.selection.stopping import ENOUGH, Stop, StopRule
from tm_bandit.selection.verdict import Verdict
from tm_bandit.selection.watcher import watch


class ModelSelector(Standing):
    r"""Find the best of several generators with few samples.

    Each arm is a named sampler. The metric is a template: every arm gets a copy that shares the feature network and the
    reference. As long as there is budget, the policy names an arm, a batch is drawn from it, and its numbers are
    updated. Draw k of every arm has the same seed, so similar arms make similar errors; see ``pairing``. An arm's
    samples do not depend on the other arms. :meth:`run` does all of it; a loop of your own calls :meth:`ask`, carries
    the pulls out, and calls :meth:`tell`.

    The intervals of all arms hold together: with :math:`G` arms at the start each gets :math:`\delta / (G + 1)`, and
    an arm that joins later, as the :math:`k`-th of all, gets :math:`\delta / (k (k + 1))`. The sum is at most
    :math:`\delta`.

    Args:
        metric: an ``OptimisticFID``, ``OptimisticIS`` or another metric with the same methods, without samples.
        arms: ``{name: sampler}``; ``sampler(num_samples)`` or ``sampler(num_samples, generator=generator)`` returns a
            batch. ``None`` for a loop that calls :meth:`add_arm`, :meth:`ask` and :meth:`tell` itself.
        policy: ``"ucb"``, ``"race"``, ``"lucb"``, ``"halving"``, ``"thompson"``, ``"greedy"``, ``"epsilon-greedy"``,
            ``"uniform"``, ``"random"``, or a :class:`~tm_bandit.policies.Policy`.
        batch_size: samples per pull.
        budget: samples that may be drawn in total; or the time that drawing may take, such as ``"90s"``, ``"10min"`` or
            ``"2h"``; or with ``cost`` a number in its unit. A pull that would exceed it is not made.
        cost: what a sample costs: ``{arm: number}``, in seconds if the budget is a time; or ``"measured"``, what
            :meth:`tell` is told of each pull. A time without it is measured. The race then spends its budget where it
            helps most per unit of cost. Measured costs vary, so a seed does not give the same run again.
        burn_in: samples that every arm gets before the policy is asked; ``"auto"`` takes what the bound needs to be
            informative, at least two batches. An arm may be recommended after its first batch, but none wins before
            every arm has its burn-in. Where costs differ, a race draws the rest of it when that is the cheapest.
        seed: seed of the samples and of the policy.
        stop: ``"budget"``; ``"certified"`` ends when every rival is certified to be worse than the leader; ``"likely"``
            when the differences are significant at equal sample counts, which is a heuristic. ``None`` is ``"likely"``
            if the goal is to identify the best arm and the metric has standard errors, else ``"budget"``.
        goal: ``"identify"`` the best arm (``"ucb"`` with the witness bound then means ``"race"``), or keep the
            ``"regret"`` small.
        epsilon: differences (of the loss: FID, or log IS) up to this do not matter.
        target: end as soon as the pessimistic score of the best arm reaches this value (with ``stop="likely"``: the
            debiased score with a margin of two standard errors).
        pairing: ``"common"`` seeds draw k of every arm alike; ``"independent"`` gives each arm noise of its own.
        conditions: labels or prompts that samplers get as ``conditions=``: a list or tensor, used in balanced random
            order, or a function ``(draw, size)`` that returns as many. They are paired in the same way as the noise.
        samples: ``"images"``, or ``"features"`` if samplers return rows that need no feature network.
        device: where the arms' statistics live; ``None`` means with the metric. ``"cpu"`` frees the accelerator.
        refresh: growth of an arm's sample count after which the numbers that the policy does not need (for the
            default policy these are the expensive ones) are recomputed.
        on_error: ``"retire"`` retires an arm whose sampler fails, with a warning, and logs the traceback to
            ``tm_bandit``; ``"raise"`` ends the run with the error, for debugging.

    Raises:
        InputError: if an argument cannot be used.
        NotReadyError: if the metric has no reference to compare with.

    Example:
        >>> import torch
        >>> from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics
        >>> reference = ReferenceStatistics(torch.zeros(4), torch.eye(4), 1000)
        >>> def gaussian(shift):
        ...     return lambda n, generator: shift + torch.randn(n, 4, generator=generator)
        >>> selector = ModelSelector(OptimisticFID(torch.nn.Identity(), reference=reference),
        ...                          {"near": gaussian(0.1), "far": gaussian(1.0)}, budget=400, samples="features")
        >>> result = selector.run(progress=False)
        >>> result.best
        'near'
    """

    def __init__(
        self,
        metric: OptimisticMetric,
        arms: Mapping[str, Sampler] | None = None,
        policy: str | Policy = "ucb",
        *,
        batch_size: int = BATCH_SIZE,
        budget: BudgetLike = 5000,
        cost: CostLike = None,
        burn_in: int | Literal["auto"] = "auto",
        seed: int = 0,
        stop: Stop | None = None,
        goal: Literal["regret", "identify"] = "identify",
        epsilon: float = 0.0,
        target: float | None = None,
        pairing: Pairing = "common",
        conditions: ConditionsLike | None = None,
        samples: Literal["images", "features"] = "images",
        device: str | torch.device | None = None,
        refresh: float = 0.1,
        on_error: Literal["retire", "raise"] = "retire",
    ) -> None:
        check_metric(metric, conditions is not None or samples == "features")
        check_arms(arms)
        check_choices(goal=goal, samples=samples, pairing=pairing, on_error=on_error)
        self.metric = metric
        self.stop = resolve_stop(stop, metric, goal)
        self.policy = resolve_policy(policy, metric, goal, self.stop)
        self.batch_size = check_count("batch_size", batch_size, 1)
        self.budget, self._costs = resolve_costs(budget, cost, arms)
        #: Whether :meth:`tell` must be told what each pull cost.
        self.measures = self._costs is not None and self._costs.measured
        self.seed = check_count("seed", seed, 0)
        self._plan = DrawPlan(self.seed, pairing, Conditions.of(conditions))
        self.epsilon = check_number("epsilon", epsilon, least=0)
        self.target = None if target is None else check_number("target", target)
        self.samples, self.on_error = samples, on_error
        self.goal, self.device = goal, device
        #: Failure probability of all arms together.
        self.delta = metric.delta
        self.refresh = check_number("refresh", refresh, least=0)
        self.burn_in = resolve_burn_in(burn_in, metric, self.batch_size)
        self._traits = metric.traits
        self._rule = StopRule(self.stop, self.target, self._traits.higher_is_better, self.policy.races)
        self._policy_name = policy if isinstance(policy, str) else type(policy).__name__
        self._arms = Roster(Pairs(pairing == "common"), self._costs)
        self._initial = len(arms or {})
        self._history = History()
        #: Pulls that were booked after the last look: the arm, its numbers, and whether all of these are new.
        self._unseen: list[tuple[Arm, ArmStats, bool]] = []
        self._said = Verdict(None, "open")
        self._out: tuple[Verdict, Collection[str]] = self._said, ()
        self._prepared, self._stopped_by = False, ""
        for name, sampler in (arms or {}).items():
            self.add_arm(name, sampler)
        check_budget(self.budget, self.burn_in, len(arms or {}), self._costs)

    from_checkpoints = staticmethod(selector_from_checkpoints)
    watch = staticmethod(watch)

    def add_arm(self, name: str, sampler: Sampler | None = None, cost: float | None = None) -> None:
        """Let a new arm join; it is pulled until it is past its burn-in, and the others keep their statistics.

        Args:
            name: a name that no other arm has or had.
            sampler: its sampler; ``None`` if rows are handed in through :meth:`tell` or :meth:`observe`.
            cost: what a sample of it costs, if that is given by arm and not known yet.

        Raises:
            InputError: if the name is taken or empty, the sampler cannot be called, or takes no conditions, or the cost
                is not known.
            NotReadyError: if the metric has no reference to compare with.
        """
        name = self._arms.check_new(name, sampler, self._plan.conditions is not None)
        metric = self.metric.fork(arm_delta(self.metric, self._initial, len(self._arms) + 1), self.device)
        admit(self._costs, name, cost)
        self._arms.join(name, metric, sampler, 1.0 + self.refresh)
        self._said = replace(self._verdict, level="open")

    def retire_arm(self, name: str, reason: str | None = None) -> None:
        """Take an arm out for good, because it failed or its checkpoint is gone; the others keep their statistics.

        Args:
            name: the arm.
            reason: shown in the result.
        """
        with uninterrupted():
            self._arms.known(name).retire("retired" if reason is None else reason)
        self._judge()

    def hold_arm(self, name: str) -> None:
        """Draw nothing more from an arm whose samples are used up; unlike a retired arm it may still be the best.

        If it is held before the end of its burn-in, it is left out of the verdict: too little is known about it.
        """
        self._arms.known(name).held = True
        self._judge()

    def release_arm(self, name: str) -> None:
        """Draw from a held arm again: the opposite of :meth:`hold_arm`; one that is not held stays as it is."""
        self._arms.known(name).held = False
        self._judge()

    # ---- the loop ---------------------------------------------------------------------------------------------

    def ask(self, pulls: int = 1) -> list[Pull]:
        """Return the pulls to make next, and put them under way.

        Any number of pulls may be under way. Fewer are returned if the budget or every arm is spent, if the stop rule
        is met, or while the last samples of an arm's burn-in are under way: the policy has to see them first. A loop is
        over when none is returned and none is under way.

        Args:
            pulls: how many.

        Raises:
            ArmError: if all arms have been retired.
            InputError: if there are no arms, or conditions cannot be obtained.
        """
        asked: list[Pull] = []
        try:
            for _ in range(check_count("pulls", pulls, 1)):
                name = self.select()
                if name is None:
                    break
                with uninterrupted():
                    asked.append(self._reserve(self._arms[name]))
        except BaseException:
            self._drop(asked)
            raise
        return asked

    def tell(self, pull: Pull, rows: Tensor | Exception, cost: float | None = None) -> None:
        """Book the outcome of a pull; pulls may be told in any order.

        An exception retires the arm, or gives the pull back and is raised, see ``on_error``. Rows of an arm that was
        retired meanwhile are dropped. Rows that are told before those of an earlier draw of their arm wait for it, so
        the numbers do not depend on the order. Rows are checked first: if they are refused, nothing has changed.

        Args:
            pull: a pull that is under way.
            rows: what ``metric.extract`` made of its samples, one row per sample; or an exception.
            cost: what it cost, in the unit of the budget, where costs are measured; costs given by arm come first.

        Raises:
            InputError: if the pull is not under way: it was never asked, or was told or given back before; or if its
                cost must be known and is not.
            ArmError: if the rows cannot be used, or are those of an earlier draw; the pull is still under way then.
        """
        arm, pull = self._arms.under_way(pull)
        price = 0.0 if cost is None else check_number("cost", cost, least=0)
        if arm.retired is not None:
            arm.give_back(pull)
        elif isinstance(rows, Exception):
            arm.give_back(pull)
            self.retire_arm(arm.name, failure_of(arm.name, rows, self.on_error))
        else:
            price = price if self._costs is None else self._costs.charge(arm.name, pull.size, cost)
            rows = arm.checked(pull, rows, self._plan.seed_for)
            with uninterrupted():
                arm.tell(pull, rows, price)
                self._book(arm)
                # While others are under way, a look would depend on which of them came first.
                if sum([other.pending for other in self._arms.values()]) == 0:
                    self._look()

    def illustrate(self, pull: Pull, *samples: Tensor) -> None:
        """Let the result show the samples of a pull, if they are images and among the first of their arm."""
        self._arms.known(getattr(pull, "arm", "")).illustrate(pull, *samples)

    def give_back(self, pull: Pull) -> None:
        """Take back a pull that will not be carried out; the arm's next pull reuses its draw.

        Raises:
            InputError: if it is not under way.
        """
        arm, pull = self._arms.under_way(pull)
        with uninterrupted():
            arm.give_back(pull)
            self._book(arm)

    def select(self) -> str | None:
        """Return the arm to pull next without putting a pull under way, or ``None`` if :meth:`ask` would return none.

        Raises:
            ArmError: if all arms have been retired.
            InputError: if there are no arms.
        """
        if self._unseen:
            self._catch_up()
        drawn, newcomers, spent, pending = self._arms.survey(self.burn_in)
        self._stopped_by = ""
        if not newcomers and (self.target is not None or self._said.level in ENOUGH[self._rule.stop]):
            best = self._arms.get(self._said.best or "")
            self._stopped_by = self._rule.met(self._said, None if best is None else best.stats, self.metric)
            if self._stopped_by:
                return None
        if self._costs is None and spent + pending + self.batch_size > self.budget:
            # What is under way may still be given back.
            self._stopped_by = "" if pending else "budget"
            return None
        if newcomers and not (self.policy.races and self._arms.all_seen(drawn)):
            least = self._arms.next_newcomer(newcomers, self.batch_size, self.burn_in)
            return None if least is None else self._affordable(least.name, pending)
        if not self._prepared:
            prepare(self)
        out = self._ruled_out()
        drawn = [arm for arm in drawn if arm.name not in out] if out else drawn
        if not drawn:
            self._stopped_by = "exhausted"
            return None
        rng = random.Random(stable_seed(self.seed, "policy", len(self._history) + pending // self.batch_size))
        board = self._arms.board(drawn, spent, self.delta, self._said.best)
        name = self.policy.choose(board, rng)
        if name not in board.pending:
            raise InputError(
                f"Expected the policy to choose one of {list(board.pending)}, but got {name!r}; return a name."
            )
        return name if self._costs is None else self._affordable(name, pending)

    def _affordable(self, name: str, pending: int) -> str | None:
        """Return an arm unless its next pull does not fit the budget; samples were counted before."""
        if self._costs is None or self._costs.fits(self._arms.values(), self._arms[name], self.batch_size, self.budget):
            return name
        self._stopped_by = "" if pending else "budget"
        return None

    def observe(self, arm: str, rows: Tensor, cost: float | None = None) -> None:
        """Add one batch of rows to an arm: :meth:`ask` and :meth:`tell` in one. If it raises, nothing has changed.

        Args:
            arm: the arm.
            rows: exactly ``batch_size`` rows, see :meth:`tell`.
            cost: see :meth:`tell`.

        Raises:
            InputError: if there is no such arm or it has been retired.
            ArmError: if the rows cannot be used.
        """
        record = self._arms.working(arm)
        with uninterrupted():
            pull = self._reserve(record)
            try:
                self.tell(pull, rows, cost)
            except BaseException:
                self._drop([pull])
                raise

    def step(self) -> str | None:
        """Make one pull and return the arm's name, or ``None`` when there is nothing left to do.

        An arm that fails is retired with its reason, and the pull is not counted.

        Raises:
            ArmError: if all arms have failed.
            InputError: if the chosen arm has no sampler.
        """
        name = self.select()
        if name is None:
            return None
        arm, pulls = self._arms[name], []
        try:
            with uninterrupted():
                pulls.append(self._reserve(arm))
            if self.measures:
                self.tell(pulls[0], *timed(lambda: arm.carry_out(pulls[0], self.metric, self.samples)))
            else:
                self.tell(pulls[0], arm.carry_out(pulls[0], self.metric, self.samples))
        except ArmError as error:
            self.tell(pulls[0], error)
        except BaseException:
            self._drop(pulls)
            raise
        return name

    def run(
        self,
        progress: bool = True,
        budget: BudgetLike | None = None,
        *,
        workers: WorkersLike = None,
        timeout: float | None = None,
        chunk_size: int | None = None,
    ) -> SelectionResult:
        """Pull until the budget is spent or the stop rule is met; Ctrl-C returns what is known so far.

        Under torchrun or accelerate all processes must call it; see :doc:`/api/execution`, also for workers.

        Args:
            progress: show a progress bar, and what the policy plans.
            budget: spend this much more, in the unit of the budget, instead of what is left of it.
            workers: a number of processes, an ``Executor`` or ``RayWorkers``; 0 is always this process alone.
            timeout: seconds that a worker may take for a pull before another one gets it.
            chunk_size: samples per call of a sampler; the whole pull by default. Seeds belong to chunks.

        Raises:
            ArmError: if all arms have failed.
            InputError: if there are no arms, or samplers cannot be sent to workers.
        """
        return run_selector(self, progress, budget, workers, timeout, chunk_size)

    def extend_budget(self, num_samples: float) -> None:
        """Raise the budget by this many samples, or by this much in its unit; a negative number lowers it."""
        check: Callable[[str, Any], float] = check_count if self._costs is None else check_number
        self.budget += check("num_samples", num_samples)

    def result(self) -> SelectionResult:
        """Return what is known now."""
        arms = list(self._arms.values())
        self._catch_up()
        with uninterrupted():
            fresh = {arm.name: arm.fresh_stats() for arm in arms}
        return build_result(self, arms, fresh, self._history, self._judged(fresh, True), self._stopped_by)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors, numbers and strings, with pulls under way given back."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; the run then continues as if it had not been interrupted.

        Arms keep the samplers they were given here; arms that this selector does not know yet are added without one.

        Args:
            state: the state.

        Raises:
            InputError: if the state is of another kind of run (another metric, seed, pairing or batch size, say), or
                broken; nothing has changed then.
        """
        load_state(self, state)

    def _reserve(self, arm: Arm) -> Pull:
        return arm.reserve(self._plan.pull(arm.name, arm.next_draw, self.batch_size))

    def _drop(self, pulls: list[Pull]) -> None:
        """Give back what could not be carried out; a pull may have been told before the interruption."""
        for pull in pulls:
            if self._arms[pull.arm].asked(pull):
                self.give_back(pull)

    def _book(self, arm: Arm) -> None:
        """Count the rows of an arm that need not wait any longer."""
        while (ready := arm.ready()) is not None:
            rows, cost = ready
            refreshed = arm.add(rows, cost, self.policy.needs, self.burn_in)
            self._unseen.append((arm, arm.stats, refreshed))

    def _look(self) -> None:
        """Judge the arms by everything told since the last look, in whatever order, and record it."""
        unseen, self._unseen = self._unseen, []
        fresh = [arm for arm, _, refreshed in unseen if refreshed]
        if fresh and any(self._arms.ends_a_round(arm, self._ruled_out()) for arm in fresh):
            self._judge()
        for _, stats, _ in unseen:
            self._history.append(self.metric, stats, self._said, self.batch_size)

    def _catch_up(self) -> None:
        with uninterrupted():
            self._look()

    @property
    def _verdict(self) -> Verdict:
        """What is said about the arms, including everything told so far."""
        self._catch_up()
        return self._said

    def _ruled_out(self) -> Collection[str]:
        """Return the arms that need no more samples; the rule is asked once for each verdict."""
        if self._out[0] is not self._said:
            drawn = sum(arm.retired is None and not arm.held for arm in self._arms.values())
            self._out = self._said, self._rule.ruled_out(self._said, drawn)
        return self._out[1]

    def _judge(self) -> None:
        self._said = self._judged({arm.name: arm.stats for arm in self._arms.values()}, self.stop == "certified")
        self._ruled_out()

    def _judged(self, numbers: Mapping[str, ArmStats], certify: bool) -> Verdict:
        return self._arms.verdict(
            numbers,
            burn_in=self.burn_in,
            delta=self.delta,
            epsilon=self.epsilon,
            certifies_from=self._traits.certifies_from if certify and self._traits.certifies else None,
            policy=self.policy if self._prepared else None,
            before=self._said,
        )
