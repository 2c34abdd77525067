"""The papers of the project agree with each other: citation, workflow, hooks, classifiers, history."""

import json
import re
import sys

import pytest
import yaml

from benchmarks.release import HISTORY, numbers, table, write
from tests.release import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it along there
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_workflow_runs_every_python_that_is_promised():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    tested = jobs["newest"]["strategy"]["matrix"]
    promised = [found[1] for item in PROJECT["classifiers"] if (found := re.search(r":: (3\.\d+)$", item))]
    assert tested["python"] == promised
    assert tested["os"] == ["ubuntu-latest", "macos-latest"]
    assert PROJECT["requires-python"] == f">={promised[0]}"
    assert jobs["oldest"]["steps"][1]["with"]["python-version"] == promised[0]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    called = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {command.split()[1] for command in called} <= targets


def test_the_citation_names_paper_and_software():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["authors"] == [{"name": "tm_bandit contributors"}]
    assert citation["license"] == PROJECT["license"]
    (paper,) = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Hu", "Leung", "Farnia"]
    assert (paper["year"], paper["url"]) == (2025, PROJECT["urls"]["Paper"])


def test_forms_and_hooks_can_be_read():
    for form in ("bug", "idea"):
        content = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml").read_text())
        assert {"name", "description", "body"} <= set(content)
        assert all(field["attributes"]["label"] for field in content["body"])
    (hooks,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["id"] for hook in hooks["hooks"]] == ["ruff-check", "ruff-format", "mypy"]


@pytest.mark.parametrize("file", sorted(HISTORY.glob("*.json")), ids=lambda path: path.stem)
def test_each_release_has_numbers_with_a_source(file):
    content = json.loads(file.read_text())
    assert content["version"] == file.stem
    assert f"## [{file.stem}]" in (ROOT / "CHANGELOG.md").read_text()
    assert len({entry["what"] for entry in content["numbers"]}) == len(content["numbers"]) > 0
    for entry in content["numbers"]:
        assert set(entry) == {"what", "value", "from"}
        assert isinstance(entry["value"], float | int)
        assert (ROOT / entry["from"]).exists()


def test_the_numbers_of_a_release_are_those_of_the_results(tmp_path):
    demo = json.loads((ROOT / "benchmarks" / "results" / "demo.json").read_text())
    written = json.loads(write("9.9.9", history=tmp_path).read_text())
    assert written == {"version": "9.9.9", "numbers": numbers()}
    assert written["numbers"][0]["value"] == demo["race_right"] / demo["repeats"]


def test_the_table_of_the_releases_has_one_row_for_what_is_the_same(tmp_path):
    for version, numbers_of in (("0.10.0", {"a": 0.5, "b": 1234}), ("0.9.0", {"a": 0.25})):
        entries = [{"what": what, "value": value, "from": "x"} for what, value in numbers_of.items()]
        (tmp_path / f"{version}.json").write_text(json.dumps({"version": version, "numbers": entries}))
    assert table(tmp_path).splitlines() == [
        "| measured | 0.9.0 | 0.10.0 |",
        "|---|---|---|",
        "| a | 0.25 | 0.5 |",
        "| b | - | 1,234 |",
    ]
    shown = (ROOT / "docs" / "benchmarks.md").read_text()
    assert table() in shown
