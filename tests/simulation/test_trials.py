"""Trials are counted as the paper counts them."""

import math

import pytest

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit.errors import InputError
from tm_bandit.simulation import (
    Contestant,
    Scenario,
    SimulatedArm,
    average_regret,
    compare,
    mean_and_error,
    optimal_pick_ratio,
    run_trial,
    settles_after,
)


def scenario(**kwargs):
    arms = [SimulatedArm(f"m{m:g}", gaussian(m), m) for m in (3.0, 1.0, 2.0)]
    return Scenario("toy", arms, lambda bound: MeanMetric(bound=bound), **kwargs)


def test_regret_and_pick_ratio_of_round_robin_are_known():
    trial = run_trial(scenario(), Contestant("uniform", policy="uniform"), pulls=30)
    assert average_regret(trial) == pytest.approx((2 + 0 + 1) / 3)
    assert average_regret(trial, 1) == 2.0
    assert optimal_pick_ratio(trial) == pytest.approx(1 / 3)


def test_regret_counts_only_arms_that_are_there():
    arms = scenario(joins={"m1": 20})
    trial = run_trial(arms, Contestant("default"), pulls=60)
    assert "m1" not in trial.choices[:20]
    assert trial.choices[20] == "m1"
    assert arms.gap("m2", 10) == 0.0
    assert arms.gap("m2", 30) == 1.0
    with pytest.raises(InputError, match="m1"):
        arms.gap("m1", 10)
    assert trial.result.best == "m1"


def test_a_stop_rule_pauses_until_the_next_arm_joins():
    arms = scenario(joins={"m1": 500})
    contestant = Contestant("likely", options={"stop": "likely"})
    trial = run_trial(arms, contestant, pulls=400, seed=2)
    assert [name for _, name in trial.winners] == ["m2", "m1"]
    assert trial.winners[0][0] < 400 < 500 < trial.winners[1][0]
    assert len(trial.choices) == trial.winners[0][0] + trial.winners[1][0] - 500
    assert trial.regrets[-1] == arms.gap(trial.choices[-1])
    # A run that has no budget left ends, and nobody has won, unless it was with the last pull.
    assert run_trial(arms, contestant, pulls=8).winners == []
    assert run_trial(arms, contestant, pulls=len(trial.choices), seed=2).winners == trial.winners


def test_higher_is_better_turns_the_gap_around():
    assert scenario(higher_is_better=True).gap("m1") == 2.0


def test_trials_with_the_same_seed_see_the_same_samples():
    one, other = (run_trial(scenario(), Contestant("u", policy="uniform"), pulls=30, seed=7) for _ in range(2))
    assert one.result.history["estimate"][3:] == other.result.history["estimate"][3:]
    third = run_trial(scenario(), Contestant("u", policy="uniform"), pulls=30, seed=8)
    assert third.result.history["estimate"][-1] != one.result.history["estimate"][-1]


def test_identification_is_the_first_moment_from_which_on_it_is_right():
    right, late, wrong = [True] * 4, [True, False, True, True], [True, True, True, False]
    assert settles_after([right, late]) == 3
    assert settles_after([right] * 9 + [late]) == 1
    assert settles_after([wrong]) is None
    assert settles_after([right], since=2) == 1
    assert settles_after([[False, False, False, True]], since=2) == 2
    assert settles_after([right], since=4) is None


def test_acceptable_arms_are_within_a_fraction_of_the_best():
    assert scenario().acceptable() == {"m1"}
    assert scenario().acceptable(1.0) == {"m1", "m2"}
    assert scenario(higher_is_better=True).acceptable(0.4) == {"m3", "m2"}
    assert (scenario().last_join, scenario(joins={"m1": 20, "m2": 7}).last_join) == (0, 20)


def test_mean_and_error():
    assert mean_and_error([2.0]) == (2.0, 0.0)
    assert mean_and_error([1.0, 2.0, 3.0]) == pytest.approx((2.0, 1 / math.sqrt(3)))


def test_comparison_puts_contestants_side_by_side():
    contestants = [Contestant("default"), Contestant("uniform", policy="uniform"), Contestant("naive", "naive")]
    rows = compare(scenario(), contestants, pulls=60, trials=3)
    assert [row["contestant"] for row in rows] == ["default", "uniform", "naive"]
    assert rows[0]["regret"] < rows[1]["regret"] == pytest.approx(1.0)
    assert rows[1]["regret_error"] == pytest.approx(0.0, abs=1e-12)
    assert rows[0]["right"] == 1.0
    assert rows[0]["pick_ratio"] > 0.7


def test_a_contestants_policy_may_be_made_anew_for_each_run():
    from tm_bandit.policies import SuccessiveHalving

    runs = [run_trial(scenario(), Contestant("h", policy=SuccessiveHalving), pulls=60, seed=s) for s in (0, 1)]
    assert [run.result.best for run in runs] == ["m1", "m1"]
