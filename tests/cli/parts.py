"""Helpers of the command line's tests."""

from typing import NamedTuple

import torch


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


def pooled(images):
    """What the network above computes, in plain numpy."""
    quarters = images.reshape(len(images), 2, images.shape[1] // 2, 2, images.shape[2] // 2, 3).mean(axis=(2, 4)) / 255
    return quarters.transpose(0, 3, 1, 2).reshape(len(images), -1)


def assert_refused(outcome, *names):
    """Exit code 2 and one line that names what is wrong."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    lines = [line for line in outcome.err.splitlines() if ": error: " in line]
    assert len(lines) == 1
    assert outcome.err.splitlines()[-1] == lines[0]
    for name in names:
        assert name in lines[0]


def save_checkpoint(path, level):
    """What Lightning would have saved of the module ``Painter``."""
    torch.save({"state_dict": {"level": torch.tensor(level)}, "pytorch-lightning_version": "2.5.0"}, path)
