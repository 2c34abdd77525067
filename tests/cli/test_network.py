"""``--feature``, ``--weights`` and ``--device``."""

import pytest
import torch

from tm_bandit.cli.network import make_extractor
from tm_bandit.cli.parser import build_parser
from tm_bandit.errors import InputError


@pytest.fixture
def make(here, monkeypatch):
    monkeypatch.syspath_prepend(str(here))

    def extractor(words="", default="none"):
        return make_extractor(build_parser().parse_args(["stats", "real", "-o", "a.npz", *words.split()]), default)

    return extractor


def test_functions_modules_and_classes_of_modules(make):
    images = torch.full((2, 3, 8, 8), 51, dtype=torch.uint8)
    for name in ("pool", "Pool"):
        rows = make(f"--feature cli_parts:{name}")(images)
        torch.testing.assert_close(rows, torch.full((2, 12), 0.2, dtype=torch.float64))


def test_the_default_is_used_without_an_option(make):
    assert make(default="none").name == "none"
    assert make("--feature none", default=2048).name == "none"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--feature cli_parts:number", "module or function, but got int"),
        ("--feature cli_parts:NeedsArguments", "without arguments.*TypeError"),
        ("--feature nonsense", "nonsense"),
        ("--feature none --weights nowhere.pth", "nowhere.pth; check --weights"),
        ("--feature none --device nonsense", "device of this machine, but got 'nonsense'"),
    ],
)
def test_what_cannot_be_used_is_named(make, words, message):
    with pytest.raises(InputError, match=message):
        make(words)
