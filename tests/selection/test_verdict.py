"""Who is the best, and how sure that is: pure functions, checked by hand and by simulation."""

import math

import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector
from tm_bandit.comparison import anytime_margin
from tm_bandit.policies import ArmStats
from tm_bandit.policies.base import central
from tm_bandit.policies.board import Board
from tm_bandit.selection.verdict import Verdict, certified_out, contenders, judge, recommend, uniform_cost


def arm(name, n=100, *, w=math.nan, p=math.nan, se=0.1, low=-math.inf, high=math.inf, value=math.nan, err=0.1):
    return ArmStats(
        name, n // 5, n, witness=w, stderr=se, estimate=p, optimistic=low, pessimistic=high, debiased=value,
        debiased_stderr=err,
    )  # fmt: skip


def run(samplers, **kwargs):
    kwargs = {"budget": 2000, "samples": "features", **kwargs}
    return ModelSelector(kwargs.pop("metric", None) or MeanMetric(), samplers, **kwargs).run(progress=False)


def judged(arms, *, drawn_since=None, traces=None, **kwargs):
    return judge(Board(arms, traces=traces or {}), drawn_since=drawn_since or {}, **kwargs)


def recommended(arms, drawn_since, traces):
    return recommend(Board(arms, traces=traces), drawn_since)


def test_central_value_falls_back():
    assert central(arm("a", w=1.0, p=3.0, value=2.5)) == 2.5
    assert central(arm("a", w=1.0, p=3.0)) == 2.0
    assert central(arm("a", p=3.0)) == 3.0


class TestCertified:
    def test_only_disjoint_intervals_count(self):
        a, b, c = arm("a", low=1, high=2), arm("b", low=1.9, high=3), arm("c", low=2.1, high=3)
        assert certified_out([a, b, c]) == {"c"}
        assert certified_out([a, b, c], epsilon=0.2) == {"b", "c"}

    def test_vacuous_intervals_say_nothing(self):
        assert certified_out([arm("a"), arm("b")]) == frozenset()
        nan = math.nan
        assert certified_out([arm("a", low=nan, high=nan), arm("b", low=1, high=2)]) == frozenset()

    def test_the_winner_is_the_certified_one_even_if_another_looks_better(self):
        a = arm("a", low=1, high=2, value=1.9)
        b = arm("b", low=2.5, high=4, value=1.0)
        verdict = judged([a, b])
        assert (verdict.best, verdict.level) == ("a", "won")

    def test_heuristic_bounds_never_certify(self):
        a, b = arm("a", low=1, high=2, value=1), arm("b", low=3, high=4, value=3)
        assert judged([a, b], certifies=False).level == "open"


class TestLikely:
    @staticmethod
    def out(rival, leader, epsilon=0.0):
        arms = [leader, rival]
        return judged(
            arms, traces={a.name: {a.num_samples: a} for a in arms}, epsilon=epsilon, preferred="a"
        ).likely_out

    def test_both_the_witness_and_the_plug_in_must_differ(self):
        leader = arm("a", w=1.0, p=2.0)
        width = anytime_margin(100, 0.05 / 2) * math.hypot(0.1, 0.1)
        far, near = 1.01 * width, 0.99 * width
        assert self.out(arm("b", w=1 + far, p=2 + far), leader) == {"b"}
        assert self.out(arm("b", w=1 + near, p=2 + far), leader) == frozenset()
        assert self.out(arm("b", w=1 + far, p=2 + near), leader) == frozenset()
        assert self.out(arm("b", w=1 + near, p=2 + near), leader, epsilon=0.02 * width) == {"b"}

    @pytest.mark.parametrize("se", [0.0, math.nan])
    def test_without_standard_errors_nothing_is_likely(self, se):
        assert self.out(arm("b", w=9, p=9, se=se), arm("a", w=1, p=1)) == frozenset()

    def test_comparison_is_at_equal_counts(self):
        # At its 400 samples arm a has a lower plug-in than b at 100 only because the bias has gone.
        a, b = arm("a", 400, w=1.0, p=1.1, value=1.0), arm("b", 100, w=1.0, p=3.0, value=1.0)
        traces = {"a": {100: arm("a", 100, w=1.0, p=3.0), 400: a}, "b": {100: b}}
        assert judged([a, b], traces=traces).likely_out == frozenset()


