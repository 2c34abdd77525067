"""``tm-bandit report`` and the page: complete, self-contained, and drawn by a real browser without an error."""

import json
import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from tests.cli.parts import assert_refused
from tm_bandit import SelectionResult
from tm_bandit.report.html import render_html
from tm_bandit.report.result import HISTORY_COLUMNS
from tm_bandit.report.svg import Series, interval_chart, nice_ticks, visible_range

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


def make_result(num_arms=4, pulls=60, **changes):
    """A run with known numbers: arm 0 is the best, and it got most of the samples."""
    names = ["ema/cfg1.5", "raw <b>&", *(f"arm {index}" for index in range(2, num_arms))][:num_arms]
    history = {name: [] for name in HISTORY_COLUMNS}
    counts = dict.fromkeys(names, 0)
    rows = {}
    for pull in range(pulls):
        at = pull if pull < num_arms else (0 if pull % 5 else pull % num_arms)
        name = names[at]
        counts[name] += 10
        n = counts[name]
        width = math.inf if n == 10 else 12 / math.sqrt(n)
        value = 5.0 + 2 * at + math.sin(pull) / math.sqrt(n)
        rows[name] = {"estimate": value + 20 / n, "debiased": value, "lower": value - width, "upper": value + width}
        entry = {"samples": 10 * (pull + 1), "arm": name, "n": n, "best": names[0], "status": "open", **rows[name]}
        for column in HISTORY_COLUMNS:
            history[column].append(entry[column])
    total = 10 * pulls
    arms = [
        {
            "arm": name,
            "pulls": n // 10,
            "n": n,
            "share": n / total,
            "verdict": "best" if name == names[0] else "worse (likely)",
        }
        | rows[name]
        for name, n in counts.items()
    ]
    fields = {"uniform_cost": 1234, "budget": 1000, "settings": {"policy": "ucb"}} | changes
    return SelectionResult(names[0], "likely", "OptimisticFID", False, arms, history=history, **fields)


def make_nan_result():
    """A run that ended before anything could be said about its only arm."""
    scores = ("estimate", "debiased", "lower", "upper")
    row = {"arm": "a", "pulls": 1, "n": 5, "share": 1.0, "verdict": "best"} | dict.fromkeys(scores, math.nan)
    history = {"samples": [5], "arm": ["a"], "n": [5], "best": ["a"], "status": ["open"]}
    history |= {name: [math.nan] for name in scores}
    return SelectionResult("a", "budget_exhausted", "OptimisticFID", False, [row], history=history)


@pytest.fixture
def saved(run):
    result = make_result()
    result.to_json("result.json")
    return result


def test_the_table(run, saved):
    outcome = run("report result.json")
    assert outcome.code == 0
    assert outcome.out.strip() == str(saved)


def test_other_forms(run, saved, here):
    assert run("report result.json --markdown").out == saved.to_markdown()
    assert SelectionResult.from_json(run("report --json result.json").out) == saved
    outcome = run("report result.json --markdown --plot p.svg --html p.html")
    assert outcome.code == 0, outcome.err
    assert ElementTree.parse(here / "p.svg").getroot().tag.endswith("svg")
    assert (here / "p.html").read_text() == render_html(saved)


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"version": 1}', b"\xff\xfe\x00", "not json"])
def test_what_is_no_result_is_named(run, here, content):
    if isinstance(content, bytes):
        (here / "bad.json").write_bytes(content)
    elif content is not None:
        (here / "bad.json").write_text(content)
    assert_refused(run("report bad.json --html r.html"), "bad.json")
    assert not (here / "r.html").exists()


@pytest.mark.parametrize("change", [{"status": 3}, {"retired": [1]}, {"history": {}}, {"budget": None}, {"tied": [1]}])
def test_a_damaged_result_is_named(run, here, saved, change):
    content = json.loads((here / "result.json").read_text())
    (here / "bad.json").write_text(json.dumps(content | change))
    assert_refused(run("report bad.json --html r.html"), "bad.json")
    assert not (here / "r.html").exists()


