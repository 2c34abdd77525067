"""From ``--arm`` to something that can be pulled."""

import pytest
import torch

from tests.cli.parts import save_checkpoint
from tm_bandit.cli.inputs import check_supply, open_arms, pairing_of, report_unreadable
from tm_bandit.cli.parser import build_parser
from tm_bandit.cli.specs import parse_arms
from tm_bandit.data import SourceSampler
from tm_bandit.errors import InputError


@pytest.fixture
def opened(here, monkeypatch):
    monkeypatch.syspath_prepend(str(here))

    def arms(words):
        arguments = build_parser().parse_args(["select", *words.split()])
        return open_arms(arguments, parse_arms(arguments.arm))

    return arms


def test_every_kind_keeps_the_order_of_the_command_line(opened, here):
    save_checkpoint(here / "run.ckpt", 130.0)
    arms = opened("--arm c=run.ckpt --arm f=cli_parts:good --arm d=near --arm a=far.npy --module cli_parts:Painter")
    assert list(arms) == ["c", "f", "d", "a"]
    assert [type(arm) is SourceSampler for arm in arms.values()] == [False, False, True, True]
    images = arms["c"](4, generator=torch.Generator().manual_seed(0))
    assert images.shape == (4, 3, 8, 8)
    assert 110 < images.double().mean() < 150


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--arm a=nowhere", "nowhere"),
        ("--arm a=cli_parts:number", "function, but got int"),
        ("--arm a=near --module cli_parts:Painter", "leave --module out"),
        ("--arm a=run.ckpt", "--module PACKAGE:CLASS"),
        ("--arm a=none.ckpt --module cli_parts:Painter", "none.ckpt"),
        ("--arm a=run.ckpt --module cli_parts:good", "to be a class"),
        ("--arm a=run.ckpt --module cli_parts:Stranger", "run.ckpt"),
    ],
)
def test_what_cannot_be_opened_is_named(opened, here, words, message):
    save_checkpoint(here / "run.ckpt", 1.0)
    with pytest.raises(InputError, match=message):
        opened(words)


def test_too_small_a_supply_is_refused_or_said(opened, capsys):
    arms = opened("--arm a=few --arm b=near --arm c=cli_parts:good")
    with pytest.raises(InputError, match="at least 31 samples in few, but got 30"):
        check_supply(arms, budget=100, burn_in=31, quiet=False)
    check_supply(arms, budget=100, burn_in=30, quiet=False)
    assert "fewer samples than the budget of 100: a (30);" in capsys.readouterr().err
    check_supply(arms, budget=100, burn_in=30, quiet=True)
    check_supply(opened("--arm a=few --replacement"), budget=100, burn_in=31, quiet=False)
    assert capsys.readouterr().err == ""


def test_what_was_left_out_is_counted(opened, capsys, here):
    (here / "torn").mkdir()
    for path in (here / "few").iterdir():
        (here / "torn" / path.name).write_bytes(path.read_bytes())
    (here / "torn" / "0003.png").write_bytes(b"no picture")
    report_unreadable(opened("--arm a=torn --arm b=few --skip-unreadable"))
    said = capsys.readouterr().err
    assert "arm a: left out 1 unreadable file, the first: " in said
    assert "0003.png" in said
    assert "arm b" not in said


def indices(arm, sizes=(20, 20)):
    """Which rows of its file an arm draws."""
    rows = torch.cat([arm(size, generator=torch.Generator().manual_seed(size)) for size in sizes])
    return [next(i for i in range(len(arm.source)) if torch.equal(arm.source[i], row)) for row in rows]


@pytest.mark.parametrize("more", ["", " --replacement"])
def test_paired_arrays_and_folders_are_drawn_from_in_step(opened, more):
    arms = "--arm a=near.npy --arm b=far.npy --arm c=mid --seed 3"
    one, two, three = map(indices, opened(f"{arms} --paired{more}").values())
    assert one == two == three
    apart = list(map(indices, opened(arms + more).values()))
    assert apart[0] != apart[1] != apart[2]
    assert indices(opened(f"{arms} --paired{more} --seed 4")["a"]) != one


def test_files_are_independent_unless_they_are_paired_and_samplers_share_their_noise(opened):
    def pairing(words):
        arguments = build_parser().parse_args(["select", *words.split()])
        return pairing_of(arguments, opened(words))

    assert pairing("--arm a=near --arm b=far.npy") == "independent"
    assert pairing("--arm a=near --arm b=far.npy --paired") == "common"
    assert pairing("--arm a=cli_parts:good --arm b=cli_parts:bad") == "common"
    assert pairing("--arm a=cli_parts:good --arm b=far.npy") == "common"
    assert pairing("--arm a=cli_parts:good --arm b=cli_parts:bad --pairing independent") == "independent"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--arm a=near --arm b=few", r"as many samples in every arm for --paired.*a \(150\), b \(30\)"),
        ("--arm a=near --arm b=cli_parts:good", "folders and files for --paired, but got arm b"),
        ("--arm a=near --arm b=far --skip-unreadable", "--skip-unreadable"),
        ("--arm a=near --arm b=far --pairing independent", "either --paired or --pairing independent"),
    ],
)
def test_arms_that_cannot_correspond_are_refused(opened, words, message):
    with pytest.raises(InputError, match=message):
        opened(f"{words} --paired")