class TestRecommendation:
    def test_neglected_arms_are_no_contenders(self):
        arms = [arm("a", 1000, value=2.0), arm("b", 400, value=1.0), arm("c", 500, value=2.5)]
        drawn = dict.fromkeys("abc", 1000)
        assert [a.name for a in contenders(arms, drawn)] == ["a", "c"]
        assert recommended(arms, drawn, {}) == "a"

    def test_a_newcomer_is_measured_by_what_happened_since_it_joined(self):
        arms = [arm("old", 10_000, value=2.0), arm("new", 400, value=1.0)]
        traces = {"old": {400: arm("old", 400, value=2.1)}, "new": {400: arms[1]}}
        assert recommended(arms, {"old": 10_000, "new": 300}, traces) == "new"
        assert recommended(arms, {"old": 10_000, "new": 2000}, traces) == "old"
        few = [arms[0], arm("new", 20, value=1.0)]
        assert recommended(few, {"old": 10_000, "new": 0}, {}) == "old"

    def test_bias_that_falls_with_n_does_not_decide(self):
        # Two equal arms whose remaining bias is 40 / n: by the plain value the one with more samples would win.
        def at(name, n, shift=0.0):
            return arm(name, n, value=5.0 + shift + 40 / n)

        traces = {"many": {n: at("many", n) for n in (400, 4000)}, "few": {400: at("few", 400, -0.001)}}
        arms = [traces["many"][4000], traces["few"][400]]
        assert arms[0].debiased < arms[1].debiased
        verdict = judged(arms, traces=traces)
        assert verdict.level == "tie"
        assert set(verdict.tied) | {verdict.best} == {"many", "few"}

    def test_the_choice_of_a_policy_is_no_tie_with_a_clearly_better_arm(self):
        arms = [arm("a", 100, w=1.0, value=9.0, se=0.01, err=0.01), arm("b", 100, w=1.0, value=1.3, se=0.01, err=0.01)]
        traces = {one.name: {100: one} for one in arms}
        verdict = judged(arms, traces=traces, preferred="a")
        assert (verdict.best, verdict.level, verdict.tied) == ("a", "open", ())

    def test_an_arm_that_was_left_alone_can_be_tied(self):
        arms = [arm("a", 900, value=1.0), arm("b", 105, value=1.1), arm("c", 10, value=1.1)]
        verdict = judged(arms, drawn_since=dict.fromkeys("abc", 900))
        assert (verdict.best, verdict.level, verdict.tied) == ("a", "tie", ("b",))

    def test_likeness_is_judged_at_equal_counts(self):
        # At 50 samples the rival is worse by 2; the leader's own loss has risen since.
        leader, rival = arm("a", 900, value=5.0), arm("b", 50, value=4.0)
        traces = {"a": {50: arm("a", 50, value=2.0), 900: leader}, "b": {50: rival}}
        verdict = judged([leader, rival], drawn_since=dict.fromkeys("ab", 900), traces=traces)
        assert (verdict.best, verdict.level, verdict.tied) == ("a", "open", ())

    def test_a_newcomer_does_not_change_what_is_said_of_the_others(self):
        numbers = {"a": (1.0, 1.6), "b": (1.2, 1.5), "c": (2.0, 2.4), "d": (3.0, 3.5)}
        arms = [arm(name, 3000, w=w, value=value, se=0.001) for name, (w, value) in numbers.items()]
        traces = {one.name: {50: arm(one.name, 50, w=one.witness, value=2.0, se=1.0), 3000: one} for one in arms}
        assert recommended(arms, {}, traces) == "b"
        newcomer = arm("new", 50, w=9.0, value=9.5, se=1.0)
        assert recommended([*arms, newcomer], {"new": 60}, {**traces, "new": {50: newcomer}}) == "b"

    def test_arms_without_numbers_are_not_recommended(self):
        assert recommended([arm("nan", 100), arm("b", 90, value=3.0)], {}, {}) == "b"
        assert recommended([], {}, {}) is None
        assert judged([]) == Verdict(None, "open")

    def test_the_policys_own_recommendation_counts_unless_it_is_certainly_worse(self):
        a, b = arm("a", low=1, high=2, value=1.5), arm("b", low=1.8, high=3, value=1.9)
        c = arm("c", low=2.5, high=3, value=2.7)
        assert judged([a, b, c], preferred="b").best == "b"
        assert judged([a, b, c], preferred="c").best == "a"


