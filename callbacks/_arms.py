"""What an arm is during training: the weights of one step, raw or averaged, with one variant of the sampler."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tm_bandit.errors import InputError
from tm_bandit.report.encoding import encode
from tm_bandit.report.result import SelectionResult
from tm_bandit.selection.verdict import FEWEST

#: Names end up in logger keys, and MLflow allows no more than these characters in one.
_VARIANT = re.compile(r"[A-Za-z0-9_. -]*")

#: How the verdicts about arms that have lost begin, the surest first.
_LOST = ("worse (certified", "worse")


@dataclass(frozen=True, slots=True)
class TrainedArm:
    """An arm of a training run: weights that it has had, and a variant of the sampler.

    Args:
        step: the ``global_step`` of the weights.
        averaged: whether they are the averaged weights of WeightAveraging.
        variant: name of the sampler variant.

    Example:
        >>> TrainedArm(8, True, "cfg3").name, TrainedArm(8, True, "cfg3").weights, TrainedArm(8).name
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
    def kind(self) -> str:
        """What it has in common with the arms of other steps: one line in a chart."""
        weights = "avg" if self.averaged else "raw"
        return f"{weights}/{self.variant}" if self.variant else weights

    @property
    def name(self) -> str:
        """Name of the arm in the selection and in the logs."""
        return f"{self.weights}/{self.variant}" if self.variant else self.weights


def variant_of(name: str) -> str:
    """Return the variant's name from that of an arm.

    Example:
        >>> variant_of("step8-avg/cfg3"), variant_of("step8")
        ('cfg3', '')
    """
    return name.partition("/")[2]


def note_variant(result: SelectionResult, variants: Mapping[str, Mapping[str, Any]]) -> None:
    """Record in a result with which keyword arguments the best arm was sampled, as ``settings["best_variant"]``.

    Args:
        result: a result.
        variants: keyword arguments of the sampler by variant.
    """
    given = variants.get(variant_of(result.best or ""), {})
    result.settings["best_variant"] = {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    """Return a value that any file can hold; anything else is described."""
    try:
        encode(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
    return value


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
            raise InputError(f"Expected names of variants of letters, digits and `_.- `, but got {name!r}; rename it.")
        if not isinstance(arguments, Mapping):
            raise InputError(
                f"Expected the variant {name!r} to be a dictionary of keyword arguments, but got {arguments!r}; "
                'write {"guidance_scale": 3.0}, or {} for none.'
            )
    return {name: dict(arguments) for name, arguments in variants.items()}


def newcomer_burn_in(least: int, budget: int, newcomers: int) -> int:
    """Return how many samples each new arm gets by default before the policy is asked about it.

    With fewer samples than :data:`~tm_bandit.selection.verdict.FEWEST` a selection does not recommend an arm if others
    have many, and a policy may leave it alone forever after an unlucky start. Half of the budget remains
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


def losers(rows: Iterable[Mapping[str, Any]], best: str) -> list[str]:
    """Return the names of the other arms, in the order in which they make room for new ones.

    Arms that are certified to be worse go first, then those that likely are, then the others; among equals, the one
    that is farthest behind the best arm. An arm that cannot be compared with it yet comes last.

    Args:
        rows: the rows of a result.
        best: the best arm.

    Example:
        >>> rows = [("far", "undecided", 2.0), ("sure", "worse (certified)", 0.5), ("near", "worse (likely)", 0.1)]
        >>> columns = ("arm", "verdict", "behind", "behind_lower")
        >>> losers([dict(zip(columns, (*row, row[2] - 1.0))) for row in rows], "best")
        ['sure', 'near', 'far']
    """

    def key(row: Mapping[str, Any]) -> tuple[int, bool, float]:
        level = next((at for at, word in enumerate(_LOST) if row["verdict"].startswith(word)), len(_LOST))
        known = not math.isnan(row["behind"])
        return level, not math.isfinite(row["behind_lower"]), -row["behind"] if known else math.inf

    return [row["arm"] for row in sorted(rows, key=key) if row["arm"] != best]


def surplus(arms: Iterable[TrainedArm], losers: Iterable[str], keep: str | None, max_arms: int) -> list[TrainedArm]:
    """Return the arms to drop so that those of ``max_arms`` checkpoints remain.

    A checkpoint goes with all of its arms, and it is as good as the best of them.

    Args:
        arms: the active arms.
        losers: names, in the order in which they go.
        keep: name of the best arm, which stays whatever happens.
        max_arms: how many checkpoints may remain.

    Example:
        >>> arms = [TrainedArm(step, variant=variant) for step in (1, 2, 3) for variant in ("", "b")]
        >>> [arm.name for arm in surplus(arms, ["step1", "step2", "step2/b", "step3", "step1/b"], "step3/b", 2)]
        ['step2', 'step2/b']
    """
    active = {arm.name: arm for arm in arms}
    last = {active[name].step: place for place, name in enumerate(losers) if name in active}
    best = active[keep].step if keep in active else None
    order = sorted((step for step in last if step != best), key=lambda step: last[step])
    out = order[: max(0, len({arm.step for arm in active.values()}) - max_arms)]
    return [arm for arm in active.values() if arm.step in out]
