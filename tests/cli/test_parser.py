"""The options, their help, and one line about a wrong one."""

import pytest

from tests.cli.parts import assert_refused
from tm_bandit.cli.parser import build_parser
from tm_bandit.pull import BATCH_SIZE


@pytest.mark.parametrize("command", ["stats", "select", "report"])
def test_help_has_examples(run, command):
    outcome = run(command, "--help")
    assert outcome.code == 0
    assert f"tm-bandit {command}" in outcome.out.split("examples:")[1]


def test_help_lists_every_command(run):
    outcome = run("--help")
    for command in ("stats", "select", "report", "demo"):
        assert f"\n    {command} " in outcome.out


def test_no_command_and_unknown_commands_are_one_line(run):
    assert_refused(run(), "COMMAND")
    assert_refused(run("nonsense"), "nonsense")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("select --arm a=b --budget 0", "at least 1"),
        ("select --arm a=b --batch-size x", "whole number"),
        ("select --arm a=b --burn-in sometimes", "whole number"),
        ("select --budget 5", "--arm"),
        ("stats real -o a.npz --workers -1", "at least 0"),
        ("report a.json --json --markdown", "not allowed with"),
        ("report a.json --plo b.png", "--plo"),  # abbreviations would change their meaning with each new option
    ],
)
def test_a_wrong_option_is_one_line(run, words, name):
    assert_refused(run(words), name)


def test_what_is_left_out_has_the_documented_default():
    arguments = build_parser().parse_args(["select", "--arm", "a=x", "--arm", "b=y"])
    assert (arguments.budget, arguments.batch_size, arguments.burn_in) == (5000, BATCH_SIZE, "auto")
    assert (arguments.goal, arguments.stop) == ("identify", None)
    assert arguments.arm == ["a=x", "b=y"]
    assert build_parser().parse_args(["select", "--arm", "a=x", "--burn-in", "7"]).burn_in == 7
