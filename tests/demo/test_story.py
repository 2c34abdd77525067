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
    for name in ("demo.png", "report_fid.html", "report_is.html", "table.md", "figures.json"):
        assert Path("first", name).stat().st_size > 100
        assert str(Path("first", name)) in said
    assert f"{figures['classifier_accuracy']:.1%}" in said
    assert Path("first", "fid", figures["chosen_by_fid"].split("/")[0] + ".ckpt").exists()
