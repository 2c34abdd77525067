"""The demo from end to end, twice the same."""

import json
from pathlib import Path

from tm_bandit.demo import main


def test_demo_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    told = []
    for out in ("first", "second"):
        assert main(["--fast", "--out", out]) == 0
        told.append(json.loads(Path(out, "figures.json").read_text()))
    assert told[0] == told[1], "deterministic for a seed"

    said = capsys.readouterr().out
    figures = told[0]
    assert figures["arms"] == len(figures["truth"]) == 8
    assert figures["best_fid"] == min(score["fid"] for score in figures["truth"].values())
    assert figures["chosen_by_fid"] in figures["truth"]
    assert figures["headline"] in Path("first", "table.md").read_text().splitlines()[0]
    first = said[said.rindex("5/5") :].split("\n\n")[1]
    assert first.replace("\n", " ") == figures["headline"], "the summary begins with it"
    assert f"{figures['race_right']} of {figures['repeats']}" in figures["headline"]
    assert figures["uniform"][0]["samples"] <= figures["samples"] < figures["uniform_most"] == 8 * 400
    for name in ("demo.png", "report_race.html", "report_fid.html", "report_is.html", "table.md", "figures.json"):
        assert Path("first", name).stat().st_size > 100
        assert str(Path("first", name)) in said
    assert f"{figures['classifier_accuracy']:.1%}" in said
    assert Path("first", "fid", figures["chosen_by_fid"].split("/")[0] + ".ckpt").exists()
