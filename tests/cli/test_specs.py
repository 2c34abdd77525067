"""``NAME=PATH`` and ``package:attribute``."""

import sys

import pytest

from tm_bandit.cli.specs import (
    ArmSpec,
    import_reference,
    is_python_reference,
    match_patterns,
    parse_arm,
    parse_arms,
    parse_costs,
)
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


@pytest.mark.parametrize(
    ("paths", "patterns", "names"),
    [
        (["r/a.ckpt", "r/b.ckpt"], ["r/*.ckpt"], ["a", "b"]),
        (["r/s9.ckpt", "r/s10.ckpt"], ["r/*"], ["s9", "s10"]),
        (["r/s9.ckpt", "r/s10.ckpt"], ["r/s10.ckpt", "r/s9.ckpt", "r/*"], ["s10", "s9"]),
        (["ema/png", "raw/png"], ["*/png"], ["ema", "raw"]),
        (["x/1/last.ckpt", "y/1/last.ckpt", "y/2/last.ckpt"], ["**/*.ckpt"], ["x/1", "y/1", "y/2"]),
        (["a.npy", "a.npz"], ["a.*"], ["a.npy", "a.npz"]),
        (["odd[1].npy"], ["odd[1].npy", "pack.age:one"], ["odd[1]", "one"]),
        (["v0.1", "v0.2"], ["v0.*"], ["v0.1", "v0.2"]),
    ],
)
def test_patterns_name_arms_by_what_tells_them_apart(tmp_path, monkeypatch, paths, patterns, names):
    monkeypatch.chdir(tmp_path)
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert [arm.name for arm in match_patterns(patterns)] == names


def test_a_pattern_that_matches_nothing_and_a_name_that_is_taken_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.npy").touch()
    with pytest.raises(InputError, match=r"paths that match 'b\*', but got none"):
        parse_arms([], ["b*"])
    with pytest.raises(InputError, match="different names, but got 'a'"):
        parse_arms(["a=x"], ["*.npy"])
    with pytest.raises(InputError, match="models to choose from, but got none"):
        parse_arms([], [])


def test_the_last_equals_sign_divides_a_cost():
    assert parse_costs([]) is None
    assert parse_costs(["a=1", "cfg=4=.5"]) == {"a": 1.0, "cfg=4": 0.5}
    for text in ("a", "=1", "a=", "a=much", "a=nan"):
        with pytest.raises(InputError, match="NAME=NUMBER"):
            parse_costs([text])
    with pytest.raises(InputError, match="several for 'a'"):
        parse_costs(["a=1", "a=2"])
