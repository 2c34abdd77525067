"""The page: complete, self-contained, and drawn by a real browser without an error."""

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from tests.report.results import make_nan_result, make_result
from tm_bandit import SelectionResult
from tm_bandit.report.html import render_html

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture
def saved():
    return make_result()


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
