"""What samples cost, for budgets in time or in the user's own unit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from tm_bandit._arguments import check_count, check_name, check_number
from tm_bandit.errors import InputError
from tm_bandit.policies.policy import Policy

if TYPE_CHECKING:
    from tm_bandit.selection.arm import Arm

#: What a budget is: a number of samples, a time such as ``"10min"``, or a number in the unit of ``cost``.
BudgetLike = int | float | str

#: What a sample costs: a number per arm, or what each pull is measured to cost. ``None`` counts samples.
CostLike = Mapping[str, float] | Literal["measured"] | None

#: In each unit of time.
_SECONDS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")

#: Sums of costs may be off in their last digits; no pull is refused for that.
_ROUNDING = 1e-9


def seconds_of(budget: str) -> float:
    """Return a time in seconds.

    Args:
        budget: a number with ``s``, ``min`` or ``h``.

    Raises:
        InputError: if it is anything else.

    Example:
        >>> seconds_of("90s"), seconds_of("10min"), seconds_of("1.5 h")
        (90.0, 600.0, 5400.0)
    """
    found = _TIME.fullmatch(budget.strip().lower())
    if found is None or found[2] not in _SECONDS:
        raise InputError(
            f"Expected `budget` to be a number of samples or a time such as '90s', '10min' or '2h', but got {budget!r}."
        )
    return check_number("budget", float(found[1]) * _SECONDS[found[2]], least=0)


@dataclass
class Costs:
    """What the samples of each arm cost.

    Args:
        unit: ``"seconds"``, or ``"cost"`` for the user's own unit.
        prices: cost per sample by arm; ``None`` if it is measured.
    """

    unit: Literal["seconds", "cost"]
    prices: dict[str, float] | None = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether each pull is told with its cost."""
        return self.prices is None

    def admit(self, arm: str, price: float | None) -> None:
        """Record what a sample of a new arm costs.

        Args:
            arm: its name.
            price: cost per sample; ``None`` if it is known, or measured.

        Raises:
            InputError: if it is not known, or not a number above zero.
        """
        if self.prices is None:
            if price is not None:
                raise InputError(f"Expected no cost of arm {arm!r} when costs are measured, but got {price!r}.")
        elif price is not None:
            self.prices[check_name("an arm", arm)] = check_number(f"cost of {arm}", price, above=0)
        elif arm not in self.prices:
            raise InputError(f"Expected the cost of a sample of arm {arm!r}, but got none; add it to cost=.")

    def with_others(self, prices: Mapping[str, float]) -> Costs:
        """Return these costs, with those of unknown arms added.

        Args:
            prices: cost per sample by arm.
        """
        known = dict(self.prices or {})
        fresh = Costs(self.unit, known)
        for name in prices.keys() - known.keys():
            fresh.admit(name, prices[name])
        return fresh

    def price(self, arm: Arm) -> float:
        """Return what a sample of an arm costs, on average so far if it is measured, and 0 if nothing is known yet."""
        if self.prices is not None:
            return self.prices[arm.name]
        return arm.stats.cost / arm.stats.num_samples if arm.stats.num_samples else 0.0

    def charge(self, arm: str, size: int, told: float | None) -> float:
        """Return what a pull cost.

        Args:
            arm: its arm.
            size: its samples.
            told: what it was said to cost; ignored if the price of the arm is given.

        Raises:
            InputError: if the cost is unknown.
        """
        if self.prices is not None:
            return self.prices[arm] * size
        if told is None:
            raise InputError(
                f"Expected what a pull of arm {arm!r} cost, which counts against the budget, but got None; "
                "tell(pull, rows, cost=...)."
            )
        return check_number("cost", told, least=0)

    def fits(self, arms: Iterable[Arm], arm: Arm, size: int, budget: float) -> bool:
        """Whether one more pull of an arm is within the budget, as far as its cost can be known.

        Args:
            arms: all arms.
            arm: the one to pull.
            size: samples of a pull.
            budget: what all pulls together may cost.
        """
        promised = sum(other.stats.cost + other.pending * self.price(other) for other in arms)
        return promised + size * self.price(arm) <= budget * (1.0 + _ROUNDING) and promised < budget


