"""``NAME=PATH`` and ``package:attribute``."""

import sys

import pytest

from tm_bandit.cli.specs import ArmSpec, import_reference, is_python_reference, parse_arm, parse_arms
from tm_bandit.errors import InputError


def test_the_first_equals_sign_divides():
    assert parse_arm(" a = b=c ") == ArmSpec("a", "b=c")


@pytest.mark.parametrize("text", ["", "a", "=b", "a=", " = "])
def test_both_sides_are_needed(text):
    with pytest.raises(InputError, match="NAME=PATH"):
        parse_arm(text)


def test_two_arms_cannot_share_a_name():
    assert [arm.name for arm in parse_arms(["a=x", "b=x"])] == ["a", "b"]
    with pytest.raises(InputError, match="'a' for x and for y"):
        parse_arms(["a=x", "a=y"])


@pytest.mark.parametrize("text", ["a.npz", "C:/x", "a:b:c", "a b:c", ":c", "a:", "a..b:c", "1a:b", "runs/a:b"])
def test_paths_are_not_taken_for_functions(text):
    assert not is_python_reference(text)
    with pytest.raises(InputError, match=r"package\.module:attribute"):
        import_reference(text)


def test_what_is_named_is_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "specs_parts.py").write_text("class A:\n    b = 3\n")
    (tmp_path / "specs_broken.py").write_text("1 / 0\n")
    assert import_reference("specs_parts:A.b") == 3
    with pytest.raises(InputError, match=r"specs_parts to define A\.c"):
        import_reference("specs_parts:A.c")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        import_reference("specs_broken:a")
    with pytest.raises(InputError, match="ModuleNotFoundError"):
        import_reference("specs_nowhere:a")
    sys.modules.pop("specs_parts")
