"""The race: contenders in step, nothing for beaten arms."""

import math
from dataclasses import asdict

import pytest
import torch

from tests.policies.parts import arm, chosen
from tm_bandit import ModelSelector, OptimisticFID, OptimisticMean, ReferenceStatistics
from tm_bandit.policies import Race
from tm_bandit.simulation import gaussian_arm

DIM = 6
ZERO, EYE = torch.zeros(DIM, dtype=torch.float64), torch.eye(DIM, dtype=torch.float64)


def sampler(shift):
    return gaussian_arm("", ZERO + shift, EYE, ZERO, EYE).sample


def race(*shifts, metric=None, **kwargs):
    metric = metric or OptimisticFID("none", reference=ReferenceStatistics(ZERO, EYE, 10_000))
    kwargs = {"budget": 1500, "samples": "features", **kwargs}
    return ModelSelector(metric, {f"a{i}": sampler(shift) for i, shift in enumerate(shifts)}, **kwargs)


def tell(selector, pull):
    """Carry out a pull as a worker would."""
    selector.tell(pull, selector._arms[pull.arm].carry_out(pull, selector.metric, "features"))


def test_the_arm_with_the_fewest_samples_is_next_those_under_way_included():
    arms = [arm("a", 90), arm("b", 80), arm("c", 80)]
    assert chosen(Race(), *arms) == "b"
    assert chosen(Race(), *arms, pending={"b": 10}) == "c"
    assert chosen(Race(), *arms, pending={"b": 15, "c": 15}) == "a"


def test_with_prices_the_comparison_that_will_have_cost_the_least_is_next():
    prices = {"a": 1.0, "b": 1.0, "c": 50.0, "d": 50.0}

    def after(best, **counts):
        return chosen(Race(), *(arm(name, n) for name, n in counts.items()), prices=prices, best=best)

    # The leader is cheap: its cheap rival, until the two cost as much as the expensive ones.
    assert after("a", a=20, b=15, c=10, d=10) == "b"
    assert after("a", a=20, b=20, c=10, d=10) == "a"
    assert after("a", a=375, b=375, c=10, d=10) == "a"
    assert after("a", a=380, b=380, c=10, d=10) == "c"
    # It is expensive: a cheap rival that is ahead waits for it, and one as expensive comes last.
    assert after("c", a=20, b=20, c=10, d=10) == "c"
    assert after("c", a=20, b=20, c=20, d=10) == "a"
    assert after("c", a=20, b=20, c=20, d=5) == "d"
    assert after("c", a=10, b=20, c=20, d=20) == "a"
    # A leader that is ahead of all rivals waits for them.
    assert after("a", a=500, b=20, c=15, d=10) == "b"
    # Nobody leads, or the leader needs no more samples.
    assert after(None, a=60, b=55, c=10, d=5) == after("e", a=60, b=55, c=10, d=5) == "b"
    assert after(None, a=500, b=500, c=10, d=5) == "d"


def test_it_needs_no_number_at_every_pull():
    assert (Race().needs, Race().races) == (frozenset(), True)


def test_contenders_stay_in_step_and_beaten_arms_get_no_further_pull():
    selector = race(0.1, 0.14, 1.0, 2.0, stop="budget", budget=1200)
    assert type(selector.policy) is Race
    beaten = {}
    while selector.step() is not None:
        counts = {name: selector.stats(name).num_samples for name in selector.arms}
        out = selector._verdict.likely_out
        beaten = {name: beaten.get(name, counts[name]) for name in out}
        resting = {*out, *selector._verdict.waiting}
        standing = [counts[name] for name in counts if name not in resting]
        assert max(standing) - min(standing) <= selector.batch_size
    counts = selector.result().num_samples
    assert {"a2", "a3"} <= beaten.keys()
    # A round may be under way when the verdict falls, and no more.
    assert all(counts[name] <= count + selector.batch_size for name, count in beaten.items())
    assert counts["a2"] < counts["a0"] / 3


def test_near_ties_are_told_apart_with_a_fraction_of_the_samples():
    common, independent = (race(0.5, 0.55, pairing=pairing, budget=6000) for pairing in ("common", "independent"))
    first, second = common.run(progress=False), independent.run(progress=False)
    assert (first.best, first.status) == ("a0", "likely")
    assert 10 * first.total_samples < second.total_samples
    assert first.arms[1]["correlation"] > 0.9


def test_a_newcomer_catches_up_from_draw_0_and_goes_out_after_few_batches():
    selector = race(0.1, 0.12, stop="budget", budget=1200)
    while selector.spent < 800:
        selector.step()
    assert max(selector.stats(name).num_samples for name in selector.arms) >= 400
    selector.add_arm("new", sampler(1.5))
    pulls = []
    while "new" not in selector._verdict.likely_out:
        pulls += selector.ask()
        tell(selector, pulls[-1])
    assert {pull.arm for pull in pulls} == {"new"}
    assert [pull.draw for pull in pulls] == list(range(len(pulls)))
    assert [pull.seed for pull in pulls] == [selector.seed_for("a0", draw) for draw in range(len(pulls))]
    assert len(pulls) <= 10
    selector.run(progress=False)
    assert selector.stats("new").num_samples == selector.batch_size * len(pulls)


