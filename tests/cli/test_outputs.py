"""Outputs are checked before any time is spent, and written whole."""

from pathlib import Path

import pytest

from tests.report.results import make_result
from tm_bandit import SelectionResult
from tm_bandit.cli import outputs
from tm_bandit.cli.outputs import Outputs
from tm_bandit.errors import InputError


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_file_and_the_chosen_form_are_written(capsys):
    result = make_result()
    files = Outputs(plot=Path("a.svg"), html=Path("a.html"), json=Path("a.json"), form="markdown")
    files.check([])
    files.write(result)
    assert capsys.readouterr().out == result.to_markdown()
    assert "<svg" in Path("a.svg").read_text()
    assert Path("a.html").read_text() == result.to_html()
    assert SelectionResult.from_json("a.json") == result
    for form, text in (("table", str(result)), ("json", result.to_json(indent=1))):
        Outputs(form=form).write(result)
        assert capsys.readouterr().out == f"{text}\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (Outputs(html=Path("nowhere/a.html")), "create nowhere"),
        (Outputs(html=Path("in.json")), "one of the inputs"),
        (Outputs(html=Path("a.html"), json=Path("./a.html")), "more than once"),
        (Outputs(plot=Path("a.gif")), r"\.png.*a\.gif"),
    ],
)
def test_what_cannot_be_written_is_refused(files, message):
    Path("in.json").write_text("{}")
    with pytest.raises(InputError, match=message):
        files.check(["in.json"])
    assert [path.name for path in Path().iterdir()] == ["in.json"]


def test_a_plot_without_matplotlib_is_refused(monkeypatch):
    monkeypatch.setattr(outputs, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install matplotlib"):
        Outputs(plot=Path("a.png")).check([])
    Outputs(html=Path("a.html")).check([])
