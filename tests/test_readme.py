"""The README holds: its code runs as it stands, its links lead somewhere, its figures are those of the result files."""

import re
import shlex
from pathlib import Path

import pytest

from tm_bandit.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_code_runs_from_top_to_bottom(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "readme"}
    python = blocks("python")
    assert len(python) == 3, "the three uses"
    assert all(len([line for line in code.splitlines() if line.strip()]) <= 12 for code in python)
    for code in python:
        exec(compile(code, "README.md", "exec"), namespace)
    assert Path(namespace["bandit"].best_model_path).exists()
    assert namespace["result"].best in namespace["samplers"]

    capsys.readouterr()
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("tm-bandit")]
    assert len(commands) == 2
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command
    assert "guidance 2.0" in capsys.readouterr().out
    assert Path("report.html").stat().st_size > 1000


def test_readme_is_short_and_names_the_two_commands():
    assert len(README.split()) <= 1000
    assert {"make demo", "make test"} <= set(re.findall(r"^make \w+", README, flags=re.MULTILINE))


def test_tables_are_read_by_section():
    from benchmarks.readme import table_of

    text = "## one\n\n| a | b |\n|---|---|\n| 1 | x y |\n| 2 | z |\n\n## two\n\n| a |\n|---|\n| 3 |\n"
    assert table_of(text, "one") == [{"a": "1", "b": "x y"}, {"a": "2", "b": "z"}]
    assert table_of(text, "two") == [{"a": "3"}]
    assert table_of(text, "three") == []


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text()
    for text in (README, (ROOT / "CONTRIBUTING.md").read_text()):
        for target in set(re.findall(r"(?:^|`)make ([a-z-]+)", text, flags=re.MULTILINE)):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text()
    anchors = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_figures_are_those_of_the_result_files():
    from benchmarks.readme import PAGES, render

    for page in PAGES:
        text = page.read_text()
        assert ":begin -->" in text
        assert render(text) == text, "run `python -m benchmarks.readme`"
