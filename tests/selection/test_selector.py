"""The engine on a metric that is an ordinary mean."""

import math
import random

import numpy as np
import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector, OptimisticIS
from tm_bandit.errors import ArmError, InputError, NotReadyError
from tm_bandit.policies import UCB, Policy, Uniform


def arms(*means, std=1.0):
    return {f"a{i}": gaussian(mean, std) for i, mean in enumerate(means)}


def make(samplers=None, policy="ucb", **kwargs):
    """A selector that spends its whole budget; what the defaults do instead is in TestDefaults."""
    kwargs = {"budget": 500, "samples": "features", "goal": "regret", "refresh": 0.05, **kwargs}
    return ModelSelector(
        kwargs.pop("metric", None) or MeanMetric(),
        samplers or arms(0.0, 0.5, 1.0),
        policy,
        **{"batch_size": 5, **kwargs},
    )


class TestRun:
    def test_finds_the_best_arm_and_accounts_for_every_sample(self):
        result = make(budget=1003).run(progress=False)
        assert result.best == "a0"
        # 1003 samples are 200 pulls of five; the rest does not make a pull.
        assert sum(result.pulls.values()) == len(result.history["arm"]) == 200
        assert result.total_samples == 1000
        assert math.isclose(sum(row["share"] for row in result.arms), 1.0)
        assert result.history["samples"] == list(range(5, 1001, 5))
        assert result.num_samples["a0"] > 800
        assert result.stopped_by == "budget"

    def test_burn_in_comes_first_and_in_turn(self):
        selector = make(burn_in=12)
        assert selector.burn_in == 15
        assert [selector.step() for _ in range(9)] == ["a0", "a1", "a2"] * 3

    def test_auto_burn_in_is_two_batches_or_what_the_bound_needs(self):
        assert make(batch_size=5).burn_in == 10
        assert make(batch_size=1, burn_in=1).burn_in == 2  # of one sample there is no estimate
        needy = MeanMetric()
        type_with_need = type("Needy", (MeanMetric,), {"min_samples": property(lambda self: 23)})
        assert make(metric=type_with_need(), batch_size=5).burn_in == 25
        assert make(metric=needy, batch_size=1).burn_in == 2

    def test_an_arm_is_recommended_from_the_first_batch_on_but_has_not_won(self):
        selector = make(arms(1.0, 0.0, 2.0, std=0.01), burn_in=40, stop="certified")
        seen = [(selector.step(), selector.result().best, selector.result().status) for _ in range(3)]
        assert [best for _, best, _ in seen] == ["a0", "a1", "a1"]
        assert selector.best == "a1"  # the selector's own look waits for all arms to have drawn
        # Of three arms one or two have been seen: whatever lies apart, nobody has won against the third.
        assert [status for _, _, status in seen[:2]] == ["unfinished"] * 2
        # Dear numbers are looked at after 1, 2 and 4 pulls of the burn-in and at its end, not after every pull.
        while selector.stats("a0").num_samples < selector.burn_in:
            selector.step()
        assert list(selector._arms["a0"].trace) == [5, 10, 20, 40]

    def test_steps_and_run_give_the_same(self):
        one, other = make(), make()
        while one.step() is not None:
            pass
        assert one.result() == other.run(progress=False)

    def test_select_is_idempotent_and_counts_nothing(self):
        selector = make(policy="random")
        for _ in range(20):
            assert selector.select() == selector.select() == selector.step()

    def test_images_go_through_the_metric_once_per_batch(self):
        metric = MeanMetric()
        seen = []
        extract = metric.extract
        metric.extract = lambda batch: (seen.append(batch.shape), extract(batch))[1]
        selector = make({"a": lambda n: torch.rand(n, 3, 4, 4)}, metric=metric, samples="images", budget=50)
        selector.run(progress=False)
        assert seen == [torch.Size([5, 3, 4, 4])] * 10

    def test_only_what_is_needed_is_computed(self):
        selector = make(arms(0.0, 9.0), policy="thompson", budget=2000)
        selector.run(progress=False)
        asked = selector._arms["a0"].metric.asked
        cheap = [fields for fields in asked if set(fields) == {"witness", "stderr"}]
        # 398 pulls of the good arm, of which about 20 + ln(398 / 20) / ln 1.05 = 81 refresh everything.
        assert len(cheap) > 280
        assert 60 < len(asked) - len(cheap) < 100
        # The default policy is content with what was refreshed last.
        selector = make(arms(0.0, 9.0), budget=2000)
        selector.run(progress=False)
        asked = selector._arms["a0"].metric.asked
        assert 60 < len(asked) < 100


