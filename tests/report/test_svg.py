"""The chart as SVG: the numbers are where they belong, and nothing leaves the picture."""

import math
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from tests.report.results import make_result
from tm_bandit.report.axis import Axis
from tm_bandit.report.chart import Chart, Mark, Series, make_chart
from tm_bandit.report.svg import arms_svg, scores_svg


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
    assert nodes(drawing, "line")[0].get("d").startswith(f"M{(64 + 960 - 22 - 7.5) / 2:.1f},")


def test_what_is_outside_the_frame_is_a_gap_between_lines_to_its_edge():
    scores = [9.0, 5.0, 5.5, 12.0, math.inf, 3.0, 6.0, 6.0]
    arm = Series("a", "a", 0, 1.0, [1.0], [*range(5, 45, 5)], scores, [4] * 8, [9] * 8, band=8)
    drawing = scores_svg(Chart("", "", "FID", False, 40, 4.0, 8.0, [arm]))
    path = nodes(drawing, "line")[0].get("d")
    corners = re.findall(r"([MLH])([\d.]+)(?:,([\d.]+))?", path)
    left, right, top, bottom = 64, 960 - 22 - 7.5, 14, 380 - 44
    at = [
        (letter, (float(x) - left) / (right - left) * 40, y and 4 + (bottom - float(y)) / (bottom - top) * 4)
        for letter, x, y in corners
    ]
    seen = [(letter, round(x, 1), y and round(y, 1)) for letter, x, y in at]
    first = [("M", 10, 8), ("L", 10, 5), ("H", 15, ""), ("L", 15, 5.5), ("H", 20, ""), ("L", 20, 8)]
    assert seen == [*first, ("M", 35, 4), ("L", 35, 6), ("H", 40, "")]
    assert nodes(drawing, "doubtful")[0].get("d") == ""
    assert nodes(drawing, "band")[0].get("points") == ""


@pytest.mark.parametrize("num_arms", [3, 30, 50])
def test_every_arm_is_named_in_full_and_no_two_names_overlap(num_arms):
    chart = make_chart(make_result(num_arms=num_arms, pulls=900, compared=True))
    drawing = arms_svg(chart)
    labels = nodes(drawing, "label")
    assert [label.text for label in labels] == [arm.name for arm in chart.series]
    assert len(nodes(drawing, "track")) == num_arms
    assert len(nodes(drawing, "dot")) + len(nodes(drawing, "ring")) == num_arms
    rows = [float(label.get("y")) for label in labels]
    assert all(low + 15 <= high for low, high in pairwise(rows)), "a line of text is 15 pixels high"
    assert all(float(label.get("x")) - 7.4 * len(label.text) >= 0 for label in labels)
    named = nodes(scores_svg(chart), "label")
    assert len(named) == min(7, num_arms)
    for label in named:
        assert float(label.get("x")) + 7.4 * len(label.text) <= 960  # a wide bold font takes 7.4 pixels per letter
        assert 14 <= float(label.get("y")) <= 380 - 40


def test_dots_and_intervals_are_where_the_numbers_are():
    marks = [Mark(0.0), Mark(2.0, 1.0, 5.0, solid=False), Mark(4.0, -9.0, 99.0), Mark()]
    series = [Series(f"a{at}", "", at, 0.2, [1.0], mark=mark) for at, mark in enumerate(marks)]
    drawing = arms_svg(Chart("", "", "", False, 20, 0, 1, series, Axis(-1.0, 7.0)))
    zero, four = (float(dot.get("cx")) for dot in nodes(drawing, "dot"))
    (two,) = (float(dot.get("cx")) for dot in nodes(drawing, "ring"))
    assert two == pytest.approx((zero + four) / 2, abs=0.1)
    inside, outside = (node for node in nodes(drawing, "span") if node.tag == "line")
    unit = (four - zero) / 4
    ends = [float(inside.get("x1")), float(inside.get("x2"))]
    assert ends == pytest.approx([zero + unit, zero + 5 * unit], abs=0.2)
    ends = [float(outside.get("x1")), float(outside.get("x2"))]
    assert ends == pytest.approx([zero - unit, zero + 7 * unit], abs=0.2), "clipped at the axis"


def test_stronger_cells_have_more_of_the_samples():
    arm = Series("a", "a", 0, 0.4, [0.0, 0.25, 1.0])
    cells = ElementTree.fromstring(arms_svg(Chart("", "", "", False, 30, 0, 1, [arm]))).iter()
    strengths = [float(cell.get("fill-opacity")) for cell in cells if cell.get("fill-opacity")]
    assert strengths == [0.34, 1.0]
