"""The engine with the metrics it was made for."""

import pytest
import torch

from tm_bandit import ModelSelector, OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit.errors import InputError
from tm_bandit.policies import LUCB, UCB, Race, SuccessiveHalving
from tm_bandit.selection.setup import resolve_policy
from tm_bandit.simulation import class_bank, gaussian_arm, probability_arm

DIM = 8
ZERO, EYE = torch.zeros(DIM, dtype=torch.float64), torch.eye(DIM, dtype=torch.float64)


def arms(*shifts, scales=None):
    made = {}
    for i, shift in enumerate(shifts):
        mean = torch.full((DIM,), shift / DIM**0.5, dtype=torch.float64)
        scale = 1.0 if scales is None else scales[i]
        made[f"arm{i}"] = gaussian_arm(f"arm{i}", mean, scale * EYE, ZERO, EYE)
    return made


def fid(**kwargs):
    return OptimisticFID("none", reference=ReferenceStatistics(ZERO, EYE, 10_000), **kwargs)


def select(simulated, metric, **kwargs):
    samplers = {name: arm.sample for name, arm in simulated.items()}
    return ModelSelector(metric, samplers, samples="features", **kwargs)


@pytest.mark.parametrize("policy", ["ucb", "race", "lucb", "halving", "thompson", "uniform"])
def test_every_sensible_policy_finds_the_best_fid(policy):
    result = select(arms(2.0, 0.5, 3.0), fid(), policy=policy, budget=900).run(progress=False)
    assert result.best == "arm1"
    assert result.metric == "OptimisticFID"


@pytest.mark.parametrize("bound", ["paper", "authors", "naive", "none"])
def test_every_bound_runs(bound):
    result = select(arms(0.5, 4.0), fid(bound=bound), budget=300).run(progress=False)
    assert result.best == "arm0"
    assert result.status not in ("won", "likely")


def test_certified_fid_is_right_and_its_intervals_hold_the_truth():
    simulated = arms(0.5, 2.5)
    result = select(simulated, fid(), stop="certified", budget=6000).run(progress=False)
    assert (result.best, result.status) == ("arm0", "won")
    for row in result.arms:
        assert row["lower"] <= simulated[row["arm"]].score <= row["upper"]


def test_two_equal_arms_of_very_different_counts_are_not_told_apart():
    # The plain FID of the rarely pulled arm is far higher; nothing that is reported may follow it.
    simulated = arms(1.0, 1.0)
    wrong = 0
    for seed in range(4):
        selector = select(simulated, fid(), budget=10_000, batch_size=5, seed=seed)
        for name, pulls in (("arm0", 300), ("arm1", 12)):
            for draw in range(pulls):
                generator = torch.Generator().manual_seed(selector.seed_for(name, draw))
                selector.observe(name, simulated[name].sample(5, generator=generator))
        result = selector.result()
        rows = {row["arm"]: row for row in result.arms}
        assert rows["arm1"]["estimate"] > rows["arm0"]["estimate"]
        gap = abs(rows["arm1"]["debiased"] - rows["arm0"]["debiased"])
        wrong += gap > 0.8 * (rows["arm1"]["estimate"] - rows["arm0"]["estimate"]) and gap > 0.6
        assert result.status not in ("won", "likely")
        for row in rows.values():
            assert row["lower"] <= 1.0 <= row["upper"]
    assert wrong <= 1


def test_inception_score_is_higher_the_better():
    generator = torch.Generator().manual_seed(0)
    simulated = {
        f"{k} classes": probability_arm(f"{k} classes", class_bank(range(k), 20, 9.0, 1000, generator))
        for k in (10, 20, 15)
    }
    result = select(simulated, OptimisticIS("none"), budget=1500).run(progress=False)
    assert result.best == "20 classes"
    assert result.higher_is_better
    for row in result.arms:
        assert row["lower"] <= row["debiased"] <= row["upper"]
        assert 1.0 <= row["debiased"] <= 20.0
    certified = select(simulated, OptimisticIS("none"), budget=20_000, batch_size=50, stop="certified")
    result = certified.run(progress=False)
    assert (result.best, result.status) == ("20 classes", "won")