class TestReproducibility:
    def test_same_seed_same_run(self):
        assert make(policy="thompson").run(progress=False) == make(policy="thompson").run(progress=False)
        other = make(policy="thompson", seed=1).run(progress=False)
        assert other.history["estimate"] != make(policy="thompson").run(progress=False).history["estimate"]

    def test_an_arms_samples_do_not_depend_on_the_others(self):
        def rows(selector, name):
            selector.run(progress=False)
            return torch.cat(selector._arms[name].metric.values)[:50]

        alone = rows(make({"x": gaussian(0.0)}, policy="uniform"), "x")
        crowd = rows(make({"y": gaussian(1.0), "x": gaussian(0.0)}, policy="uniform", budget=300), "x")
        assert torch.equal(alone, crowd)

    def test_arms_have_the_same_noise_unless_they_shall_not(self):
        def rows(**kwargs):
            selector = make({"x": gaussian(0.0), "y": gaussian(1.0)}, policy="uniform", **kwargs)
            assert selector.run(progress=False).settings["pairing"] == kwargs.get("pairing", "common")
            return [torch.cat(selector._arms[name].metric.values)[:100] for name in "xy"]

        x, y = rows()
        assert torch.allclose(y - x, torch.ones_like(x))
        x, y = rows(pairing="independent")
        assert (y - x).std() > 1.0

    def test_seeds_are_stable_across_versions(self):
        selector = make(pairing="independent")
        assert selector.seed_for("a0", 0) == 5795947228095011287
        assert make().seed_for("a0", 0) == make().seed_for("a1", 0) == 7519334944260373035
        seeds = {selector.seed_for(a, d, c) for a in ("a", "b") for d in range(50) for c in range(3)}
        assert len(seeds) == 300
        assert all(0 <= seed < 2**63 for seed in seeds)

    def test_global_random_states_are_seeded_for_the_sampler_and_left_alone(self):
        def careless(num_samples):
            return torch.rand(num_samples, 1) + np.random.rand() + random.random()

        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        expected = (torch.rand(1).item(), np.random.rand(), random.random())
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        first = make({"a": careless, "b": careless}).run(progress=False)
        assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected
        second = make({"a": careless, "b": careless}).run(progress=False)
        assert first == second

    def test_random_state_is_restored_after_a_failure(self):
        def failing(num_samples):
            torch.rand(3)
            raise RuntimeError("out of memory")

        torch.manual_seed(5)
        expected = torch.rand(1)
        torch.manual_seed(5)
        make({"bad": failing, "good": gaussian(0.0)}, budget=50).run(progress=False)
        assert torch.equal(torch.rand(1), expected)


