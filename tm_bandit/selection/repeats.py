"""Draws that repeat: a sampler that ignores its seed, and arms that are the same model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tm_bandit.errors import ArmError

#: Draws that two arms must share before they are called the same model; one alone may be a coincidence of few values.
FEWEST_DRAWS = 2

#: A repetition less likely than this is not chance, however many pairs of draws a run has.
COINCIDENCE = 1e-12

#: Nor is one if so many, or fewer, are expected among all draws so far.
_EXPECTED = 1e-4
#: Rows that show from how many they are drawn: a thousand rows of a hundred thousand files have five in common.
_MOST_ROWS = 1_024


def may_come_again(rows: Tensor) -> bool:
    """Whether a working sampler may well draw the same rows again: they are few, or have few values.

    A model that has collapsed draws the same with any seed, and scores of zero or one repeat by chance.

    Args:
        rows: one row per sample.

    Example:
        >>> may_come_again(torch.eye(5)), may_come_again(torch.ones(5, 1))
        (False, True)
    """
    size = len(rows)
    counts = torch.unique(rows, dim=0, return_counts=True)[1].double()
    # The chance of drawing these values again in this order, if there are no others.
    return size < 2 or (len(counts) < size and float((counts * (counts / size).log()).sum().exp()) > COINCIDENCE)


def are_from_few(before: Tensor, draws: int, size: int) -> bool:
    """Whether samples are drawn with replacement from so few that some draws may well be the same.

    Single rows must have come again before. A sampler that ignores its seed, or begins again, repeats whole draws.

    Args:
        before: one row per earlier sample.
        draws: number of draws so far.
        size: samples of a draw.

    Example:
        >>> files = torch.randint(300, (600, 1), generator=torch.Generator().manual_seed(0))
        >>> are_from_few(files, 300, 2), are_from_few(files, 60, 10), are_from_few(torch.arange(600)[:, None], 300, 2)
        (True, False, False)
    """
    counts = torch.unique(before[-_MOST_ROWS:], dim=0, return_counts=True)[1].double()
    alike = float((counts * (counts - 1)).sum() / (counts.sum() * (counts.sum() - 1)).clamp_min(1))
    return draws * (draws - 1) / 2 * alike**size > _EXPECTED


def repeats(earlier: int, draw: int) -> ArmError:
    """Return the error that says that a draw repeats an earlier one."""
    return ArmError(
        f"Expected new samples in every draw, but draw {draw} has the same rows as draw {earlier}; the sampler "
        "ignores its seed. Let it take its noise from the `generator` it is given, or from the global random "
        "state, which is seeded for every draw; it must neither set a seed nor keep samples."
    )


def twins(arms: Mapping[str, Mapping[int, int]]) -> dict[str, str]:
    """Return the arms that are the same model as an arm before them: all draws that both have are equal, bit by bit.

    Values such as passed or failed say nothing: the fingerprints of first draws of such differ from arm to arm.

    Args:
        arms: the fingerprints of each arm's draws, by the index of the draw.

    Example:
        >>> twins({"raw": {0: 5, 1: 6}, "copy": {0: 5, 1: 6}, "ema": {0: 5, 1: 7}})
        {'copy': 'raw'}
    """
    found: dict[str, str] = {}
    originals: dict[str, Mapping[int, int]] = {}
    for name, marks in arms.items():
        for original, theirs in originals.items():
            if _same(marks, theirs):
                found[name] = original
                break
        else:
            originals[name] = marks
    return found


def _same(marks: Mapping[int, int], theirs: Mapping[int, int]) -> bool:
    """Whether there are draws that two arms share, and all of them are equal; the first that differs settles it."""
    common = 0
    for draw, mark in marks.items():
        other = theirs.get(draw)
        if other is not None:
            common += 1
            if other != mark:
                return False
    return common >= FEWEST_DRAWS