def test_reference_from_real_samples_is_decomposed_once_for_all_arms():
    metric = OptimisticFID("none", bound="witness")
    real = torch.randn(500, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    metric.update_features(real, real=True)
    selector = select(arms(0.5, 3.0), metric, budget=300)
    references = [arm.metric.reference for arm in selector._arms.values()]
    assert references[0] is references[1] is metric.reference
    assert selector.run(progress=False).best == "arm0"
    state = selector.state_dict()["arms"][0]["metric"]
    assert state["real_scatter"] == []


def test_one_network_serves_all_arms_and_stays_where_it_is():
    network = torch.nn.Linear(3, DIM).double()
    metric = OptimisticFID(network, reference=ReferenceStatistics(ZERO, EYE, 1000))
    samplers = {
        f"a{i}": lambda n, generator: torch.randn(n, 3, generator=generator, dtype=torch.float64) for i in range(3)
    }
    selector = ModelSelector(metric, samplers, budget=100, device="cpu", stop="budget")
    assert all(arm.metric.inception is None for arm in selector._arms.values())
    result = selector.run(progress=False)
    assert result.total_samples == 100
    assert metric.num_samples == 0


@pytest.mark.parametrize("bound", ["witness", "authors"])
def test_resuming_is_exact_with_the_real_metric(tmp_path, bound):
    simulated = arms(0.5, 1.0, 1.5)
    whole, first, second = (select(simulated, fid(bound=bound), budget=600) for _ in range(3))
    for _ in range(61):
        first.step()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    expected, got = whole.run(progress=False), second.run(progress=False)
    assert got.history["arm"] == expected.history["arm"]
    assert got.history["estimate"][100:] == pytest.approx(expected.history["estimate"][100:], rel=1e-9)
    assert got.best == expected.best


@pytest.mark.parametrize("score", ["fid", "is"])
def test_one_batch_is_enough_for_a_recommendation_but_not_for_a_bound(score):
    if score == "fid":
        selector = select(arms(9.0, 0.5), fid(), budget=100)
    else:
        generator = torch.Generator().manual_seed(0)
        banks = {name: class_bank(range(k), 20, 9.0, 500, generator) for name, k in (("few", 1), ("all", 20))}
        selector = select({name: probability_arm(name, bank) for name, bank in banks.items()}, OptimisticIS("none"))
    selector.step(), selector.step()
    assert selector.best == ("arm1" if score == "fid" else "all")
    result = selector.result()
    assert result.status not in ("won", "likely")
    assert type(result).from_json(result.to_json()) == result


def test_halving_is_not_asked_about_a_newcomer_in_its_burn_in():
    # Without a witness yet the newcomer's optimistic distance is zero, the best of all.
    simulated = arms(0.5, 3.0, 9.0)
    late = simulated.pop("arm2")
    selector = select(simulated, fid(), policy="halving", budget=600)
    for _ in range(80):
        selector.step()
    selector.add_arm("late", late.sample)
    selector.step()
    assert (selector.draws("late"), selector.best) == (1, "arm0")


def test_a_bad_newcomer_need_not_catch_up_to_be_judged():
    simulated = arms(0.1, 0.2, 4.0)
    late = simulated.pop("arm2")
    selector = select(simulated, fid(), stop="budget", pairing="independent", budget=1600)
    while selector.spent < 1000:
        selector.step()
    assert min(selector.stats(name).num_samples for name in ("arm0", "arm1")) >= 400
    selector.retire_arm("arm1")
    selector.add_arm("late", late.sample)
    assert selector.run(progress=False).best == "arm0"
    assert selector.stats("late").num_samples <= 100


def test_arms_of_one_batch_are_not_called_alike():
    selector = select(arms(0.1, 20.0), fid(), budget=100)
    selector.step(), selector.step()
    result = selector.result()
    assert (result.best, result.status, result.tied) == ("arm0", "unfinished", [])


def test_the_default_policy_by_goal_and_metric():
    reference = ReferenceStatistics(torch.zeros(2).double(), torch.eye(2).double(), 100)
    fid, score = OptimisticFID("none", reference=reference), OptimisticIS("none")
    for metric in (fid, score):
        saver = resolve_policy("ucb", metric, "regret", "budget")
        assert (type(saver), saver.index) == (UCB, "witness")
        assert [
            type(resolve_policy("ucb", metric, "identify", stop)) for stop in ("budget", "certified", "likely")
        ] == [Race] * 3
        assert type(resolve_policy("race", metric, "regret", "budget")) is Race
    paper = OptimisticIS("none", bound="paper")
    plain = resolve_policy("ucb", paper, "identify", "budget")
    assert (type(plain), plain.index) == (UCB, "bound")
    assert type(resolve_policy("ucb", paper, "identify", "certified")) is LUCB


def test_a_policy_that_needs_what_the_metric_does_not_tell_is_refused():
    policy = SuccessiveHalving(rank_by="sharpness")
    with pytest.raises(InputError, match=r"OptimisticIS tells.*needs sharpness"):
        ModelSelector(OptimisticIS("none"), policy=policy)
    policy = SuccessiveHalving(rank_by="debiased")
    assert ModelSelector(fid(), policy=policy).policy is policy
