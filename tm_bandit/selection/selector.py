"""The engine: it asks a policy for an arm, draws a batch from it, and keeps the books."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from tm_bandit._arguments import check_count
from tm_bandit._exceptions import ArmError, InputError, NotReadyError, WeightsError, brief
from tm_bandit._interrupt import uninterrupted
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.base import ArmStats, Policy, central
from tm_bandit.selection.arm import FEWEST_SAMPLES, Arm
from tm_bandit.selection.report import History, build_result
from tm_bandit.selection.result import SelectionResult
from tm_bandit.selection.sampling import Sampler, draw, stable_seed
from tm_bandit.selection.setup import arm_delta, certifies, check_arguments, resolve_policy
from tm_bandit.selection.state import load_state, state_of
from tm_bandit.selection.verdict import Verdict, judge


class ModelSelector:
    r"""Find the best of several generators with few samples.

    Each arm is a named sampler. The metric is a template: every arm gets a copy that shares the feature network and the
    reference. As long as there is budget, the policy names an arm, a batch is drawn from it, and its numbers are
    updated. Seeds derive from ``(seed, arm, draw)``, so an arm's samples do not depend on the other arms.

    The intervals of all arms hold together: with :math:`G` arms at the start each gets :math:`\delta / (G + 1)`, and
    one that joins later as the :math:`k`-th of all :math:`\delta / (k (k + 1))`, which sums to at most :math:`\delta`.

    With ``policy="ucb"`` and a ``stop`` rule other than the budget, samples go where the rule needs them: to the leader
    and its closest rival (``"certified"``), or evenly to all arms that are not ruled out (``"likely"``).

    Args:
        metric: an ``OptimisticFID`` or ``OptimisticIS`` without samples.
        arms: ``{name: sampler}``; ``sampler(num_samples)`` or ``sampler(num_samples, generator=generator)`` returns a
            batch. ``None`` for a loop that calls :meth:`add_arm` and :meth:`observe` itself.
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
        check_arguments(metric, arms, batch_size, budget, burn_in, seed, stop, epsilon, target, samples, refresh)
        self.metric = metric
        self.policy = resolve_policy(policy, metric, goal, stop)
        self.batch_size = batch_size
        self.budget = budget
        self.seed = seed
        self.stop = stop
        self.goal = goal
        self.epsilon = epsilon
        self.target = target
        self.samples = samples
        self.device = device
        self.refresh = refresh
        least = max(metric.min_samples, 2 * batch_size) if burn_in == "auto" else max(burn_in, FEWEST_SAMPLES)
        self.burn_in = math.ceil(least / batch_size) * batch_size
        self._policy_name = policy if isinstance(policy, str) else type(policy).__name__
        self._arms: dict[str, Arm] = {}
        self._initial = len(arms or {})
        self._history = History()
        self._verdict = Verdict(None, "open")
        self._prepared = False
        self._stopped_by = ""
        for name, sampler in (arms or {}).items():
            self.add_arm(name, sampler)
        if arms and budget < self.burn_in * len(arms):
            raise InputError(
                f"Expected a budget of at least {self.burn_in * len(arms)} samples ({len(arms)} arms with a burn-in of "
                f"{self.burn_in} each), but got {budget}; raise the budget or lower burn_in or batch_size."
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
        return {arm.name: arm.retired for arm in self._arms.values() if arm.retired is not None}

    @property
    def spent(self) -> int:
        """Samples drawn so far."""
        return sum(arm.stats.num_samples for arm in self._arms.values())

    @property
    def delta(self) -> float:
        """Failure probability of all arms together."""
        return float(getattr(self.metric, "delta", 0.05))

    @property
    def best(self) -> str | None:
        """The arm that is recommended now."""
        return self._verdict.best

    def stats(self, arm: str) -> ArmStats:
        """Return the numbers of one arm as the policy sees them."""
        return self._known(arm).stats

    def draws(self, arm: str) -> int:
        """Return how many batches were drawn from an arm: the index of its next draw."""
        return self._known(arm).stats.pulls

    def add_arm(self, name: str, sampler: Sampler | None = None) -> None:
        """Let a new arm join; it is pulled until it is past its burn-in, and the others keep their statistics.

        Args:
            name: a name that no other arm has or had.
            sampler: its sampler; ``None`` if rows are handed in through :meth:`observe`.

        Raises:
            InputError: if the name is taken or empty, or the sampler cannot be called.
        """
        if not isinstance(name, str) or not name:
            raise InputError(f"Expected the name of an arm to be a non-empty string, but got {name!r}; give it a name.")
        if name in self._arms:
            raise InputError(f"Expected a new name for the arm, but got {name!r}, which exists; choose another name.")
        if sampler is not None and not callable(sampler):
            raise InputError(f"Expected a callable sampler for arm {name!r}, but got {type(sampler).__name__}.")
        metric = self.metric.fork(arm_delta(self.metric, self._initial, len(self._arms) + 1), self.device)
        joined = {arm.name: arm.stats.num_samples for arm in self._arms.values() if arm.retired is None}
        self._arms[name] = Arm(name, metric, sampler, 1.0 + self.refresh, joined)
        self._verdict = replace(self._verdict, level="open")

    def retire_arm(self, name: str, reason: str | None = None) -> None:
        """Take an arm out for good, because it failed or its checkpoint is gone; the others keep their statistics.

        Args:
            name: the arm.
            reason: shown in the result.
        """
        with uninterrupted():
            self._known(name).retire(reason or "retired")
        self._judge()

    def hold_arm(self, name: str) -> None:
        """Draw nothing more from an arm whose samples are used up; unlike a retired arm it may still be the best.

        An arm that is held before the end of its burn-in is left out of the verdict: too little is known about it, and
        no more will be.

        Args:
            name: the arm.
        """
        self._known(name).held = True
        self._judge()

    # ---- the loop ---------------------------------------------------------------------------------------------

    def select(self) -> str | None:
        """Return the arm to pull next, or ``None`` when the budget, or every arm, is spent or the stop rule is met.

        Calling it twice without :meth:`observe` in between gives the same answer.

        Raises:
            ArmError: if all arms have been retired.
            InputError: if there are no arms.
        """
        active = self._active()
        newcomers = [arm for arm in active if arm.stats.num_samples < self.burn_in and not arm.held]
        if not newcomers and self._stop_rule_met():
            return None
        if self.spent + self.batch_size > self.budget:
            self._stopped_by = "budget"
            return None
        self._stopped_by = ""
        if newcomers:
            return min(newcomers, key=lambda arm: arm.stats.pulls).name
        if not self._prepared:
            self.policy.prepare(num_arms=len(active), budget=self.budget, batch_size=self.batch_size)
            self._prepared = True
        stats = [arm.stats for arm in active if arm.name not in self._ruled_out() and not arm.held]
        if not stats:
            self._stopped_by = "exhausted"
            return None
        self.policy.recall({arm.name: arm.trace for arm in active})
        name = self.policy.choose(stats, random.Random(stable_seed(self.seed, "policy", len(self._history))))
        if name not in {arm.name for arm in stats}:
            raise InputError(f"Expected the policy to choose one of {[a.name for a in stats]}, but got {name!r}.")
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
        """Add one batch of rows (what ``metric.extract`` returned) to an arm.

        Everything is checked first: if this raises, nothing has changed.

        Args:
            arm: the arm.
            rows: exactly ``batch_size`` rows.

        Raises:
            InputError: if there is no such arm or it has been retired.
            ArmError: if the rows cannot be used.
        """
        record = self._known(arm)
        if record.retired is not None:
            raise InputError(f"Expected an active arm, but got {arm!r}, which was retired ({record.retired}).")
        rows = self._checked(record, rows)
        with uninterrupted():
            refreshed = record.add(rows, self.policy.needs, self.burn_in)
            if refreshed or self.stop != "budget":
                self._judge()
            self._history.append(self.metric, record.stats, self._verdict, self.batch_size)

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
        arm = self._arms[name]
        if arm.sampler is None:
            raise InputError(
                f"Expected a sampler for arm {name!r}, but got None; use observe() or add_arm(..., sampler)."
            )
        seed = self.seed_for(name, arm.stats.pulls)
        try:
            batch = draw(arm.sampler, self.batch_size, seed, self.metric.device, arm.with_generator)
            self.observe(name, self._rows(batch))
        except ArmError as error:
            self.retire_arm(name, str(error))
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
        from tqdm.auto import tqdm

        if budget is not None:
            check_count("budget", budget, 0)
            self.budget = self.spent + int(budget)
        self._warn_of_a_small_budget()
        if not self._prepared:
            self.policy.prepare(num_arms=len(self.arms), budget=self.budget, batch_size=self.batch_size)
            self._prepared = True
            if progress and self.policy.describe():
                tqdm.write(self.policy.describe())
        bar = tqdm(total=self.budget, initial=self.spent, unit="sample", disable=not progress, leave=False)
        try:
            with bar:
                while (name := self.step()) is not None:
                    bar.set_postfix_str(f"{name} | best {self.best or '-'}", refresh=False)
                    bar.update(self.spent - bar.n)
        except KeyboardInterrupt:
            self._stopped_by = "interrupt"
        return self.result()

    def extend_budget(self, num_samples: int) -> None:
        """Allow ``num_samples`` more samples, or fewer if it is negative."""
        self.budget += num_samples

    def result(self) -> SelectionResult:
        """Return what is known now."""
        arms = list(self._arms.values())
        with uninterrupted():
            fresh = {arm.name: arm.fresh_stats() for arm in arms}
        return build_result(self, arms, fresh, self._history, self._judged(fresh), self._stopped_by)

    def settings(self) -> dict[str, Any]:
        """Return how the run is set up, as plain values for the result."""
        return {
            "policy": self._policy_name,
            "algorithm": type(self.policy).__name__,
            "goal": self.goal,
            "stop": self.stop,
            "bound": str(getattr(self.metric, "bound", "")),
            "delta": float(getattr(self.metric, "delta", math.nan)),
            "batch_size": self.batch_size,
            "burn_in": self.burn_in,
            "epsilon": self.epsilon,
            "target": self.target,
        }

    # ---- state ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as tensors, numbers and strings; it loads with ``weights_only=True``."""
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

    # ---- private ----------------------------------------------------------------------------------------------

    def _known(self, name: str) -> Arm:
        if name not in self._arms:
            raise InputError(f"Expected one of the arms {list(self._arms)}, but got {name!r}; add it with add_arm().")
        return self._arms[name]

    def _active(self) -> list[Arm]:
        if not self._arms:
            raise InputError("Expected at least one arm, but got none; add one with add_arm().")
        active = [arm for arm in self._arms.values() if arm.retired is None]
        if not active:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.retired.items())
            raise ArmError(f"Expected at least one working arm, but all of them have been retired ({reasons}).")
        return active

    def _warn_of_a_small_budget(self) -> None:
        lacking = [self.burn_in - arm.stats.num_samples for arm in self._active() if not arm.held]
        needed = sum(count for count in lacking if count > 0)
        if needed > self.budget - self.spent:
            warnings.warn(
                f"The burn-in of the arms needs {needed} more samples, but {max(self.budget - self.spent, 0)} are left "
                "of the budget: the answer rests on next to nothing. Raise the budget, or lower burn_in or batch_size.",
                stacklevel=3,
            )

    def _rows(self, batch: Tensor) -> Tensor:
        if self.samples == "features":
            return batch
        try:
            with torch.no_grad():
                return self.metric.extract(batch.to(self.metric.device))
        except (NotReadyError, WeightsError):
            # The metric itself is not usable; that is no arm's fault.
            raise
        except Exception as error:
            raise ArmError(f"the feature network cannot take the samples: {brief(error)}") from error

    def _checked(self, arm: Arm, rows: Tensor) -> Tensor:
        try:
            rows = arm.metric.check_rows(rows.to(arm.metric.device) if isinstance(rows, Tensor) else rows)
        except (InputError, NotImplementedError) as error:
            raise ArmError(str(error)) from error
        if rows.shape[0] != self.batch_size:
            raise ArmError(f"Expected {self.batch_size} rows, but got {rows.shape[0]}; hand in one batch at a time.")
        return rows

    def _judge(self) -> None:
        self._verdict = self._judged({arm.name: arm.stats for arm in self._arms.values()})

    def _judged(self, numbers: Mapping[str, ArmStats]) -> Verdict:
        candidates = [arm for arm in self._arms.values() if arm.is_candidate(self.burn_in)]
        arms = [arm for arm in candidates if arm.trace]
        stats = [numbers[arm.name] for arm in arms]
        settled = all(arm.num_samples >= self.burn_in for arm in stats)
        verdict = judge(
            stats,
            # A held arm cannot catch up; it is compared by what there is.
            drawn_since={arm.name: 0 if arm.held else self._drawn_since(arm) for arm in arms},
            traces={arm.name: arm.trace for arm in arms},
            delta=self.delta,
            epsilon=self.epsilon,
            preferred=self.policy.recommend(stats) if stats and settled and self._prepared else None,
            certifies=certifies(self.metric),
        )
        # Nobody has won against arms of which nothing is known yet.
        return verdict if len(arms) == len(candidates) else replace(verdict, level="open")

    def _drawn_since(self, newcomer: Arm) -> int:
        names = list(self._arms)
        later = names[names.index(newcomer.name) :]
        # Arms that are neither had been retired before this one joined.
        before = {**newcomer.joined, **dict.fromkeys(later, 0)}
        return max(self._arms[name].stats.num_samples - count for name, count in before.items() if name in self._arms)

    def _ruled_out(self) -> frozenset[str]:
        if self.stop == "certified":
            return self._verdict.certified_out
        if self.stop == "likely":
            return self._verdict.likely_out
        return frozenset()

    def _stop_rule_met(self) -> bool:
        levels = {"budget": (), "certified": ("won",), "likely": ("won", "likely")}[self.stop]
        if self._verdict.level in levels:
            self._stopped_by = "stop"
            return True
        if self.target is not None and self._verdict.best is not None:
            stats = self._arms[self._verdict.best].stats
            loss = stats.pessimistic
            if self.stop == "likely":
                loss = central(stats) + 2.0 * stats.debiased_stderr
            score = self.metric.score_from_loss(loss)
            if score >= self.target if self.metric.higher_is_better else score <= self.target:
                self._stopped_by = "target"
                return True
        return False