def test_the_result_is_not_overwritten(run, here, saved):
    assert_refused(run("report result.json --html result.json"), "result.json", "inputs")
    assert SelectionResult.from_json("result.json") == saved


def test_the_page_loads_nothing_from_anywhere(saved):
    page = render_html(saved)
    assert not re.search(r"(?i)<(script|link|img|iframe|object|embed|base)\b", page)
    assert not re.search(r"(?i)(https?:)?//|url\(|@import|\bsrc\s*=|\bhref\s*=", page)
    assert "default-src 'none'" in page


def test_the_page_escapes_names_and_says_everything(saved):
    page = render_html(saved)
    assert "raw <b>&" not in page
    assert "raw &lt;b&gt;&amp;" in page
    for text in ("ema/cfg1.5", "likely", "1,234", "600", "ucb", "Bounds over time", "Where the budget went"):
        assert text in page


@pytest.mark.parametrize(
    "result",
    [
        make_result(num_arms=30, pulls=900),
        make_result(retired={"gone": "the file <x> is missing"}, tied=["arm 2"]),
        make_result(pulls=4),
        SelectionResult(None, "unfinished", "OptimisticIS", True, []),
        make_nan_result(),
    ],
    ids=["many arms", "retired and tied", "vacuous bounds", "nothing", "nan"],
)
def test_every_drawing_is_well_formed_and_finite(result):
    page = render_html(result)
    drawings = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(drawings) == 2
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert not re.search(r"\b(nan|inf)\b", drawing)


def test_the_chart_draws_the_numbers():
    """A constant score is a straight line at its height, and its band is as high as its interval is wide."""
    arm = Series("a", "c0", [10, 20], [5.0, 5.0], [4.4, 4.4], [6.2, 6.2])
    root = ElementTree.fromstring(interval_chart([arm], 20, "FID"))
    line = next(node for node in root.iter() if node.get("class") == "line")
    ys = {point.split(",")[1] for point in line.get("points").split()}
    assert len(ys) == 1
    band = next(node for node in root.iter() if node.get("class") == "band")
    heights = sorted({float(point.split(",")[1]) for point in band.get("points").split()})
    top, bottom = heights
    assert (float(ys.pop()) - top) / (bottom - top) == pytest.approx(2 / 3, abs=0.01)


def test_wide_bounds_do_not_flatten_the_scores():
    arms = [Series(str(at), "c0", [1, 2], [at, at], [-1e6, -1e6], [math.inf, 1e6]) for at in (1.0, 2.0)]
    low, high = visible_range(arms)
    assert low < 1.0 < 2.0 < high
    assert high - low < 6.0


def test_ticks_are_round_and_inside():
    for low, high in [(0.0, 1.0), (-3.2, 17.9), (1e-4, 2e-4), (1e6, 1.5e6)]:
        ticks = nice_ticks(low, high)
        assert 2 <= len(ticks) <= 7
        assert low <= ticks[0] <= ticks[-1] <= high
        steps = np.diff(ticks)
        np.testing.assert_allclose(steps, steps[0], rtol=1e-6)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_real_browser_draws_the_page_without_complaint(tmp_path):
    page = tmp_path / "report.html"
    page.write_text(render_html(make_result()), encoding="utf-8")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1100,1400",
    ]  # fmt: skip
    shot = tmp_path / "shot.png"
    drawn = subprocess.run(
        [*command, "--dump-dom", f"--screenshot={shot}", page.as_uri()], capture_output=True, text=True, timeout=240
    )
    assert drawn.returncode == 0, drawn.stderr
    # What a page does wrong (a blocked load, an invalid drawing) is logged as a message of its console.
    assert "CONSOLE" not in drawn.stderr
    assert drawn.stdout.count("<svg") == 2
    assert drawn.stdout.count('class="line"') == 4
    pixels = np.asarray(Image.open(shot).convert("RGB")).reshape(-1, 3)
    # The lines of the chart are there in their colours, and most of the page is background.
    for colour in ((0x00, 0x72, 0xB2), (0xD9, 0x7F, 0x00), (0x00, 0x9E, 0x73)):
        assert (np.abs(pixels.astype(int) - colour).max(axis=1) <= 2).sum() > 200
