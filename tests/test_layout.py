"""The tests mirror the package: whoever changes a module knows where its tests are."""

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PACKAGE = ROOT / "tm_bandit"

#: Every room of the package, and the package itself for the modules that are in none.
ROOMS = (".", *sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))


def modules(room):
    """The names of the modules of a room; those with two underscores at the start and the end are Python's."""
    return [path.stem for path in sorted((PACKAGE / room).glob("*.py")) if not path.stem.startswith("__")]


def test_these_are_the_rooms():
    assert set(ROOMS) >= {"bounds", "callbacks", "cli", "data", "demo", "execution", "extractors", "functional"}
    assert set(ROOMS) >= {"metrics", "policies", "report", "samplers", "selection", "simulation"}


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_has_a_test_file_with_its_name(room):
    tested = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / room).glob("test_*.py")}
    assert modules(room)
    assert [name for name in modules(room) if name.lstrip("_") not in tested] == []


def test_no_two_modules_share_a_name():
    counts = Counter(name for room in ROOMS for name in modules(room))
    assert [name for name, count in counts.items() if count > 1] == []


def test_the_report_knows_nothing_of_the_engine():
    """Imports point one way: selection may build a result, a result never calls the engine."""
    for path in (ROOT / "tm_bandit" / "report").glob("*.py"):
        imported = [line.split()[1] for line in path.read_text().splitlines() if line.lstrip().startswith("from tm_")]
        allowed = ("tm_bandit.report", "tm_bandit._arguments", "tm_bandit._files", "tm_bandit.errors")
        assert all(name.startswith((*allowed, "tm_bandit.__about__")) for name in imported), path.name
