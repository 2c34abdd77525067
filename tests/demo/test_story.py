"""The demo from end to end, twice the same, and in one thread."""

import json
from pathlib import Path

import pytest

from tests._threads import MEASURABLE, shares_of_other_threads
from tests.report.results import make_result
from tm_bandit.cli import main
from tm_bandit.demo.story import no_cheaper

DEMO = """
from tm_bandit.cli import main
main(["demo", "--fast", "--out", "."])
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The demo in a process that has two threads: the folder of what it wrote, and how busy the second one was."""
    folder = tmp_path_factory.mktemp("elsewhere")
    return folder, shares_of_other_threads(folder, DEMO)[0]


@pytest.mark.skipif(not MEASURABLE, reason="needs Linux")
def test_other_threads_have_nothing_to_do(elsewhere):
    assert elsewhere[1] < 0.02


def test_demo_end_to_end(tmp_path, monkeypatch, capsys, elsewhere):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--fast", "--out", "first"]) == 0

    said = capsys.readouterr().out
    figures = json.loads(Path("first", "figures.json").read_text())
    assert figures["arms"] == len(figures["truth"]) == 8
    assert figures["best_fid"] == min(score["fid"] for score in figures["truth"].values())
    assert figures["chosen_by_fid"] in figures["truth"]
    assert figures["headline"] in Path("first", "table.md").read_text().splitlines()[0]
    assert figures == json.loads((elsewhere[0] / "figures.json").read_text()), "deterministic for a seed"
    first = said[said.rindex("5/5") :].split("\n\n")[1]
    assert first.replace("\n", " ") == figures["headline"], "the summary begins with it"
    assert f"{figures['race_right']} of {figures['repeats']}" in figures["headline"]
    assert figures["uniform"][0]["samples"] <= figures["samples"] < figures["uniform_most"] == 8 * 400
    for name in ("demo.png", "report_race.html", "report_fid.html", "report_is.html", "table.md", "figures.json"):
        assert Path("first", name).stat().st_size > 100
        assert str(Path("first", name)) in said
    assert f"{figures['classifier_accuracy']:.1%}" in said
    assert Path("first", "fid", figures["chosen_by_fid"].split("/")[0] + ".ckpt").exists()


@pytest.mark.parametrize(("pulls", "each"), [(5, 20), (28, 80), (32, 80), (33, 160), (99, 160)])
def test_the_picture_shows_evaluations_that_were_no_cheaper_than_the_race(pulls, each):
    race = make_result(num_arms=4, pulls=pulls)
    assert race.total_samples == 10 * pulls
    scores = {size: [{"arm 2": float(size)}] for size in (10, 20, 40, 80, 160)}
    assert no_cheaper(scores, race) == (each, scores[each])
