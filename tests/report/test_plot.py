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


@pytest.mark.parametrize(("num_arms", "step"), [(3, 2.0), (5, 0.01), (30, 0.001), (50, 2.0)])
def test_every_arm_is_named_inside_the_picture_and_apart(num_arms, step):
    result = make_result(num_arms=num_arms, pulls=900, step=step, compared=True)
    figure = result.plot()
    marks, _, scores = figure.axes
    rows = marks.get_yticklabels()
    assert [text.get_text() for text in rows] == [row["arm"] for row in result.table()]
    names = [text for text in text_of(scores) if not text.get_text().startswith("dashed")]
    assert {text.get_text() for text in names} == {row["arm"] for row in result.table()[:7]}
    frame = figure.bbox.padded(1)
    lines = [figure.subfigs[0]._suptitle, marks._left_title, text_of(marks)[-1]]
    found = boxes(figure, [*lines, *names, *rows])
    heading, title, note = found[:3]
    for part in (found[3 : 3 + len(names)], found[3 + len(names) :]):
        shown = sorted(part, key=lambda box: box.y0)
        assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in shown)
        assert all(frame.y0 <= box.y0 and box.y1 <= frame.y1 for box in shown)
        assert all(low.y1 <= high.y0 + 2 for low, high in pairwise(shown))
    assert note.y1 <= title.y0 <= title.y1 <= heading.y0, "title, heading and note do not overprint"
    assert frame.y1 >= heading.y1


def test_long_titles_are_wrapped():
    result = make_result()
    result.arms[0]["arm"] = result.best = "checkpoint-" * 15
    figure = result.plot()
    title = figure.subfigs[0]._suptitle
    assert boxes(figure, [title])[0].x1 <= figure.bbox.x1


def test_the_rows_show_where_the_samples_went():
    result = make_result()
    chart = make_chart(result)
    _, bottom, _ = result.plot().axes
    for arm, row in zip(chart.series, bottom.collections, strict=True):
        strengths = row.get_facecolors()[:, 3]
        assert strengths == pytest.approx([0.12 + 0.88 * share for share in arm.shares if share > 0])
    shares = [text.get_text() for text in bottom.texts if "%" in text.get_text()]
    assert shares == [f"{arm.share:.1%}" for arm in chart.series]


def test_both_ends_of_the_first_two_intervals_are_drawn():
    result = make_result(num_arms=3)
    axes = result.plot().axes[2]
    assert len(axes.collections) == 1  # the band of the best arm
    drawn = {tuple(np.round(line.get_ydata(), 9)) for line in axes.lines if line.get_alpha()}
    ends = {tuple(np.round(side, 9)) for arm in make_chart(result).series[:2] for side in (arm.lower, arm.upper)}
    assert drawn == ends


def test_the_dots_are_where_the_chart_has_them():
    chart = make_chart(result := make_result(num_arms=50, pulls=1000, compared=True))
    axes = result.plot().axes[0]
    dots = {line.get_ydata()[0]: line for line in axes.lines if line.get_marker() == "o"}
    assert [dots[at].get_xdata()[0] for at in range(50)] == [arm.mark.value for arm in chart.series]
    where = axes.transAxes.inverted().transform(axes.transData.transform([(arm.mark.value, 0) for arm in chart.series]))
    assert where[:, 0] == pytest.approx([chart.marks.place(arm.mark.value) for arm in chart.series], abs=1e-6)


def test_a_notebook_shows_the_figure_once():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    figure = make_result().plot()
    assert figure._repr_png_()[:4] == b"\x89PNG"
    assert plt.get_fignums() == before


def test_odd_results_are_drawn_and_written(tmp_path):
    nothing = SelectionResult(None, "unfinished", "OptimisticIS", True, [])
    for name, result in (("nothing", nothing), ("nan", make_nan_result()), ("many", make_result(80, 160))):
        result.plot(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_more_arms_than_fit_are_counted():
    marks, budget, _ = make_result(num_arms=80, pulls=160).plot().axes
    assert len(marks.get_yticklabels()) == 60
    assert any("60 of 80 arms" in text.get_text() for text in budget.texts)


def test_names_with_dollars_are_shown_as_they_are():
    result = make_result(num_arms=2)
    for row, name in zip(result.arms, ("$x^$", "cfg $1.5$"), strict=True):
        result.history["arm"] = [name if arm == row["arm"] else arm for arm in result.history["arm"]]
        row["arm"] = name
    result.best = "$x^$"
    figure = result.plot()
    boxes(figure, [])  # mathematics that is none would raise here
    assert {text.get_text() for text in figure.axes[0].get_yticklabels()} == {r"\$x^\$", r"cfg \$1.5\$"}


def test_importing_the_package_loads_neither_lightning_nor_our_plots():
    code = "import sys, tm_bandit; print([m for m in ('lightning', 'tm_bandit.report.plot') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_samples_are_whole_numbers():
    figure = make_result(num_arms=1, pulls=2).plot()
    _, *panels = figure.axes
    figure.draw_without_rendering()
    for axes in panels:
        assert all(float(tick).is_integer() for tick in axes.get_xticks())