def admit(costs: Costs | None, arm: str, price: float | None) -> None:
    """Record what a sample of a new arm costs, see :meth:`Costs.admit`; do nothing if only samples count.

    Args:
        costs: what samples cost.
        arm: its name.
        price: cost per sample.

    Raises:
        InputError: if it is missing, or not wanted.
    """
    if costs is not None:
        costs.admit(arm, price)
    elif price is not None:
        raise InputError(f"Expected no cost of arm {arm!r} for a budget in samples, but got {price!r}; give cost=.")


def resolve_costs(budget: Any, cost: Any, arms: Mapping[str, Any] | None) -> tuple[float, Costs | None]:
    """Return the budget as a number, and what samples cost; ``None`` if the budget is a number of samples.

    Args:
        budget: see :class:`~tm_bandit.ModelSelector`.
        cost: see :class:`~tm_bandit.ModelSelector`.
        arms: samplers by name.

    Raises:
        InputError: if they cannot be used.

    Example:
        >>> resolve_costs("2min", None, None)
        (120.0, Costs(unit='seconds', prices=None))
        >>> resolve_costs(500, {"a": 1, "b": 50}, {"a": None, "b": None})
        (500.0, Costs(unit='cost', prices={'a': 1.0, 'b': 50.0}))
    """
    if cost is None and not isinstance(budget, str):
        return check_count("budget", budget, 0), None
    unit: Literal["seconds", "cost"] = "seconds" if isinstance(budget, str) else "cost"
    amount = budget_in(unit, budget)
    if cost is None or (isinstance(cost, str) and cost == "measured"):
        return amount, Costs(unit, None)
    if not isinstance(cost, Mapping):
        raise InputError(f"Expected `cost` as {{arm: number, ...}} or 'measured', but got {cost!r}; pass a mapping.")
    strangers = [name for name in cost if arms is not None and name not in arms]
    if strangers:
        raise InputError(
            f"Expected `cost` of the arms {list(arms or {})}, but got {strangers[0]!r}, which is not an arm."
        )
    missing = [name for name in arms or {} if name not in cost]
    if missing:
        raise InputError(f"Expected `cost` for every arm, but got none for {missing[0]!r}; add it.")
    costs = Costs(unit)
    for name, price in cost.items():
        costs.admit(name, price)
    return amount, costs


def budget_in(unit: str, budget: Any) -> float:
    """Return a budget in a unit.

    Args:
        unit: ``"samples"``, ``"seconds"`` or ``"cost"``.
        budget: a number, or a time.

    Raises:
        InputError: if it is not one in that unit.
    """
    if isinstance(budget, str) and unit == "seconds":
        return seconds_of(budget)
    if isinstance(budget, str):
        raise InputError(f"Expected a budget in {unit}, but got {budget!r}; give a number.")
    return check_count("budget", budget, 0) if unit == "samples" else check_number("budget", budget, least=0)


def budget_in_samples(budget: float, costs: Costs | None, policy: Policy) -> int:
    """Return how many samples a policy that plans ahead may expect.

    Args:
        budget: the budget.
        costs: what samples cost.
        policy: the policy.

    Raises:
        InputError: if that cannot be known.
    """
    if costs is None:
        return int(budget)
    if costs.prices:
        return int(budget / (sum(costs.prices.values()) / len(costs.prices)))
    if type(policy).prepare is not Policy.prepare:
        raise InputError(
            f"Expected a policy that needs no plan when costs are measured, but got {type(policy).__name__}; give "
            "cost={arm: number}, or a budget in samples."
        )
    return 0


def timed(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """Return the rows that a function makes, and the seconds it took.

    Args:
        work: returns rows.
    """
    start = time.perf_counter()
    rows = work()
    rows[-1:].cpu()  # waits for an accelerator that is still at work
    return rows, time.perf_counter() - start
