"""The chart by matplotlib: every arm is there, nothing overlaps, nothing leaves the picture."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tests.report.results import make_nan_result, make_result
from tm_bandit import SelectionResult
from tm_bandit.report.chart import make_chart


def boxes(figure, texts):
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    return [text.get_window_extent(renderer) for text in texts]


def text_of(axes):
    return [text for text in axes.texts if text.get_text()]


@pytest.mark.parametrize(("num_arms", "step"), [(3, 2.0), (30, 2.0), (30, 0.001)])
def test_every_arm_is_named_inside_the_picture_and_apart(num_arms, step):
    result = make_result(num_arms=num_arms, pulls=900, step=step)
    figure = result.plot()
    top, bottom = figure.axes
    assert [text.get_text() for text in bottom.texts] == [row["arm"] for row in result.table()]
    note, *names = sorted(text_of(top), key=lambda text: not text.get_text().startswith("dashed"))
    assert {text.get_text() for text in names} == {row["arm"] for row in result.table()[:7]}
    frame = figure.bbox.padded(1)
    for texts in (names, bottom.texts):
        shown = sorted(boxes(figure, texts), key=lambda box: box.y0)
        assert all(frame.containsx(box.x1) and frame.containsy(box.y1) and frame.containsy(box.y0) for box in shown)
        assert all(low.y1 <= high.y0 + 2 for low, high in pairwise(shown))
    title = next(text for text in (top.title, top._left_title) if text.get_text())
    heading, hint = boxes(figure, [title, note])
    assert hint.y1 <= heading.y0, "the title and the line below it do not overlap"
    assert frame.containsy(heading.y1)


def test_long_titles_are_wrapped():
    result = make_result()
    result.arms[0]["arm"] = result.best = "checkpoint-" * 15
    figure = result.plot()
    title = figure.axes[0]._left_title
    assert boxes(figure, [title])[0].x1 <= figure.bbox.x1


def test_the_rows_show_where_the_samples_went():
    result = make_result()
    chart = make_chart(result)
    _, bottom = result.plot().axes
    for arm, row in zip(chart.series, bottom.collections, strict=True):
        strengths = row.get_facecolors()[:, 3]
        assert strengths == pytest.approx([0.12 + 0.88 * share for share in arm.shares if share > 0])
    assert [tick.get_text() for tick in bottom.get_yticklabels()] == [f"{arm.share:.1%}" for arm in chart.series]


def test_both_ends_of_every_interval_are_drawn():
    result = make_result(num_arms=3)
    axes = result.plot().axes[0]
    assert len(axes.collections) == 1  # the band of the best arm
    drawn = {tuple(np.round(line.get_ydata(), 9)) for line in axes.lines if line.get_alpha()}
    ends = {tuple(np.round(side, 9)) for arm in make_chart(result).series for side in (arm.lower, arm.upper)}
    assert drawn == ends


def test_odd_results_are_drawn_and_written(tmp_path):
    nothing = SelectionResult(None, "unfinished", "OptimisticIS", True, [])
    for name, result in (("nothing", nothing), ("nan", make_nan_result()), ("many", make_result(80, 160))):
        result.plot(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_more_arms_than_fit_are_counted():
    bottom = make_result(num_arms=80, pulls=160).plot().axes[1]
    assert len(bottom.texts) == 60
    assert "60 of 80 arms" in bottom._left_title.get_text()


def test_names_with_dollars_are_shown_as_they_are():
    result = make_result(num_arms=2)
    for row, name in zip(result.arms, ("$x^$", "cfg $1.5$"), strict=True):
        result.history["arm"] = [name if arm == row["arm"] else arm for arm in result.history["arm"]]
        row["arm"] = name
    result.best = "$x^$"
    figure = result.plot()
    boxes(figure, [])  # mathematics that is none would raise here
    assert {text.get_text() for text in figure.axes[1].texts} == {r"\$x^\$", r"cfg \$1.5\$"}


def test_importing_the_package_loads_neither_lightning_nor_our_plots():
    code = "import sys, tm_bandit; print([m for m in ('lightning', 'tm_bandit.report.plot') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
