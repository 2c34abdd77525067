"""Arms of a training run: their names, their variants, and which make room for which."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest

from tm_bandit.callbacks._arms import (
    TrainedArm,
    check_variants,
    losers,
    newcomer_burn_in,
    note_variant,
    surplus,
    variant_of,
)
from tm_bandit.errors import InputError


def test_names_tell_step_average_and_variant():
    arms = [TrainedArm(8), TrainedArm(8, averaged=True), TrainedArm(8, variant="cfg3"), TrainedArm(16, True, "cfg3")]
    assert [arm.name for arm in arms] == ["step8", "step8-avg", "step8/cfg3", "step16-avg/cfg3"]
    assert [arm.weights for arm in arms] == ["step8", "step8-avg", "step8", "step16-avg"]
    assert [arm.kind for arm in arms] == ["raw", "avg", "raw/cfg3", "avg/cfg3"]
    assert [variant_of(arm.name) for arm in arms] == ["", "", "cfg3", "cfg3"]
    assert [TrainedArm(**asdict(arm)) for arm in arms] == arms


@pytest.mark.parametrize("variants", [{}, [1], {"a/b": {}}, {1: {}}, {"a": 3}])
def test_variants_that_cannot_be_used_are_refused(variants):
    with pytest.raises(InputError, match="variant"):
        check_variants(variants)


def test_a_result_says_how_the_best_arm_was_sampled():
    result = SimpleNamespace(best="step8/b", settings={})
    note_variant(result, {"": {}, "b": {"scale": 2.0, "hook": len}})
    assert result.settings["best_variant"] == {"scale": 2.0, "hook": "<built-in function len>"}
    result.best = None
    note_variant(result, {"": {}, "b": {"scale": 2.0}})
    assert result.settings["best_variant"] == {}


def test_newcomers_leave_half_of_the_budget_unless_the_metric_needs_more():
    assert newcomer_burn_in(least=4, budget=400, newcomers=10) == 20
    assert newcomer_burn_in(least=30, budget=400, newcomers=10) == 30
    assert newcomer_burn_in(least=4, budget=10_000, newcomers=1) == newcomer_burn_in(4, 20_000, 1)


def test_the_checkpoint_of_the_best_arm_stays_with_all_its_arms():
    arms = [TrainedArm(1), TrainedArm(1, variant="b"), TrainedArm(2), TrainedArm(3)]
    order = ["step1/b", "step3", "step2"]
    assert [arm.name for arm in surplus(arms, order, "step1", 2)] == ["step3"]
    assert [arm.name for arm in surplus(arms, order, "step1", 1)] == ["step2", "step3"]
    assert surplus(arms, order, "step1", 3) == []


def row(arm, verdict, behind, lower):
    return {"arm": arm, "verdict": verdict, "behind": behind, "behind_lower": lower}


def test_certified_losers_go_first_and_the_unknown_last():
    rows = [
        row("newcomer", "undecided", 80.0, float("-inf")),
        row("failed", "undecided", float("nan"), float("nan")),
        row("near", "undecided", 0.1, -0.2),
        row("far", "tie", 0.59, -0.1),
        row("likely", "worse (likely)", 3.0, 1.0),
        row("certain", "worse (certified, up to epsilon)", 0.5, 0.1),
        row("best", "best", float("nan"), float("nan")),
    ]
    assert losers(rows, "best") == ["certain", "likely", "far", "near", "newcomer", "failed"]