class TestArmsComeAndGo:
    def test_a_newcomer_joins_and_the_others_keep_their_statistics(self):
        selector = make(arms(1.0, 2.0), budget=400)
        selector.run(progress=False)
        before = selector.stats("a0")
        selector.add_arm("new", gaussian(0.0))
        assert selector.stats("a0") == before
        result = selector.run(progress=False, budget=600)
        assert result.history["arm"][80:82] == ["new", "new"]
        assert result.best == "new"

    def test_a_better_newcomer_is_recommended_before_it_has_caught_up(self):
        selector = make(arms(1.0, 2.0), budget=4000)
        selector.run(progress=False)
        selector.add_arm("new", gaussian(0.0))
        result = selector.run(progress=False, budget=300)
        assert result.num_samples["a0"] > 3000
        assert result.best == "new"

    def test_a_worse_newcomer_is_not_recommended(self):
        for seed in range(5):
            selector = make(arms(0.0, 2.0), budget=1000, seed=seed)
            selector.run(progress=False)
            selector.add_arm("new", gaussian(0.5))
            assert selector.run(progress=False, budget=300).best == "a0"

    def test_retired_arms_are_left_alone_and_shown(self):
        selector = make(budget=200)
        selector.run(progress=False)
        selector.retire_arm("a0", "checkpoint deleted")
        result = selector.run(progress=False, budget=100)
        assert result.best != "a0"
        assert result.retired == {"a0": "checkpoint deleted"}
        assert [row["verdict"] for row in result.arms if row["arm"] == "a0"] == ["retired: checkpoint deleted"]
        assert selector.arms == ["a1", "a2"]
        with pytest.raises(InputError, match="retired"):
            selector.observe("a0", torch.zeros(5, 1))

    def test_arms_share_the_failure_probability(self):
        selector = make(metric=MeanMetric(delta=0.04))
        deltas = [arm.metric.delta for arm in selector._arms.values()]
        assert deltas == [0.01] * 3
        for i in range(50):
            selector.add_arm(f"late{i}")
        assert sum(arm.metric.delta for arm in selector._arms.values()) < 0.04

    def test_bounds_of_other_programs_keep_their_delta_and_certify_nothing(self):
        selector = make(arms(0.0, 50.0), metric=MeanMetric(bound="authors", delta=0.04))
        assert [arm.metric.delta for arm in selector._arms.values()] == [0.04, 0.04]
        assert selector.run(progress=False).status not in ("won", "tie")


class TestOutsideLoop:
    def test_same_as_the_inner_loop(self):
        inner, outer = (
            make(),
            ModelSelector(MeanMetric(), budget=500, batch_size=5, samples="features", goal="regret", refresh=0.05),
        )
        samplers = arms(0.0, 0.5, 1.0)
        for name in samplers:
            outer.add_arm(name)
        # The arms of the inner loop were there from the start and share delta evenly; nothing else may differ.
        while (name := outer.select()) is not None:
            generator = torch.Generator().manual_seed(outer.seed_for(name, outer.draws(name)))
            outer.observe(name, samplers[name](5, generator=generator))
        mine, theirs = outer.result(), inner.run(progress=False)
        assert mine.history["arm"] == theirs.history["arm"]
        assert mine.history["estimate"] == theirs.history["estimate"]

    def test_a_refused_batch_changes_nothing(self):
        selector = make(budget=100)
        selector.run(progress=False)
        before = selector.state_dict()
        for rows in (torch.zeros(4, 1), torch.zeros(5, 2), torch.full((5, 1), math.nan), torch.zeros(0, 1)):
            with pytest.raises(ArmError, match="Expected"):
                selector.observe("a0", rows)
        after = selector.state_dict()
        assert after["history"] == before["history"]
        assert len(after["arms"][0]["metric"]["values"]) == len(before["arms"][0]["metric"]["values"])

    def test_step_needs_a_sampler(self):
        selector = ModelSelector(MeanMetric())
        with pytest.raises(InputError, match="at least one arm"):
            selector.select()
        selector.add_arm("a")
        with pytest.raises(InputError, match="sampler"):
            selector.step()


