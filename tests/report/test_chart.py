"""The description of the picture: what is in the frame, coloured, named and filled."""

import math
from itertools import pairwise

import numpy as np
import pytest

from tests.report.results import make_nan_result, make_result
from tm_bandit import SelectionResult
from tm_bandit.report.chart import PALETTE, Mark, Series, frame, make_chart, marks_axis, short_names, spread


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


def test_a_bound_does_not_leave_most_of_the_frame_empty():
    low, high = frame([flat("a", 1.0, 0.5, 3.5), flat("b", 2.0, 0.0, 9.0)])
    assert low < 0.5 < 2.0 < high < 3.5
    assert frame([flat("a", 1.0, 0.5, 2.5), flat("b", 2.0, 0.0, 9.0), flat("c", 3.5, 0.0, 9.0, None)])[1] > 3.5


def test_scores_that_are_all_zero_get_an_axis_that_can_be_read():
    low, high = frame([flat("a", 0.0, -math.inf, math.inf), flat("b", 0.0, -math.inf, math.inf)])
    assert low < -0.5 < 0.5 < high


def test_all_scores_of_a_short_run_are_inside():
    result = make_result(num_arms=3, pulls=7)
    result.history["debiased"][0] = 40.0
    chart = make_chart(result)
    assert len(chart.series[0].x) == 5, "four pulls and the end of the run"
    assert chart.low < 5.0 < 40.0 < chart.high


def test_the_note_names_the_ends_of_intervals_only_if_some_are_inside():
    assert "dashed" in make_chart(make_result()).note
    far = make_result()
    for column, end in (("lower", -1e6), ("upper", 1e6)):
        far.history[column] = [end] * len(far.history[column])
    assert make_chart(far).note == ""
    assert "<p>.</p>" not in far.to_html()
    alone = make_chart(make_result(num_arms=1, pulls=30))
    assert "ends of the interval" in alone.note


def test_the_note_says_if_the_first_scores_are_off_the_scale():
    result = make_result()
    assert "off the scale" not in make_chart(result).note
    result.history["debiased"][0] = 1e4
    assert "off the scale" in make_chart(result).note


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
    exact = "x" * 48
    assert short_names([exact, "y"])[exact] == exact
    long = [f"runs/a-very-long-name-of-a-project/epoch={k}-step={100 * k}/last.ckpt" for k in range(9, 12)]
    assert list(short_names(long).values()) == [f"…epoch={k}-step={100 * k}…" for k in range(9, 12)]
    settings = [f"runs/flow/epoch={k}/guidance_scale {k / 4} num_inference_steps 50" for k in (4, 5, 6)]
    assert list(short_names(settings).values()) == [f"…epoch={k}…scale {k / 4}…" for k in (4, 5, 6)]
    kinds = [f"guidance_scale {k} num_inference_steps 8 scheduler {'AB'[k]}MultistepScheduler" for k in (0, 1)]
    assert list(short_names(kinds).values()) == [
        "…scale 0…scheduler AMultistepScheduler",
        "…scale 1…scheduler BMultistepScheduler",
    ]
    assert list(short_names(kinds, 32).values()) == ["…scale 0…AMultistepScheduler", "…scale 1…BMultistepScheduler"]
    lonely = short_names(["z" * 99])["z" * 99]
    assert len(lonely) == 48
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


def test_the_dots_are_the_differences_to_the_best_in_the_order_of_the_table():
    result = make_result(num_arms=50, pulls=1000, compared=True)
    chart = make_chart(result)
    table = result.table()
    assert chart.relative
    assert chart.series[0].mark == Mark(0.0)
    assert [arm.mark.value for arm in chart.series[1:]] == sorted(row["behind"] for row in table[1:])
    assert [arm.mark.lower for arm in chart.series[1:]] == [row["behind_lower"] for row in table[1:]]
    assert "behind the best by (FID)" in chart.marks_unit


def test_without_comparisons_the_dots_are_the_scores():
    result = make_result()
    chart = make_chart(result)
    assert not chart.relative
    assert [arm.mark.value for arm in chart.series] == [row["debiased"] for row in result.table()]
    assert chart.marks_unit == chart.unit


def test_all_dots_are_on_the_axis_and_near_ones_apart():
    marks = [Mark(0.0), Mark(0.05, 0.01, 0.09), Mark(0.1, 0.05, 0.15), Mark(300.0, 290.0, 310.0)]
    axis = marks_axis(marks)
    places = [axis.place(mark.value) for mark in marks]
    assert min(np.diff(places)) > 0.05, "a linear axis would have put three of them on one point"
    assert 0 < places[0] < places[-1] < 1
    assert math.isinf(marks_axis(marks[:3]).knee), "near ones alone need no logarithm"


def test_wide_intervals_leave_the_dots_room_and_those_of_near_ties_are_shown():
    far = marks_axis([Mark(0.0), Mark(1.0, 0.5, 1.5), Mark(2.0, 1.5, 2.5), Mark(2.0, -1e6, math.inf)])
    assert -5 < far.low < far.high < 5
    tie = marks_axis([Mark(0.0), Mark(0.01, -2.0, 2.02), Mark(0.02, -2.0, 2.04)])
    assert tie.low < -2.0 < 2.0 < tie.high


def test_hollow_dots_are_those_that_are_not_decided():
    result = make_result(num_arms=3, compared=True)
    result.arms[1]["verdict"], result.arms[2]["verdict"] = "undecided (few samples)", "worse (certified)"
    chart = make_chart(result)
    assert [arm.mark.solid for arm in chart.series] == [True, False, True]
    assert "hollow" in chart.marks_note


def test_the_details_say_all_about_an_arm():
    arm = make_chart(make_result(compared=True)).series[1]
    for text in ("raw <b>&", "40 samples in 4 pulls", "FID 7.1", "behind the best by 2.1", "0.9", "worse (likely)"):
        assert text in arm.detail
