"""Simulated arms have the truth they claim, and trials are counted as the paper does."""

import math
from types import SimpleNamespace

import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit.errors import InputError
from tm_bandit.functional.frechet import frechet_distance
from tm_bandit.simulation import (
    Contestant,
    Scenario,
    SimulatedArm,
    average_regret,
    bank_arm,
    class_bank,
    compare,
    gaussian_arm,
    mean_and_error,
    optimal_pick_ratio,
    paired_gaussian_arm,
    paper_scale_arms,
    probability_arm,
    run_trial,
    samples_to_identify,
)
from tm_bandit.simulation.paper_scale import ARM_SHAPES, DISTANCES, REFERENCE_SHAPE, Shape, spectrum

GENERATOR = torch.Generator().manual_seed(0)


def moments(rows):
    return rows.mean(0), torch.cov(rows.T)


def test_gaussian_arm_draws_what_it_scores():
    root = torch.randn(4, 4, generator=GENERATOR, dtype=torch.float64)
    covariance, mean = root @ root.T, torch.tensor([1.0, -2.0, 0.0, 3.0], dtype=torch.float64)
    arm = gaussian_arm("a", mean, covariance, torch.zeros(4), torch.eye(4))
    rows = arm.sample(40_000, generator=torch.Generator().manual_seed(1))
    seen_mean, seen_covariance = moments(rows)
    # Four standard errors of the largest entry: 4 * |S| / sqrt(40000).
    assert torch.allclose(seen_mean, mean, atol=0.03 * float(covariance.norm()) ** 0.5)
    assert torch.allclose(seen_covariance, covariance, atol=0.03 * float(covariance.norm()))
    assert torch.equal(rows, arm.sample(40_000, generator=torch.Generator().manual_seed(1)))


def test_paired_arm_agrees_with_the_general_formula_and_with_its_samples():
    variances, reference = torch.tensor([4.0, 1.0, 0.5, 0.2, 2.0]), torch.tensor([3.0, 2.0, 1.0, 0.5, 0.1])
    pairs, mean = torch.tensor([[0, 3], [2, 1]]), torch.tensor([0.5, 0.0, 0.0, 1.0, 0.0])
    arm = paired_gaussian_arm("a", mean, variances, 0.7, pairs, reference)
    turn = torch.eye(5, dtype=torch.float64)
    for i, j in pairs.tolist():
        turn[i, i] = turn[j, j] = math.cos(0.7)
        turn[i, j], turn[j, i] = -math.sin(0.7), math.sin(0.7)
    covariance = turn @ torch.diag(variances.double()) @ turn.T
    zero = torch.zeros(5, dtype=torch.float64)
    exact = frechet_distance(mean.double(), covariance, zero, torch.diag(reference.double()))
    assert arm.score == pytest.approx(float(exact), rel=1e-9)
    seen = moments(arm.sample(40_000, generator=torch.Generator().manual_seed(2)))
    assert torch.allclose(seen[1], covariance, atol=0.15)
    assert torch.allclose(seen[0], mean.double(), atol=0.05)


@pytest.mark.parametrize("shape", [REFERENCE_SHAPE, *ARM_SHAPES])
def test_spectra_have_the_published_numbers(shape):
    values = spectrum(shape)
    got = (values.sum(), values.norm(), values.max())
    assert [float(v) for v in got] == pytest.approx(list(shape), rel=1e-6)
    assert bool((values > 0).all())
    assert bool((values.diff() <= 0).all())


def test_impossible_spectra_are_refused():
    with pytest.raises(InputError, match="power law"):
        spectrum(Shape(trace=100.0, frobenius=1000.0, norm=1.0))


@pytest.mark.parametrize("dataset", list(DISTANCES))
def test_paper_scale_arms_have_the_published_distances(dataset):
    _, arms = paper_scale_arms(dataset)
    assert {arm.name: round(arm.score, 2) for arm in arms} == DISTANCES[dataset]
    with pytest.raises(InputError, match="imagenet"):
        paper_scale_arms("mnist")


def test_banks_are_drawn_with_replacement_and_have_exact_truth():
    rows = torch.randn(50, 3, generator=GENERATOR, dtype=torch.float64)
    arm = bank_arm("bank", rows, torch.zeros(3), torch.eye(3))
    mean, covariance = rows.mean(0), torch.cov(rows.T, correction=0)
    exact = frechet_distance(mean, covariance, torch.zeros(3).double(), torch.eye(3).double())
    assert arm.score == pytest.approx(float(exact))
    drawn = arm.sample(500, generator=torch.Generator().manual_seed(3))
    assert all(bool((rows == row).all(1).any()) for row in drawn)


def test_class_banks_score_lower_when_classes_are_dropped_or_unsure():
    def score(classes, sharpness):
        bank = class_bank(range(classes), 20, sharpness, 2000, torch.Generator().manual_seed(4))
        assert torch.allclose(bank.sum(1), torch.ones(2000, dtype=torch.float64))
        return probability_arm("a", bank).score

    assert 20 >= score(20, 9.0) > score(15, 9.0) > score(10, 9.0) > 1
    assert score(20, 9.0) > score(20, 6.0) > score(20, 3.0)
    with pytest.raises(InputError, match="classes"):
        probability_arm("a", torch.ones(3))


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
    def trial(best):
        return SimpleNamespace(result=SimpleNamespace(history={"best": best, "samples": [5, 10, 15, 20]}))

    right, late = ["m1"] * 4, ["m1", "m2", "m1", "m1"]
    assert samples_to_identify(scenario(), [trial(right), trial(late)]) == 15
    assert samples_to_identify(scenario(), [trial(right)] * 9 + [trial(late)]) == 5
    assert samples_to_identify(scenario(), [trial(["m1"] * 3 + ["m2"])]) is None
    assert samples_to_identify(scenario(), [trial(["m2"] * 4)], tolerance=1.0) == 5
    joined = scenario(joins={"m1": 2})
    assert samples_to_identify(joined, [trial(right)]) == 5
    assert samples_to_identify(joined, [trial(["m2", "m2", "m2", "m1"])]) == 10
    assert samples_to_identify(scenario(joins={"m1": 4}), [trial(right)]) is None


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