class TestBadInput:
    @pytest.mark.parametrize(
        ("sampler", "reason"),
        [
            (lambda n: 1 / 0, "ZeroDivisionError"),
            (lambda n: torch.zeros(n - 1, 1), "Expected 5 samples, but got 4"),
            (lambda n: torch.zeros(n + 1, 1), "Expected 5 samples, but got 6"),
            (lambda n: torch.full((n, 1), math.nan), "finite"),
            (lambda n: torch.zeros(n, 2), "shape"),
            (lambda n: torch.zeros(n), "one sample per entry"),
            (lambda n: torch.tensor(1.0), "one sample per entry"),
            (lambda n: np.zeros((n, 1)), "ndarray"),
            (lambda n: None, "NoneType"),
            (lambda n: torch.zeros(n, 1, device="meta"), "meta device; convert it"),
            (lambda n: torch.zeros(n, 1).to_sparse(), "dense tensor"),
            (lambda: None, "TypeError"),
        ],
    )
    def test_a_failing_arm_is_retired_and_the_run_goes_on(self, sampler, reason):
        selector = make({"bad": sampler, "good": gaussian(0.0)}, budget=100)
        result = selector.run(progress=False)
        assert result.best == "good"
        assert reason in result.retired["bad"]
        assert "the only arm left: there is nothing to compare it with." in result.summary()
        assert result.num_samples == {"bad": 0, "good": 100}

    def test_an_arm_that_fails_late_keeps_its_numbers_in_the_table(self):
        calls = []

        def dying(num_samples, generator):
            calls.append(1)
            if len(calls) > 5:
                raise OSError("disk gone")
            return torch.randn(num_samples, 1, generator=generator)

        result = make({"dying": dying, "good": gaussian(1.0)}, budget=200).run(progress=False)
        row = next(row for row in result.arms if row["arm"] == "dying")
        assert row["n"] == 25
        assert "disk gone" in row["verdict"]
        assert result.best == "good"

    def test_all_arms_failing_is_an_error_that_names_them(self):
        def broken(num_samples):
            raise ValueError("no weights")

        with pytest.raises(ArmError, match=r"a: .*no weights.*b: .*no weights"):
            make({"a": broken, "b": broken}).run(progress=False)

    def test_a_metric_that_is_not_ready_is_no_arms_fault(self):
        metric = MeanMetric()

        def extract(batch):
            raise NotReadyError("no reference")

        metric.extract = extract
        with pytest.raises(NotReadyError):
            make({"a": lambda n: torch.zeros(n, 1)}, metric=metric, samples="images").run(progress=False)

    @pytest.mark.parametrize(
        "build",
        [
            lambda: ModelSelector(MeanMetric(), {}),
            lambda: ModelSelector(MeanMetric(), [gaussian(0.0)]),
            lambda: ModelSelector(MeanMetric(), {"a": 3}),
            lambda: ModelSelector(MeanMetric(), {"": gaussian(0.0)}),
            lambda: ModelSelector(torch.nn.Identity(), arms(0.0)),
            lambda: make(policy="best"),
            lambda: make(goal="speed"),
            lambda: make(stop="soon"),
            lambda: make(samples="audio"),
            lambda: make(batch_size=0),
            lambda: make(batch_size=2.5),
            lambda: make(budget=-1),
            lambda: make(burn_in=-1),
            lambda: make(burn_in="none"),
            lambda: make(seed="x"),
            lambda: make(epsilon=-1.0),
            lambda: make(target=math.nan),
            lambda: make(refresh=-0.1),
            lambda: make(metric=MeanMetric(bound="none"), stop="certified"),
            lambda: make(metric=MeanMetric(bound="none"), stop="likely"),
            lambda: make(metric=MeanMetric(bound="naive"), policy="thompson"),
            lambda: make(metric=MeanMetric(bound="naive"), policy=UCB(exploration=2.0)),
            lambda: make(metric=MeanMetric(bound="naive"), policy=UCB(index="witness")),
            lambda: make(epsilon="x"),
            lambda: make(target="x"),
            lambda: make(refresh="x"),
            lambda: make().run(budget=-10),
            lambda: make().run(budget=1e2),
        ],
    )
    def test_arguments_that_cannot_be_used_are_refused(self, build):
        with pytest.raises(InputError, match="Expected"):
            build()

    def test_budget_below_the_burn_in_of_all_arms(self):
        with pytest.raises(InputError, match=r"at least 30 samples \(3 arms with a burn-in of 10"):
            make(budget=29)
        assert make(budget=30).run(progress=False).best is not None

    def test_a_budget_that_newcomers_cannot_start_with_is_warned_of(self):
        selector = make(budget=30)
        with pytest.warns(UserWarning, match="needs 30 more samples, but 20 are left"):
            selector.run(progress=False, budget=20)
        loop = ModelSelector(MeanMetric(), budget=3, batch_size=5, samples="features")
        loop.add_arm("a", gaussian(0.0))
        with pytest.warns(UserWarning, match="needs 10 more samples, but 3 are left"):
            assert loop.run(progress=False).best is None

    def test_rows_that_are_no_tensor_are_refused(self):
        with pytest.raises(ArmError, match="a list"):
            make(metric=OptimisticIS("none")).observe("a0", [[1.0]])

    def test_duplicate_and_unknown_names(self):
        selector = make()
        with pytest.raises(InputError, match="exists"):
            selector.add_arm("a0", gaussian(0.0))
        selector.retire_arm("a0")
        with pytest.raises(InputError, match="exists"):
            selector.add_arm("a0", gaussian(0.0))
        for call in (selector.retire_arm, selector.draws, selector.stats):
            with pytest.raises(InputError, match="add_arm"):
                call("nobody")

    def test_a_metric_with_samples_is_refused(self):
        metric = MeanMetric()
        metric.update_rows(torch.zeros(3, 1))
        with pytest.raises(InputError, match="reset"):
            make(metric=metric)

    def test_a_policy_that_invents_an_arm_is_refused(self):
        class Inventor(Policy):
            needs = frozenset()

            def choose(self, arms, rng):
                return "nobody"

        with pytest.raises(InputError, match="nobody"):
            make(policy=Inventor()).run(progress=False)

    def test_one_arm_is_fine(self):
        result = make(arms(0.0), budget=100).run(progress=False)
        assert (result.best, result.status, result.total_samples) == ("a0", "won", 100)
        assert "the only arm: there is nothing to compare it with." in result.summary()
        assert ">only arm</span>" in result.to_html()
        assert "certified" not in result.plot().axes[0].get_title("left")
        assert make(arms(0.0), budget=100, stop="certified").run(progress=False).total_samples == 10

    def test_held_arms_are_not_drawn_from_but_may_win(self):
        selector = make(arms(0.0, 1.0), policy=Uniform(), budget=300)
        for _ in range(40):
            selector.step()
        selector.hold_arm("a0")
        drawn = selector.draws("a0")
        result = selector.run(progress=False)
        assert selector.draws("a0") == drawn
        assert result.best == "a0"
        selector.hold_arm("a1")
        assert selector.run(progress=False, budget=100).stopped_by == "exhausted"

    def test_a_released_arm_is_drawn_from_again(self):
        selector = make(arms(0.0, 1.0), "uniform", budget=80)
        selector.hold_arm("a1")
        while selector.spent < 40:
            selector.step()
        assert selector.draws("a1") == 0
        selector.release_arm("a1")
        selector.release_arm("a0")
        selector.run(progress=False)
        assert (selector.draws("a0"), selector.draws("a1")) == (8, 8)
        with pytest.raises(InputError, match="nobody"):
            selector.release_arm("nobody")

    @pytest.mark.parametrize("metric", [MeanMetric(), MeanMetric(bias=400.0)])
    def test_an_arm_whose_samples_are_used_up_is_compared_by_what_there_is(self, metric):
        # In the second case the plug-in of the arm with more samples is smaller, and its interval is inside the other.
        selector = make(arms(0.0, 1.0), policy=Uniform(), metric=metric, budget=3000)
        for _ in range(50):
            selector.step()
        selector.hold_arm("a0")
        result = selector.run(progress=False)
        assert result.num_samples == {"a0": 125, "a1": 2875}
        assert (result.best, result.status in ("won", "likely")) == ("a0", True)

    def test_an_arm_held_in_its_burn_in_neither_wins_nor_keeps_others_from_winning(self):
        selector = make(arms(1.0, 9.0, 0.0, std=0.1), stop="certified", burn_in=20)
        for _ in range(3):
            selector.step()
        selector.hold_arm("a2")
        result = selector.run(progress=False)
        assert (result.best, result.status) == ("a0", "won")
        assert selector.draws("a2") == 1
        # Held after the fact, an arm takes its place in the verdict at once.
        late = make(arms(1.0, 9.0, std=0.1), stop="certified", burn_in=20)
        late.run(progress=False)
        late.add_arm("late", gaussian(5.0, 0.1))
        assert late.result().status != "won"
        late.hold_arm("late")
        assert late.select() is None
        assert late.result().status == "won"

    def test_an_arm_without_any_rival_past_its_burn_in_is_not_called_certified(self):
        selector = make(arms(0.0, 1.0), burn_in=20, budget=200)
        selector.step(), selector.step()
        selector.hold_arm("a1")
        result = selector.run(progress=False)
        assert (result.best, result.unrivalled) == ("a0", True)
        assert "certified" not in result.summary()


def test_numbers_may_never_be_refreshed():
    arms = {"near": gaussian(1.0), "far": gaussian(5.0)}
    assert ModelSelector(MeanMetric(), arms, budget=200, samples="features", refresh=1e308).run(progress=False).best
