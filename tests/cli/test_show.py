"""``tm-bandit report``: every form of a saved result, and one line about a file that is not one."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from tests.cli.parts import assert_refused
from tests.report.results import make_result
from tm_bandit import SelectionResult
from tm_bandit.report.html import render_html


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


def test_a_saved_result_is_shown_without_waiting_for_torch(here, saved):
    code = (
        "import sys; from tm_bandit.cli import main; main(['report', 'result.json']); assert 'torch' not in sys.modules"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=here)
    assert shown.stdout.strip() == str(saved)
