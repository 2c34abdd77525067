"""The engine: it asks a policy which arm to pull, hands out pulls, and keeps the books of what it is told."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from tm_bandit._arguments import check_count, check_number
from tm_bandit._interrupt import uninterrupted
from tm_bandit.comparison import Comparison
from tm_bandit.errors import ArmError, InputError, brief
from tm_bandit.execution.local import Sampler
from tm_bandit.execution.loop import run_to_the_end
from tm_bandit.execution.rng import stable_seed
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.base import ArmStats, Policy
from tm_bandit.pull import Pull
from tm_bandit.report.result import SelectionResult
from tm_bandit.selection.arm import FEWEST_SAMPLES, Arm, Roster
from tm_bandit.selection.history import History
from tm_bandit.selection.outcome import build_result
from tm_bandit.selection.setup import (
    arm_delta,
    check_arms,
    check_choices,
    check_metric,
    resolve_policy,
)
from tm_bandit.selection.state import load_state, settings_of, state_of
from tm_bandit.selection.stopping import StopRule
from tm_bandit.selection.verdict import Verdict


class ModelSelector:
    r"""Find the best of several generators with few samples.

    Each arm is a named sampler. The metric is a template: every arm gets a copy that shares the feature network and the
    reference. As long as there is budget, the policy names an arm, a batch is drawn from it, and its numbers are
    updated. Seeds derive from ``(seed, arm, draw)``, so an arm's samples do not depend on the other arms.

    :meth:`run` does all of it; a loop of one's own calls :meth:`ask`, carries the pulls out, and calls :meth:`tell`.

    The intervals of all arms hold together: with :math:`G` arms at the start each gets :math:`\delta / (G + 1)`, and
    one that joins later as the :math:`k`-th of all :math:`\delta / (k (k + 1))`, which sums to at most :math:`\delta`.

    With ``policy="ucb"`` and a ``stop`` rule other than the budget, samples go where the rule needs them: to the leader
    and its closest rival (``"certified"``), or evenly to all arms that are not ruled out (``"likely"``).

    Args:
        metric: an ``OptimisticFID``, ``OptimisticIS`` or another metric of that protocol, without samples.
        arms: ``{name: sampler}``; ``sampler(num_samples)`` or ``sampler(num_samples, generator=generator)`` returns a
            batch. ``None`` for a loop that calls :meth:`add_arm`, :meth:`ask` and :meth:`tell` itself.
        policy: ``"ucb"``, ``"top-two"``, ``"lucb"``, ``"halving"``, ``"thompson"``, ``"greedy"``, ``"epsilon-greedy"``,
            ``"uniform"``, ``"random"``, or a :class:`~tm_bandit.policies.Policy`.
        batch_size: samples per pull.
        budget: samples that may be drawn in all. A pull that does not fit any more is not made.
        burn_in: samples that every arm gets before the policy is asked; ``"auto"`` takes what the bound needs to say
            anything, at least two batches. An arm is recommended from its first batch on, but nobody wins before
            every arm has been seen.
        seed: seed of the samples and of the policy.
        stop: ``"budget"``; ``"certified"`` ends when every rival's optimistic score is worse than the leader's
            pessimistic one; ``"likely"`` when both the witness and the plug-in estimate differ significantly at equal
            sample counts, which is a heuristic.
        goal: ``"regret"``, or ``"identify"``: with the witness bound and no stop rule ``"ucb"`` is ``"top-two"`` then.
        epsilon: differences (of the loss: FID, or log IS) up to this do not matter.
        target: end as soon as the pessimistic score of the best arm reaches this value (with ``stop="likely"``: the
            debiased score with a margin of two standard errors).
        samples: ``"images"``, or ``"features"`` if samplers return rows that need no feature network.
        device: where the arms' statistics live; ``None`` means with the metric. ``"cpu"`` frees the accelerator.
        refresh: growth of an arm's sample count after which the numbers that the policy does not need (for the
            default policy these are the dear ones) are computed again.

    Raises:
        InputError: if an argument cannot be used.

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
        batch_size: int = 5,
        budget: int = 5000,
        burn_in: int | Literal["auto"] = "auto",
        seed: int = 0,
        stop: Literal["budget", "certified", "likely"] = "budget",
        goal: Literal["regret", "identify"] = "regret",
        epsilon: float = 0.0,
        target: float | None = None,
        samples: Literal["images", "features"] = "images",
        device: str | torch.device | None = None,
        refresh: float = 0.05,
    ) -> None:
        check_metric(metric)
        check_arms(arms)
        check_choices(stop=stop, goal=goal, samples=samples)
        self.metric = metric
        self.policy = resolve_policy(policy, metric, goal, stop)
        self.batch_size = check_count("batch_size", batch_size, 1)
        self.budget = check_count("budget", budget, 0)
        self.seed = check_count("seed", seed, 0)
        self.stop = stop
        self.goal = goal
        self.epsilon = check_number("epsilon", epsilon, least=0)
        self.target = None if target is None else check_number("target", target)
        self.samples = samples
        self.device = device
        #: Failure probability of all arms together.
        self.delta = metric.delta
        self.refresh = check_number("refresh", refresh, least=0)
        auto = isinstance(burn_in, str) and burn_in == "auto"
        least = max(metric.min_samples, 2 * self.batch_size) if auto else check_count("burn_in", burn_in, 0)
        self.burn_in = math.ceil(max(least, FEWEST_SAMPLES) / self.batch_size) * self.batch_size
        self._traits = metric.traits
        rule = StopRule(stop, self.target, self._traits.higher_is_better)
        self._rule = rule if stop != "budget" or self.target is not None else None
        self._policy_name = policy if isinstance(policy, str) else type(policy).__name__
        self._arms = Roster()
        self._initial = len(arms or {})
        self._history = History()
        self._verdict = Verdict(None, "open")
        self._prepared = False
        self._stopped_by = ""
        for name, sampler in (arms or {}).items():
            self.add_arm(name, sampler)
        if arms and self.budget < self.burn_in * len(arms):
            raise InputError(
                f"Expected a budget of at least {self.burn_in * len(arms)} samples ({len(arms)} arms with a burn-in of "
                f"{self.burn_in} each), but got {self.budget}; raise the budget or lower burn_in or batch_size."
            )

    @classmethod
    def from_checkpoints(cls, paths: Iterable[Any], module_class: type, **kwargs: Any) -> ModelSelector:
        """Make a selector whose arms are the checkpoint files of a finished training.

        Args:
            paths: the files.
            module_class: the LightningModule they belong to.
            kwargs: see :func:`tm_bandit.selection.checkpoints.selector_from_checkpoints`.
        """
        from tm_bandit.selection.checkpoints import selector_from_checkpoints

        return selector_from_checkpoints(paths, module_class, **kwargs)

    # ---- arms -------------------------------------------------------------------------------------------------

    @property
    def arms(self) -> list[str]:
        """Names of the arms that have not been retired, in order of registration."""
        return [arm.name for arm in self._arms.values() if arm.retired is None]

    @property
    def retired(self) -> dict[str, str]:
        """The arms that failed or were taken out, with the reason."""
        return self._arms.retired

    @property
    def spent(self) -> int:
        """Samples drawn so far."""
        return self._arms.spent

    @property
    def best(self) -> str | None:
        """The arm that is recommended now."""
        return self._verdict.best

    def stats(self, arm: str) -> ArmStats:
        """Return the numbers of one arm as the policy sees them."""
        return self._arms.known(arm).stats

    def compare(self, a: str, b: str) -> Comparison:
        """Return how much larger the loss of arm ``a`` is than that of ``b``, at equal sample counts if possible."""
        return self._arms.board([self._arms.known(a), self._arms.known(b)], self.spent, self.delta).compare(a, b)

    def draws(self, arm: str) -> int:
        """Return the index of an arm's next draw: how many batches were drawn, unless one was given back."""
        return self._arms.known(arm).next_draw

    def add_arm(self, name: str, sampler: Sampler | None = None) -> None:
        """Let a new arm join; it is pulled until it is past its burn-in, and the others keep their statistics.

        Args:
            name: a name that no other arm has or had.
            sampler: its sampler; ``None`` if rows are handed in through :meth:`tell` or :meth:`observe`.

        Raises:
            InputError: if the name is taken or empty, or the sampler cannot be called.
        """
        self._arms.check_new(name, sampler)
        metric = self.metric.fork(arm_delta(self.metric, self._initial, len(self._arms) + 1), self.device)
        self._arms.join(name, metric, sampler, 1.0 + self.refresh)
        self._verdict = replace(self._verdict, level="open")

    def retire_arm(self, name: str, reason: str | None = None) -> None:
        """Take an arm out for good, because it failed or its checkpoint is gone; the others keep their statistics.

        Args:
            name: the arm.
            reason: shown in the result.
        """
        with uninterrupted():
            self._arms.known(name).retire(reason or "retired")
        self._judge()

    def hold_arm(self, name: str) -> None:
        """Draw nothing more from an arm whose samples are used up; unlike a retired arm it may still be the best.

        An arm that is held before the end of its burn-in is left out of the verdict: too little is known about it, and
        no more will be.

        Args:
            name: the arm.
        """
        self._arms.known(name).held = True
        self._judge()

    def release_arm(self, name: str) -> None:
        """Draw from a held arm again: the opposite of :meth:`hold_arm`.

        Args:
            name: the arm; one that is not held stays as it is.
        """
        self._arms.known(name).held = False
        self._judge()

    # ---- the loop ---------------------------------------------------------------------------------------------

    def ask(self, pulls: int = 1) -> list[Pull]:
        """Return the pulls to make next, and put them under way.

        Any number of pulls may be under way. There are fewer than were asked for when the budget, or every arm, is
        spent, when the stop rule is met, or while an arm's last samples of its burn-in are under way: nobody is asked
        about an arm before. So a loop is over when there are none and none is under way.

        Args:
            pulls: how many.

        Raises:
            ArmError: if all arms have been retired.
            InputError: if there are no arms.
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
        """Book what came of a pull; pulls may be told in any order.

        An exception retires the arm, with the exception as the reason. Rows of an arm that was retired meanwhile are
        dropped. Rows that are told before those of an earlier draw of the same arm wait for it, so the numbers of an
        arm do not depend on the order. Everything is checked first: if this raises, nothing has changed.

        Args:
            pull: a pull that is under way.
            rows: what ``metric.extract`` made of its samples, one row per sample; or an exception.
            cost: what it cost, in any unit that is the same for all arms.

        Raises:
            InputError: if the pull is not under way: it was never asked, or was told or given back before.
            ArmError: if the rows cannot be used; the pull is still under way then.
        """
        arm = self._arms.under_way(pull)
        price = 0.0 if cost is None else check_number("cost", cost, least=0)
        if arm.retired is not None:
            arm.give_back(pull)
        elif isinstance(rows, Exception):
            self.retire_arm(arm.name, str(rows) if isinstance(rows, ArmError) else brief(rows))
            arm.give_back(pull)
        else:
            rows = arm.checked(pull, rows)
            with uninterrupted():
                arm.tell(pull, rows, price)
                self._book(arm)

    def give_back(self, pull: Pull) -> None:
        """Take back a pull that will never be told; its draw is the arm's next.

        Args:
            pull: a pull that is under way.

        Raises:
            InputError: if it is not under way.
        """
        arm = self._arms.under_way(pull)
        with uninterrupted():
            arm.give_back(pull)
            self._book(arm)

    def select(self) -> str | None:
        """Return the arm to pull next without putting a pull under way, or ``None`` as :meth:`ask` returns none.

        Two calls without :meth:`observe` in between give the same answer.

        Raises:
            ArmError: if all arms have been retired.
            InputError: if there are no arms.
        """
        drawn, newcomers, spent, pending = self._arms.survey(self.burn_in)
        self._stopped_by = ""
        if not newcomers and self._rule is not None:
            best = self._arms.get(self._verdict.best or "")
            self._stopped_by = self._rule.met(self._verdict, None if best is None else best.stats, self.metric)
            if self._stopped_by:
                return None
        if spent + pending + self.batch_size > self.budget:
            # What is under way may still be given back.
            self._stopped_by = "" if pending else "budget"
            return None
        if newcomers:
            least = min(newcomers, key=lambda arm: arm.stats.num_samples + arm.pending)
            return least.name if least.stats.num_samples + least.pending < self.burn_in else None
        if not self._prepared:
            self.policy.prepare(num_arms=len(self.arms), budget=self.budget, batch_size=self.batch_size)
            self._prepared = True
        if self._rule is not None:
            out = self._rule.ruled_out(self._verdict)
            drawn = [arm for arm in drawn if arm.name not in out]
        if not drawn:
            self._stopped_by = "exhausted"
            return None
        rng = random.Random(stable_seed(self.seed, "policy", len(self._history) + pending // self.batch_size))
        board = self._arms.board(drawn, spent, self.delta)
        name = self.policy.choose(board, rng)
        if name not in board.pending:
            raise InputError(f"Expected the policy to choose one of {list(board.pending)}, but got {name!r}.")
        return name

    def seed_for(self, arm: str, draw: int, chunk: int = 0) -> int:
        """Return the seed of one batch (or of one chunk of it); it depends on nothing else than the run's seed.

        Args:
            arm: the arm.
            draw: index of the draw, see :meth:`draws`.
            chunk: index of the chunk within the draw.
        """
        return stable_seed(self.seed, arm, draw, chunk)

    def observe(self, arm: str, rows: Tensor) -> None:
        """Add one batch of rows to an arm: :meth:`ask` for this arm and :meth:`tell` in one.

        Everything is checked first: if this raises, nothing has changed.

        Args:
            arm: the arm.
            rows: exactly ``batch_size`` rows, see :meth:`tell`.

        Raises:
            InputError: if there is no such arm or it has been retired.
            ArmError: if the rows cannot be used.
        """
        record = self._arms.known(arm)
        if record.retired is not None:
            raise InputError(f"Expected an active arm, but got {arm!r}, which was retired ({record.retired}).")
        with uninterrupted():
            pull = self._reserve(record)
            try:
                self.tell(pull, rows)
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
            self.tell(pulls[0], arm.carry_out(pulls[0], self.metric, self.samples))
        except ArmError as error:
            self.tell(pulls[0], error)
        except BaseException:
            self._drop(pulls)
            raise
        return name

    def run(self, progress: bool = True, budget: int | None = None) -> SelectionResult:
        """Pull until the budget is spent or the stop rule is met; Ctrl-C returns what is known so far.

        Args:
            progress: show a progress bar, and what the policy plans.
            budget: spend this many samples more, instead of what is left of the budget.

        Raises:
            ArmError: if all arms have failed.
            InputError: if there are no arms.
        """
        if budget is not None:
            self.budget = self.spent + check_count("budget", budget, 0)
        self._arms.warn_of_a_small_budget(self.burn_in, self.budget)
        plan = ""
        if not self._prepared:
            self.policy.prepare(num_arms=len(self.arms), budget=self.budget, batch_size=self.batch_size)
            self._prepared = True
            plan = self.policy.describe()
        if run_to_the_end(self, progress, plan):
            self._stopped_by = "interrupt"
        return self.result()

    def extend_budget(self, num_samples: int) -> None:
        """Allow ``num_samples`` more samples, or fewer if it is negative."""
        self.budget += check_count("num_samples", num_samples)

    def result(self) -> SelectionResult:
        """Return what is known now."""
        arms = list(self._arms.values())
        with uninterrupted():
            fresh = {arm.name: arm.fresh_stats() for arm in arms}
        return build_result(self, arms, fresh, self._history, self._judged(fresh), self._stopped_by)

    def settings(self) -> dict[str, Any]:
        """Return how the run is set up, as plain values."""
        return settings_of(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors, numbers and strings, with pulls under way given back."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned; the run then goes on as if it had not been interrupted.

        Arms keep the samplers they were given here; arms that this selector does not know yet are added without one.

        Args:
            state: the state.

        Raises:
            InputError: if the state is of another kind of run (metric, bound, width of the rows, seed, batch size, or a
                policy with a plan), or broken; nothing has changed then.
        """
        load_state(self, state)

    def _reserve(self, arm: Arm) -> Pull:
        draw = arm.next_draw
        return arm.reserve(Pull(arm.name, draw, self.batch_size, self.seed_for(arm.name, draw)))

    def _drop(self, pulls: list[Pull]) -> None:
        """Give back what could not be carried out; a pull may have been told before the interruption."""
        for pull in pulls:
            if self._arms[pull.arm].expects(pull):
                self.give_back(pull)

    def _book(self, arm: Arm) -> None:
        """Count the rows of an arm that need not wait any longer."""
        while (ready := arm.ready()) is not None:
            rows, cost = ready
            refreshed = arm.add(rows, cost, self.policy.needs, self.burn_in)
            if refreshed or self.stop != "budget":
                self._judge()
            self._history.append(self.metric, arm.stats, self._verdict, self.batch_size)

    def _judge(self) -> None:
        self._verdict = self._judged({arm.name: arm.stats for arm in self._arms.values()})

    def _judged(self, numbers: Mapping[str, ArmStats]) -> Verdict:
        return self._arms.verdict(
            numbers,
            burn_in=self.burn_in,
            delta=self.delta,
            epsilon=self.epsilon,
            certifies=self._traits.guarantee != "none",
            policy=self.policy if self._prepared else None,
        )