def test_a_better_newcomer_takes_over():
    selector = race(0.6, 0.8, budget=600)
    selector.run(progress=False)
    selector.add_arm("new", sampler(0.1))
    result = selector.run(progress=False, budget=600)
    assert (result.best, result.status) == ("new", "likely")


def test_twins_end_as_a_tie_and_are_named():
    for metric in (None, OptimisticMean(lambda rows: rows.mean(1), higher_is_better=False)):
        selector = race(0.1, 0.1, 1.5, metric=metric, samples="features" if metric is None else "images")
        result = selector.run(progress=False)
        assert (result.best, result.status, result.tied, result.stopped_by) == ("a0", "tie", ["a1"], "stop")
        assert 200 <= result.num_samples["a0"] < 240, "as many as show a difference in one sample of fifty"
        assert result.num_samples["a2"] <= 100
        assert selector.twins() == {"a1": "a0"}
        row = result.arms[1]
        assert (row["verdict"], row["behind"]) == ("tie", 0.0)
        assert row["behind_lower"] <= 0.0 <= row["behind_upper"]
        assert "cannot be told apart" in result.summary()


@pytest.mark.parametrize("seed", range(12))
def test_arms_that_differ_in_a_few_samples_are_not_taken_for_the_same_model(seed):
    def better(num_samples, generator):
        return torch.randn(num_samples, DIM, generator=generator)

    def worse(num_samples, generator):
        noise = better(num_samples, generator)
        return noise + 3 * (noise[:, :1] > 1.9)  # 3 % of the samples

    metric = OptimisticFID("none", reference=ReferenceStatistics(ZERO, EYE, 10_000))
    selector = ModelSelector(metric, {"worse": worse, "better": better}, samples="features", seed=seed)
    assert selector.run(progress=False).best == "better"


@pytest.mark.parametrize("score", ["fid", "mean"])
def test_resuming_in_mid_round_is_the_uninterrupted_run(tmp_path, score):
    def start():
        mean = OptimisticMean(lambda rows: rows.square().sum(1), higher_is_better=False)
        return race(0.1, 0.105, 0.2, 1.0, **({} if score == "fid" else {"metric": mean, "samples": "images"}))

    whole = start().run(progress=False)
    total = len(whole.history["arm"])
    assert total > 20
    for stop_at in (9, 14, total - 3):
        first, second = start(), start()
        for _ in range(stop_at):
            first.step()
        torch.save(first.state_dict(), tmp_path / "state.pt")
        second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert second._verdict == first._verdict
        result = second.run(progress=False)
        if score == "fid":
            # Sums are made from the rows again, which rounds otherwise; all that decides is the same.
            for name in ("arm", "best", "status"):
                assert result.history[name] == whole.history[name]
            for mine, theirs in zip(result.arms, whole.arms, strict=True):
                floats = [name for name, value in theirs.items() if isinstance(value, float)]
                assert [mine[name] for name in floats] == pytest.approx([theirs[name] for name in floats], nan_ok=True)
                assert mine["verdict"] == theirs["verdict"]
            continue
        assert result == whole


@pytest.mark.parametrize("stop", ["likely", "budget"])
def test_workers_in_any_order_find_the_same(stop):
    shifts = (0.1, 0.15, 0.2, 1.0)
    orders = (lambda pulls: pulls, lambda pulls: pulls[::-1], lambda pulls: pulls[1::2] + pulls[::2])
    results = []
    for order in orders:
        selector = race(*shifts, stop=stop, budget=700)
        while pulls := selector.ask(4):
            for pull in order(pulls):
                tell(selector, pull)
        verdict = {name: sorted(value) for name, value in asdict(selector._verdict).items() if name.endswith("out")}
        result = selector.result()
        results.append((selector.best, verdict, result.arms, result.status))
    assert str(results[1:]) == str(results[:1] * 2)  # as text: NaN is not equal to itself


def test_without_standard_errors_or_for_regret_there_is_no_race():
    naive = OptimisticFID("none", reference=ReferenceStatistics(ZERO, EYE, 10_000), bound="naive")
    for selector in (race(0.1, 0.2, metric=naive), race(0.1, 0.2, goal="regret")):
        assert not selector.policy.races
        assert selector.stop == "budget"


def test_arms_that_say_nothing_of_themselves_stay_in_the_race():
    def collapsed(n, generator):
        return torch.ones(n, 1)

    def gaussian(n, generator):
        return 2.0 + torch.randn(n, 1, generator=generator)

    metric = OptimisticMean(lambda rows: rows[:, 0], higher_is_better=False)
    result = ModelSelector(metric, {"flat": collapsed, "good": gaussian}, budget=200).run(progress=False)
    # Ones with any seed: there is no standard error, so the other is not ruled out, and samples go to both.
    assert result.num_samples == {"flat": 100, "good": 100}
    assert (result.best, math.isinf(result.arms[1]["behind_lower"])) == ("flat", True)
