"""What an arm is during training: the weights of one step, raw or averaged, with one variant of the sampler."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tm_bandit.comparison import Comparison
from tm_bandit.errors import InputError
from tm_bandit.selection.verdict import FEWEST

#: Names end up in logger keys, and MLflow allows no more than these characters in one.
_VARIANT = re.compile(r"[A-Za-z0-9_. -]*")


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm.

    Args:
        step: the ``global_step`` of the weights.
        averaged: whether they are the averaged weights of WeightAveraging.
        variant: name of the sampler variant.

    Example:
        >>> Arm(8, True, "cfg3").name, Arm(8, True, "cfg3").weights, Arm(8).name
        ('step8-avg/cfg3', 'step8-avg', 'step8')
    """

    step: int
    averaged: bool = False
    variant: str = ""

    @property
    def weights(self) -> str:
        """Name of the weights, which the variants share, and stem of their file."""
        return f"step{self.step}-avg" if self.averaged else f"step{self.step}"

    @property
    def name(self) -> str:
        """Name of the arm in the selection and in the logs."""
        return f"{self.weights}/{self.variant}" if self.variant else self.weights

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that ``torch.load(weights_only=True)`` accepts."""
        return asdict(self)


def check_variants(variants: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Return the sampler variants as plain dictionaries; no variants means one, without arguments.

    Args:
        variants: keyword arguments of the sampler by variant.

    Raises:
        InputError: if there is none, if a name cannot be logged, or if arguments are not a mapping.

    Example:
        >>> check_variants(None)
        {'': {}}
    """
    if variants is None:
        return {"": {}}
    if not isinstance(variants, Mapping) or not variants:
        raise InputError(
            f"Expected variants to map names to keyword arguments, but got {variants!r}; "
            'write {"": {}, "cfg3": {"guidance_scale": 3.0}} or leave it out.'
        )
    for name, arguments in variants.items():
        if not isinstance(name, str) or not _VARIANT.fullmatch(name):
            raise InputError(
                f"Expected names of variants made of letters, digits and `_.- `, but got {name!r}; rename it."
            )
        if not isinstance(arguments, Mapping):
            raise InputError(
                f"Expected the variant {name!r} to be a dictionary of keyword arguments, but got {arguments!r}; "
                'write {"guidance_scale": 3.0}, or {} for none.'
            )
    return {name: dict(arguments) for name, arguments in variants.items()}


def newcomer_burn_in(least: int, budget: int, newcomers: int) -> int:
    """Return how many samples each new arm gets before the policy is asked about it, if nobody says otherwise.

    With fewer samples than :data:`~tm_bandit.selection.verdict.FEWEST` a selection does not recommend an arm beside
    others that have many, and a policy may leave it alone for ever after an unlucky start. Half of the budget remains
    for the contenders, unless the metric needs more.

    Args:
        least: what the metric needs, or two batches.
        budget: samples per validation.
        newcomers: arms that join in one validation.

    Example:
        >>> [newcomer_burn_in(20, budget, newcomers=2) for budget in (60, 120, 400)]
        [20, 30, 50]
    """
    return max(least, min(FEWEST, budget // (2 * newcomers)))


def losers(names: Iterable[str], best: str, compare: Callable[[str, str], Comparison]) -> list[str]:
    """Return the names of the other arms, the most certain loser first.

    Certainty is the distance from the best arm in standard errors of that distance. Where a metric has no standard
    error, one that shrinks with the root of the sample counts stands in for it. An arm about which nothing is known
    comes last.

    Args:
        names: the active arms.
        best: the best one.
        compare: compares two of them.

    Example:
        >>> known = {"far": Comparison(20, 2.0, 1.0, 0.0, -2.0, 6.0), "sure": Comparison(90, 1.0, 0.1, 0.0, 0.6, 1.4)}
        >>> losers(["a", "far", "sure"], "a", lambda name, best: known[name])
        ['sure', 'far']
    """

    def certainty(name: str) -> float:
        found = compare(name, best)
        error = found.stderr if found.stderr > 0.0 else math.sqrt(2.0 / max(found.n, 1))
        return found.difference / error if error < math.inf and not math.isnan(found.difference) else -math.inf

    return sorted((name for name in names if name != best), key=certainty, reverse=True)


def surplus(arms: Iterable[Arm], losers: Iterable[str], keep: str | None, max_arms: int) -> list[Arm]:
    """Return the arms to drop so that ``max_arms`` remain.

    Args:
        arms: the active arms.
        losers: names from the most certain loser on.
        keep: name of the best arm, which stays whatever happens.
        max_arms: how many may remain.

    Example:
        >>> [arm.name for arm in surplus([Arm(1), Arm(2), Arm(3)], ["step3", "step1", "step2"], "step3", 2)]
        ['step1']
    """
    active = {arm.name: arm for arm in arms}
    order = [active[name] for name in losers if name in active and name != keep]
    return order[: max(0, len(active) - max_arms)]