class TestUniformCost:
    def cost(self, arms, verdict, traces, **kwargs):
        return uniform_cost(arms, verdict, traces, delta=0.05, **kwargs)

    def test_certified_cost_is_read_off_the_traces(self):
        # The leader's upper end meets the rival's last lower end (2.0 at n = 50) when the leader has 200 samples.
        mine = {n: arm("a", n, low=0.0, high=1.0 + 150 / n) for n in (50, 100, 200, 400)}
        theirs = {n: arm("b", n, low=2.0 - 10 / n, high=9.0) for n in (20, 50)}
        arms, traces = [mine[400], theirs[50]], {"a": mine, "b": theirs}
        verdict = Verdict("a", "won", frozenset("b"), frozenset("b"))
        assert self.cost(arms, verdict, traces) == 2 * 200
        assert self.cost(arms, verdict, traces, epsilon=0.8) == 2 * 100

    def test_a_rival_may_be_out_because_of_another_than_the_best(self):
        traces = {
            "a": {n: arm("a", n, low=0.0, high=2.0) for n in (50, 400)},
            "b": {n: arm("b", n, low=0.0, high=9.0) for n in (50, 400)},
            "c": {50: arm("c", 50, low=3.0, high=9.0)},
        }
        arms = [traces["a"][400], traces["b"][400], traces["c"][50]]
        verdict = Verdict("b", "won", frozenset("ac"), frozenset("ac"))
        assert self.cost(arms, verdict, traces) == 3 * 400  # a is out for reasons that its trace does not have
        assert self.cost(arms[1:], Verdict("b", "won", frozenset("c"), frozenset("c")), traces) == 2 * 400
        three = {**traces, "b": {n: arm("b", n, low=0.0, high=2.5) for n in (50, 400)}}
        assert self.cost(arms[1:], Verdict("b", "won", frozenset("c"), frozenset("c")), three) == 2 * 50

    def test_likely_cost_is_the_count_from_which_on_the_comparison_holds(self):
        def trace(name, *values):
            return {n: arm(name, n, w=value, p=value) for n, value in zip((50, 100, 200, 400), values, strict=True)}

        mine, theirs = trace("a", 1.0, 1.0, 1.0, 1.0), trace("b", 9.0, 1.0, 9.0, 9.0)
        verdict = Verdict("a", "likely", frozenset(), frozenset("b"))
        assert self.cost([mine[400], theirs[400]], verdict, {"a": mine, "b": theirs}) == 2 * 200
        # Never by the numbers that were kept: as many as the arm with most has.
        assert self.cost([arm("a", 500), theirs[400]], verdict, {"a": mine, "b": mine}) == 2 * 500

    def test_undecided_cost_is_the_leaders_precision_for_all(self):
        arms = [arm("a", 300), arm("b", 20), arm("c", 10)]
        assert self.cost(arms, Verdict("a", "open"), {}) == 900
        assert self.cost(arms, Verdict(None, "open"), {}) == 0

    def test_it_is_what_a_uniform_run_with_the_same_rule_costs(self):
        samplers = {"a": gaussian(0.0), "b": gaussian(0.8), "c": gaussian(1.2)}
        for stop, epsilon in (("certified", 0.0), ("certified", 0.5), ("likely", 0.0)):
            race = run(samplers, policy="uniform", stop=stop, epsilon=epsilon)
            whole = run(samplers, policy="uniform", epsilon=epsilon)
            assert race.stopped_by == "stop"
            needed = 3 * max(race.num_samples.values())
            assert race.uniform_cost == pytest.approx(needed, rel=0.1)
            if stop == "certified":
                assert whole.uniform_cost == pytest.approx(needed, rel=0.1)


