"""The chart as SVG: the numbers are where they belong, and nothing leaves the picture."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from tests.report.results import make_result
from tm_bandit.report.chart import Chart, Series, make_chart
from tm_bandit.report.svg import allocation_svg, nice_ticks, scores_svg


def nodes(drawing, name):
    return [node for node in ElementTree.fromstring(drawing).iter() if name in (node.get("class") or "").split()]


def heights(points):
    return sorted({float(y) for y in re.findall(r",([\d.]+)", points)})


def test_the_chart_draws_the_numbers():
    """A constant score is a straight line at its height, and its band is as high as its interval is wide."""
    arm = Series("a", "a", 0, 1.0, [1.0], [10, 20], [5.0, 5.0], [4.4, 4.4], [6.2, 6.2])
    drawing = scores_svg(Chart("", "", "FID", False, 20, 4.0, 8.0, [arm]))
    (middle,) = heights(nodes(drawing, "line")[0].get("d"))
    top, bottom = heights(nodes(drawing, "band")[0].get("points"))
    assert (middle - top) / (bottom - top) == pytest.approx(2 / 3, abs=0.01)
    assert heights(nodes(drawing, "hopeful")[0].get("d")) == [bottom]
    assert heights(nodes(drawing, "doubtful")[0].get("d")) == [top]
    assert nodes(drawing, "line")[0].get("d").startswith(f"M{(64 + 930) / 2:.1f},")


def test_what_is_outside_the_frame_leaves_a_gap():
    arm = Series("a", "a", 0, 1.0, [1.0], [5, 10, 15, 20], [9.0, 5.0, 5.5, 5.5], [4] * 4, [9] * 4, band=4)
    drawing = scores_svg(Chart("", "", "FID", False, 20, 4.0, 8.0, [arm]))
    path = nodes(drawing, "line")[0].get("d")
    assert [path.count(letter) for letter in "MLH"] == [1, 1, 2]
    assert nodes(drawing, "doubtful")[0].get("d") == ""
    assert nodes(drawing, "band")[0].get("points") == ""


@pytest.mark.parametrize("num_arms", [3, 30])
def test_every_arm_is_named_and_has_its_row(num_arms):
    chart = make_chart(make_result(num_arms=num_arms, pulls=900))
    labels = nodes(allocation_svg(chart), "label")
    assert [label.text for label in labels] == [arm.label for arm in chart.series]
    assert len(nodes(allocation_svg(chart), "track")) == num_arms
    named = nodes(scores_svg(chart), "label")
    assert len(named) == min(7, num_arms)
    for label in (*labels, *named):
        assert float(label.get("x")) + 7.8 * len(label.text) <= 960  # a wide bold font takes 7.8 pixels per letter
    assert all(14 <= float(label.get("y")) <= 380 - 40 for label in named)


def test_stronger_cells_have_more_of_the_samples():
    arm = Series("a", "a", 0, 0.4, [0.0, 0.25, 1.0])
    cells = ElementTree.fromstring(allocation_svg(Chart("", "", "", False, 30, 0, 1, [arm]))).iter()
    strengths = [float(cell.get("fill-opacity")) for cell in cells if cell.get("fill-opacity")]
    assert strengths == [0.34, 1.0]


def test_ticks_are_round_and_inside():
    for low, high in [(0.0, 1.0), (-3.2, 17.9), (1e-4, 2e-4), (1e6, 1.5e6)]:
        ticks = nice_ticks(low, high)
        assert 2 <= len(ticks) <= 7
        assert low <= ticks[0] <= ticks[-1] <= high
        steps = np.diff(ticks)
        np.testing.assert_allclose(steps, steps[0], rtol=1e-6)
