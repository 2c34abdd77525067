"""A pull is a value."""

import inspect
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from tm_bandit import ModelSelector, Pull
from tm_bandit.cli.parser import build_parser
from tm_bandit.pull import BATCH_SIZE


def test_pulls_are_equal_by_value_and_can_be_sent():
    pull = Pull("a", draw=2, size=5, seed=7, conditions=("cat", "dog"))
    assert pickle.loads(pickle.dumps(pull)) == pull
    assert replace(pull, draw=3) != pull
    assert len({pull, Pull("a", 2, 5, 7, ("cat", "dog"))}) == 1


def test_a_pull_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Pull("a", 0, 5, 0).seed = 3


def test_there_is_one_default_size():
    default = inspect.signature(ModelSelector).parameters["batch_size"].default
    command = build_parser().parse_args(["select", "--arm", "a=x"])
    assert default == command.batch_size == BATCH_SIZE
