"""Helpers of the command line's tests."""

from typing import NamedTuple

import numpy as np
from PIL import Image


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


def pictures(seed, count, shift, size=8):
    noise = np.random.default_rng(seed).normal(120 + shift, 40, (count, size, size, 3))
    return noise.clip(0, 255).astype(np.uint8)


def save_pictures(folder, images):
    folder.mkdir(parents=True)
    for index, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{index:04d}.png")


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
