"""The tests mirror the package: whoever changes a module knows where its tests are."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: Rooms in which every module has a test file of its name.
ROOMS = ("cli", "data", "demo", "extractors", "report", "simulation")


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_has_a_test_file_with_its_name(room):
    modules = {path.stem for path in (ROOT / "tm_bandit" / room).glob("*.py")} - {"__init__"}
    tested = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / room).glob("test_*.py")}
    assert modules
    assert modules - tested == set()


def test_the_report_knows_nothing_of_the_engine():
    """Imports point one way: selection may build a result, a result never asks the engine."""
    for path in (ROOT / "tm_bandit" / "report").glob("*.py"):
        imported = [line.split()[1] for line in path.read_text().splitlines() if line.lstrip().startswith("from tm_")]
        allowed = ("tm_bandit.report", "tm_bandit._files", "tm_bandit.errors", "tm_bandit.errors")
        assert all(name.startswith((*allowed, "tm_bandit.__about__")) for name in imported), path.name