class TestStopping:
    def test_certified_run_ends_early_with_a_winner(self):
        result = run({"a": gaussian(0.0), "b": gaussian(2.0)}, stop="certified")
        assert (result.best, result.status, result.stopped_by) == ("a", "won", "stop")
        assert result.total_samples < 500
        low, high = ({row["arm"]: row[k] for row in result.arms} for k in ("lower", "upper"))
        assert low["b"] > high["a"]

    def test_likely_run_ends_earlier_and_is_not_called_certified(self):
        samplers = {"a": gaussian(0.0), "b": gaussian(0.8)}
        likely, certified = (run(samplers, stop=stop) for stop in ("likely", "certified"))
        assert (likely.best, likely.status) == ("a", "likely")
        assert likely.total_samples < certified.total_samples
        assert "not a certificate" in likely.summary()

    def test_likely_races_at_equal_counts(self):
        result = run({"a": gaussian(0.0), "b": gaussian(0.3)}, stop="likely", budget=300)
        counts = list(result.num_samples.values())
        assert abs(counts[0] - counts[1]) <= 5

    def test_two_equal_arms_are_a_tie(self):
        result = run({"a": gaussian(0.0), "b": gaussian(0.0)}, policy="uniform")
        assert result.status == "tie"
        assert {result.best, *result.tied} == {"a", "b"}
        assert "cannot be told apart" in result.summary()

    def test_epsilon_ends_a_near_tie(self):
        samplers = {"a": gaussian(0.0, 0.3), "b": gaussian(0.05, 0.3)}
        assert run(samplers, stop="certified").status != "won"
        assert run(samplers, stop="certified", epsilon=0.3).status == "won"

    def test_target_needs_the_pessimistic_end(self):
        result = run({"a": gaussian(0.0), "b": gaussian(0.3)}, target=0.5)
        assert (result.status, result.stopped_by) == ("target_met", "target")
        assert next(row["upper"] for row in result.arms if row["arm"] == "a") <= 0.5
        early = run({"a": gaussian(0.0), "b": gaussian(0.3)}, target=0.5, stop="likely")
        assert early.total_samples < result.total_samples
        assert run({"a": gaussian(0.0)}, target=-5.0, budget=200).stopped_by == "budget"

    def test_history_shows_a_verdict_that_was_overturned(self):
        shown = {"early": 0}

        def drifting(num_samples, generator):
            shown["early"] += 1
            centre = -2.0 if shown["early"] <= 12 else 6.0
            return centre + torch.randn(num_samples, 1, generator=generator)

        result = run({"a": drifting, "b": gaussian(0.0)}, policy="uniform")
        statuses = list(zip(result.history["best"], result.history["status"], strict=True))
        assert ("a", "likely") in statuses or ("a", "won") in statuses
        assert result.best == "b"

    def test_certified_winner_is_rarely_wrong(self):
        # delta = 0.2 for all arms together, 60 runs; 0.2 and three standard errors is 0.35, of 60 that is 21.
        wrong = won = 0
        for seed in range(60):
            samplers = {"a": gaussian(0.0), "b": gaussian(1.0)}
            result = run(samplers, metric=MeanMetric(delta=0.2), stop="certified", seed=seed, budget=300)
            won += result.status == "won"
            wrong += result.status == "won" and result.best == "b"
        assert won > 40
        assert wrong <= 21


def test_equal_arms_of_very_different_counts_tie_under_a_biased_plug_in():
    # The plug-in's bias is 40 / n: 0.8 at n = 50 and 0.02 at n = 2000.
    selector = ModelSelector(
        MeanMetric(bias=40.0), {"many": gaussian(1.0), "few": gaussian(1.0)}, budget=5000, samples="features"
    )
    generator = torch.Generator().manual_seed(0)
    for name, pulls in (("many", 400), ("few", 10)):
        for _ in range(pulls):
            selector.observe(name, gaussian(1.0)(5, generator=generator))
    result = selector.result()
    plain = {row["arm"]: row["estimate"] for row in result.arms}
    fair = {row["arm"]: row["debiased"] for row in result.arms}
    assert plain["few"] - plain["many"] > 0.5
    assert abs(fair["few"] - fair["many"]) < 0.45
    assert result.status not in ("won", "likely")
