"""The catalogue of mutants belongs to the code as it is."""

import subprocess

import pytest

from tests.mutants import __main__ as script
from tests.mutants.__main__ import NOBODY, ROOT, TABLE, change, changed, known_rows, noticed, numbers
from tests.mutants.catalogue import MUTANTS, Mutant


def test_there_are_enough_and_all_different():
    assert len(MUTANTS) == len(set(MUTANTS)) >= 60


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.old[:30]}")
def test_every_place_is_there_once(mutant):
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new
    assert all((ROOT / place).exists() for place in mutant.tests.split())


def test_a_survivor_is_told_from_a_mutant_that_is_noticed(tmp_path):
    (tmp_path / "doubling.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "test_code.py").write_text("from doubling import double\n\ndef test():\n    assert double(2) == 4\n")
    assert noticed(Mutant("doubling.py", "2 * x", "x + x", "test_code.py"), tmp_path) == ""
    assert noticed(Mutant("doubling.py", "2 * x", "3 * x", "test_code.py"), tmp_path) == "test_code.py::test"
    assert (tmp_path / "doubling.py").read_text() == "def double(x):\n    return 2 * x\n"


def test_the_test_that_noticed_before_is_asked_first_and_the_others_if_it_is_gone(tmp_path):
    (tmp_path / "doubling.py").write_text("def double(x):\n    return 2 * x\n")
    test = "from doubling import double\n\ndef test_one():\n    assert double(2) == 4\n\n"
    (tmp_path / "test_code.py").write_text(f"{test}{test.replace('one', 'two')}")
    mutant = Mutant("doubling.py", "2 * x", "3 * x", "test_code.py")
    assert noticed(mutant, tmp_path, "test_code.py::test_two") == "test_code.py::test_two"
    assert noticed(mutant, tmp_path, "test_code.py::test_gone") == "test_code.py::test_one"


def test_a_test_that_fails_anyway_notices_nothing(tmp_path):
    (tmp_path / "doubling.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "test_code.py").write_text("def test():\n    raise AssertionError\n")
    with pytest.raises(RuntimeError, match=r"test_code\.py::test fails without"):
        noticed(Mutant("doubling.py", "2 * x", "3 * x", "test_code.py"), tmp_path)


def test_a_file_that_cannot_be_collected_notices_nothing(tmp_path):
    (tmp_path / "doubling.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "test_code.py").write_text("import nowhere\n")
    with pytest.raises(RuntimeError, match=r"test_code\.py fails without"):
        noticed(Mutant("doubling.py", "2 * x", "3 * x", "test_code.py"), tmp_path)


def test_which_mutants_are_meant():
    assert numbers([]) == list(range(len(MUTANTS)))
    assert numbers(["3", "5:7"]) == [3, 5, 6]
    assert numbers(["missing"], set(range(1, len(MUTANTS)))) == [0]


def test_those_in_changed_files_are_meant(monkeypatch):
    monkeypatch.setattr(script, "changed", {"abc": {MUTANTS[7].file, "README.md"}}.__getitem__)
    assert numbers(["since", "abc"]) == [at for at, mutant in enumerate(MUTANTS) if mutant.file == MUTANTS[7].file]


def test_a_file_is_changed_if_it_differs_from_the_commit(tmp_path):
    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    for name in ("committed.py", "edited.py", "same.py"):
        (tmp_path / name).write_text("1\n")
    git("add", ".")
    git("commit", "--quiet", "--message", "a")
    first = git("rev-parse", "HEAD").strip()
    (tmp_path / "committed.py").write_text("2\n")
    git("commit", "--quiet", "--all", "--message", "b")
    (tmp_path / "edited.py").write_text("2\n")
    assert changed(first, tmp_path) == {"committed.py", "edited.py"}


def test_the_table_tells_who_noticed_each_mutant():
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ") and line[2].isdigit()]
    found = known_rows()
    assert sorted(found) == list(range(len(MUTANTS))), "run `python -m tests.mutants missing`"
    assert rows == [f"| {at} {change(mutant)}{found[at]} |" for at, mutant in enumerate(MUTANTS)]
    assert NOBODY not in found.values()


def test_rows_are_known_by_their_change_and_not_by_their_number(tmp_path):
    table = tmp_path / "results.md"
    table.write_text(f"| 7 {change(MUTANTS[3])}tests/a.py::test[x] |\n| 3 | gone.py | `a` | `b` | tests/b.py::test |\n")
    assert known_rows(table) == {3: "tests/a.py::test[x]"}
    assert known_rows(tmp_path / "none.md") == {}
