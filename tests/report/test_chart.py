"""The description of the picture: what is in the frame, coloured, named and filled."""

import math
from itertools import pairwise

import numpy as np
import pytest

from tests.report.results import make_nan_result, make_result
from tm_bandit import SelectionResult
from tm_bandit.report.chart import PALETTE, Series, frame, make_chart, short_names, spread


def flat(name, value, lower, upper, colour=0):
    return Series(name, name, colour, 0.5, [1.0], [1, 2], [value, value], [lower, lower], [upper, upper])


def test_the_best_arms_are_coloured_in_the_order_of_the_table():
    result = make_result(num_arms=30, pulls=900)
    chart = make_chart(result)
    assert [arm.name for arm in chart.series] == [row["arm"] for row in result.table()]
    assert [arm.colour for arm in chart.series] == [*range(len(PALETTE)), *[None] * 23]
    assert chart.unit == "FID (lower is better)"


def test_a_line_holds_the_scores_of_its_arm_to_the_end_of_the_run():
    result = make_result()
    arm = make_chart(result).series[1]
    at = [i for i, name in enumerate(result.history["arm"]) if name == arm.name]
    assert list(arm.x) == [result.history["samples"][i] for i in at] + [600]
    assert list(arm.centre) == [result.history["debiased"][i] for i in [*at, at[-1]]]
    assert list(arm.lower) == [result.history["lower"][i] for i in [*at, at[-1]]]


def test_long_runs_are_thinned_and_keep_their_last_score():
    chart = make_chart(make_result(num_arms=2, pulls=5000))
    arm = chart.series[0]
    assert len(arm.x) < 410
    assert arm.centre[-2] == arm.centre[-1] == make_result(num_arms=2, pulls=5000).best_score
    assert arm.x[-1] == chart.total == 50_000


@pytest.mark.parametrize("pulls", [4, 60, 777])
def test_the_parts_of_every_stretch_add_up(pulls):
    """The mean over the stretches is an arm's share, and all arms together got all samples of each stretch."""
    chart = make_chart(make_result(pulls=pulls))
    shares = np.array([arm.shares for arm in chart.series])
    np.testing.assert_allclose(shares.sum(0), 1.0)
    np.testing.assert_allclose(shares.mean(1), [arm.share for arm in chart.series])


def test_pulls_of_arms_that_are_gone_leave_a_gap():
    """A callback drops evicted arms from the history: what they drew is nobody's."""
    result = make_result(num_arms=3, pulls=30)
    kept = [i for i, name in enumerate(result.history["arm"]) if name != "arm 2"]
    result.history = {name: [column[i] for i in kept] for name, column in result.history.items()}
    result.arms = [row for row in result.arms if row["arm"] != "arm 2"]
    shares = np.array([arm.shares for arm in make_chart(result).series])
    drawn = sum(row["n"] for row in result.arms)
    assert shares.sum(0).max() <= 1.0 + 1e-9
    assert shares.mean(1).sum() == pytest.approx(drawn / 300)


def test_wide_bounds_do_not_flatten_the_scores():
    low, high = frame([flat("a", 1.0, -1e6, math.inf), flat("b", 2.0, -1e6, 1e6)])
    assert low < 1.0 < 2.0 < high
    assert high - low < 6.0


def test_bounds_that_fit_are_inside():
    low, high = frame([flat("a", 1.0, 0.5, 2.5), flat("b", 2.0, 0.0, 9.0)])
    assert low < 0.5 < 2.5 < high < 3.5


def test_far_arms_leave_the_frame_to_the_contenders_and_are_counted():
    result = make_result(num_arms=30, pulls=900)
    for row in result.arms[20:]:
        far = [i for i, name in enumerate(result.history["arm"]) if name == row["arm"]]
        for i in far:
            result.history["debiased"][i] = row["debiased"] = 1e4
    chart = make_chart(result)
    assert chart.high < 100
    hidden = [arm.name for arm in chart.series if not arm.x]
    assert set(hidden) >= {row["arm"] for row in result.arms[20:]}
    assert f"{len(hidden)} of 30 arms" in chart.note
    assert not any(arm.colour is not None for arm in chart.series if not arm.x)


def test_the_band_starts_when_it_no_longer_fills_the_frame():
    chart = make_chart(make_result())
    best = chart.series[0]
    assert 0 < best.band < len(best.x)
    widths = [upper - lower for lower, upper in zip(best.lower, best.upper, strict=True)]
    third = (chart.high - chart.low) / 3
    assert widths[best.band - 1] > third >= max(widths[best.band :])
    assert "band" in chart.note


def test_a_band_that_stays_wide_is_not_drawn():
    chart = make_chart(make_result(pulls=4))
    assert chart.series[0].band == len(chart.series[0].x)
    assert "band" not in chart.note


@pytest.mark.parametrize("num_arms", [3, 30])
def test_labels_stay_in_the_frame_and_apart(num_arms):
    chart = make_chart(make_result(num_arms=num_arms, pulls=900))
    arms, places = zip(*chart.labels(0.05), strict=True)
    assert {arm.name for arm in arms} == {arm.name for arm in chart.series if arm.colour is not None}
    assert 0 <= places[0] <= places[-1] <= 1
    assert min(np.diff(places)) > 0.05 - 1e-9
    assert [arm.centre[-1] for arm in arms] == sorted(arm.centre[-1] for arm in arms)


def test_spreading_moves_only_what_is_in_the_way():
    generator = np.random.default_rng(0)
    for count in (1, 2, 7, 40):
        for _ in range(20):
            places = np.sort(generator.random(count)).tolist()
            moved = spread(places, 0.04)
            gap = min(0.04, 1 / max(1, count - 1))
            assert min(moved) >= 0
            assert max(moved) <= 1
            assert all(b - a >= gap - 1e-9 for a, b in pairwise(moved))
            if all(b - a >= gap for a, b in pairwise(places)):
                assert moved == places
    assert spread([], 0.1) == []


def test_names_are_cut_only_if_they_are_long_and_can_be_told_apart():
    assert short_names(["ema", "raw"]) == {"ema": "ema", "raw": "raw"}
    exact = "x" * 32
    assert short_names([exact, "y"])[exact] == exact
    long = [f"runs/a-very-long-name-of-a-project/epoch={k}-step={100 * k}/last.ckpt" for k in range(9, 12)]
    assert list(short_names(long).values()) == ["…9-step=900…", "…10-step=1000…", "…11-step=1100…"]
    lonely = short_names(["z" * 99])["z" * 99]
    assert len(lonely) == 32
    assert "…" in lonely


def test_heights_are_parts_of_the_frame():
    chart = make_chart(make_result())
    assert chart.height(chart.low) == 0
    assert chart.height((chart.low + chart.high) / 2) == pytest.approx(0.5)
    assert chart.height(math.inf) == 1


def test_the_optimistic_end_depends_on_the_direction():
    result = make_result()
    chart = make_chart(result)
    assert chart.ends(chart.series[0])[0] == chart.series[0].lower
    result.higher_is_better = True
    chart = make_chart(result)
    assert chart.ends(chart.series[0])[0] == chart.series[0].upper
    assert "higher is better" in chart.unit


def test_titles():
    assert make_chart(make_result()).title == "Best after 600 samples: ema/cfg1.5 (likely)"
    nothing = SelectionResult(None, "unfinished", "OptimisticIS", True, [])
    assert make_chart(nothing).title == "No arm was evaluated"
    assert not make_chart(make_nan_result()).series[0].x
