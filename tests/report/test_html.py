"""The page: complete, self-contained, and drawn by a real browser without an error."""

import base64
import hashlib
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from tests.report.results import make_nan_result, make_result
from tm_bandit import SelectionResult
from tm_bandit.report.chart import PALETTE
from tm_bandit.report.html import render_html
from tm_bandit.report.thumbnails import thumbnails

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture
def saved():
    return make_result()


def test_the_page_loads_nothing_from_anywhere(saved):
    page = render_html(saved)
    assert not re.search(r"(?i)<(link|iframe|object|embed|base)\b", page)
    assert not re.search(r"(?i)(https?:)?//|url\(|@import|\bsrc\s*=|\bhref\s*=", page)
    assert "default-src 'none'" in page
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page, "this script may run, and no other"


def test_the_page_is_small_with_many_arms_and_pulls():
    result = make_result(num_arms=50, pulls=1000, compared=True)
    for row in result.table()[:2]:
        result.add_pictures(row["arm"], thumbnails(torch.rand(12, 3, 64, 64)))  # noise is the worst case of PNG
    assert len(render_html(result).encode()) < 1_000_000


def test_every_number_can_be_sorted_by():
    result = make_result(compared=True)
    page = render_html(result)
    rows = re.findall(r"<tr[^>]*title=.*?</tr>", page, flags=re.DOTALL)
    values = [re.findall(r'data-v="(.*?)"', row) for row in rows]
    assert len(rows) == 4
    assert {len(row) for row in values} == {page.count("<th") - page.count("<thead") - 2}
    assert values[0][-2:] == ["", ""], "the best is not compared with itself"
    assert [float(row[0]) for row in values] == [row["n"] for row in result.table()]
    assert "behind the best by" in page
    assert "<th title" in page
    assert "behind the best by" not in render_html(make_result()), "version 0.1 did not compare"


def test_the_page_escapes_names_and_says_everything(saved):
    page = render_html(saved)
    assert "raw <b>&" not in page
    assert "raw &lt;b&gt;&amp;" in page
    assert "ema/<wbr>cfg1.5" in page, "a long path may be broken at its slashes"
    for text in ("ema/cfg1.5", "likely", "1,234", "600", "ucb", "How the arms compare", "Scores over time"):
        assert text in page


def test_one_arm_is_not_many():
    result = make_result(num_arms=1, pulls=30, settings={"pairing": "common"})
    result.add_pictures(result.best, thumbnails(torch.rand(3, 3, 8, 8)))
    page = render_html(result)
    assert "samples drawn from 1 arm<" in page
    assert "Samples in a column" not in page


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


def browse(tmp_path, page, *flags):
    """Draw a page and return its document, what the browser complains of, and the pixels."""
    file, shot = tmp_path / "report.html", tmp_path / "shot.png"
    file.write_text(page, encoding="utf-8")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}", *flags, "--dump-dom", f"--screenshot={shot}", file.as_uri(),
    ]  # fmt: skip
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert drawn.returncode == 0, drawn.stderr
    return drawn.stdout, drawn.stderr, np.asarray(Image.open(shot).convert("RGB")).astype(int)


# Says how wide the page is, and which of its parts have more than they show.
MEASURE = """
const root = document.documentElement, hidden = [];
for (const part of document.querySelectorAll("section")) if (part.scrollWidth > part.clientWidth + 1)
  hidden.push(part.querySelector("h2").textContent);
root.dataset.widths = root.scrollWidth + " " + innerWidth;
root.dataset.hidden = hidden.join(", ");
"""


