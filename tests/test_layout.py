"""The tests mirror the package: whoever changes a module knows where its tests are."""

import ast
import re
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


def test_no_two_classes_share_a_name():
    files = [path for room in ROOMS for path in (PACKAGE / room).glob("*.py")]
    parts = [part for path in files for part in ast.parse(path.read_text()).body]
    counts = Counter(part.name for part in parts if isinstance(part, ast.ClassDef))
    assert [name for name, count in counts.items() if count > 1] == []


#: What each room may import, besides the modules that are in none: imports point one way.
LOWER = {
    **dict.fromkeys(("data", "extractors", "functional", "policies", "report"), ""),
    "bounds": "functional",
    "metrics": "bounds extractors functional",
    "execution": "metrics",
    "samplers": "execution",
    "selection": "execution metrics policies report",
    "callbacks": "execution functional metrics report selection",
    "simulation": "execution functional metrics policies selection",
    "cli": "data execution extractors metrics report selection",
    "demo": "callbacks functional report",
}


def imported(path):
    """Yield the modules of this package that a module imports, wherever the line is."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else names
        yield from (name for name in names if name.startswith("tm_bandit."))


@pytest.mark.parametrize("room", ROOMS[1:])
def test_imports_point_one_way(room):
    allowed = {room, *LOWER[room].split()}
    found = {(path.stem, name) for path in (PACKAGE / room).glob("*.py") for name in imported(path)}
    assert [use for use in sorted(found) if (part := use[1].split(".")[1]) in ROOMS and part not in allowed] == []


def test_the_report_is_plain():
    """A result never calls the engine, nor anything that needs it."""
    allowed = (
        "tm_bandit.report",
        "tm_bandit._arguments",
        "tm_bandit._files",
        "tm_bandit.errors",
        "tm_bandit.__about__",
    )
    names = {name for path in (PACKAGE / "report").glob("*.py") for name in imported(path)}
    assert [name for name in sorted(names) if not name.startswith(allowed)] == []


def test_the_engine_knows_no_metric():
    """What a metric can do, it says itself; its parts are its own."""
    asked = re.compile(r"getattr\((self\._?)?metric\b|isinstance\([\w.]+, Optimistic(FID|IS|KID|Mean)|metric\._[a-z]")
    for room in {*ROOMS} - {"metrics"}:
        for path in (PACKAGE / room).glob("*.py"):
            assert not asked.search(path.read_text()), path.name


@pytest.mark.parametrize("room", ROOMS)
def test_every_constant_says_where_it_comes_from(room):
    """There is a line above it, beside it, or above the constants that it stands with."""
    silent = []
    for path in (PACKAGE / room).glob("*.py"):
        lines = path.read_text().splitlines()
        for node in ast.parse("\n".join(lines)).body:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            names = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            numbers = [part for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            if names != names.upper() or not any(type(part.value) in (int, float) for part in numbers):
                continue
            above = next(
                (line for line in lines[node.lineno - 2 :: -1] if not re.match(r"_?[A-Z][A-Z_0-9]+ = ", line)), ""
            )
            if not above.startswith("#") and "  # " not in lines[node.lineno - 1]:
                silent.append(f"{path.stem}: {names}")
    assert silent == []