def with_script(page, script):
    """Return the page with a further script that its policy lets run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ")
    return page.replace("</body>", f"<script>{script}</script></body>")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize(
    ("width", "num_arms", "dark"), [(1400, 3, False), (900, 30, True), (900, 50, False), (500, 50, True)]
)
def test_a_real_browser_draws_the_page_without_complaint(tmp_path, width, num_arms, dark):
    result = make_result(num_arms=num_arms, pulls=1000, step=0.3, compared=True)
    for row in result.table()[:2]:
        result.add_pictures(row["arm"], thumbnails(torch.rand(12, 3, 64, 64)))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    page = with_script(render_html(result), MEASURE)
    # Two pixels to one, so that a thin line has some of its full colour however much its drawing is scaled down.
    flags = (f"--window-size={width},5200", "--force-device-scale-factor=2", scheme)
    document, log, pixels = browse(tmp_path, page, *flags)
    needed, shown = map(int, re.search(r'data-widths="(.*?)"', document)[1].split())
    assert needed <= shown, "the page itself never scrolls sideways"
    hidden = re.search(r'data-hidden="(.*?)"', document)[1]
    assert hidden == ("" if width > 500 else "How the arms compare, All arms, Scores over time"), (
        "parts may, on a phone"
    )
    # What a page does wrong (a blocked load, an invalid drawing) is logged as a message of its console.
    assert "CONSOLE" not in log
    assert document.count("<svg") == 2
    assert document.count('tabindex="0"') == document.count("<th") - document.count("<thead"), "the script has run"
    background = np.array([0x14, 0x17, 0x1C] if dark else [0xFB, 0xFB, 0xFA])
    foreign = np.abs(pixels - background).max(axis=2) > 2
    assert foreign.mean() > 0.1, "the page is not empty"
    assert not foreign[:, :24].any(), "nothing overflows to the left"
    assert not foreign[:, -24:].any(), "nor to the right"
    palette = ("#56aee6", "#f0a63c", "#35c99b") if dark else PALETTE[:3]
    for colour in palette:
        rgb = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
        # The chip in the table has at most 400 of them: the rest is in the drawings.
        assert (np.abs(pixels - rgb).max(axis=2) <= 2).sum() > 600, colour


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_what_is_printed_fits_on_a_page(tmp_path):
    script = """
    const tall = [...document.querySelectorAll("section")].filter(part => part.querySelector(".chart"));
    root.dataset.heights = tall.map(part => Math.ceil(part.getBoundingClientRect().height)).join(" ");"""
    page = render_html(make_result(num_arms=100, pulls=400, compared=True)).replace("@media print", "@media all")
    document, _, _ = browse(tmp_path, with_script(page, MEASURE + script), "--window-size=718,2000")  # 19 cm
    needed, shown = map(int, re.search(r'data-widths="(.*?)"', document)[1].split())
    assert needed <= shown
    assert 'data-hidden=""' in document
    heights = [int(height) for height in re.search(r'data-heights="(.*?)"', document)[1].split()]
    assert len(heights) == 2
    assert all(100 < height < 960 for height in heights), "25.4 cm: the shorter of the usual papers"


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("num_arms", [3, 50, 60])
def test_the_arms_are_printed_below_the_verdict_on_the_first_page(tmp_path, num_arms):
    script = """
    const chart = document.querySelector(".chart");
    root.dataset.bottom = Math.ceil(chart.closest("section").getBoundingClientRect().bottom);
    root.dataset.row = chart.querySelector(".hit").getBoundingClientRect().height;"""
    page = render_html(make_result(num_arms=num_arms, pulls=400, compared=True)).replace("@media print", "@media all")
    document, _, _ = browse(tmp_path, with_script(page, MEASURE + script), "--window-size=718,2000")
    assert int(re.search(r'data-bottom="(.*?)"', document)[1]) < 960
    assert float(re.search(r'data-row="(.*?)"', document)[1]) > 8, "6 points: small, but it can be read"


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_click_on_a_heading_sorts(tmp_path):
    click = 'const heads = document.querySelectorAll("th"); heads[6].click(); heads[6].click();'
    document, log, _ = browse(tmp_path, with_script(render_html(make_result(compared=True)), click))
    assert "CONSOLE" not in log
    order = re.findall(r'<span class="chip \w+"></span>(.*?)</td>', document)
    names = [name.replace("<wbr>", "") for name in order]
    assert names == ["arm 3", "arm 2", "raw &lt;b&gt;&amp;", "ema/cfg1.5"], "descending, and the unknown last"
