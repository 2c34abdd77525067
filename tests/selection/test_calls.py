"""An ordinary pull is short enough to be read in one sitting."""

import sys
from collections import Counter
from pathlib import Path

import torch

import tm_bandit
from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics

ROOT = Path(tm_bandit.__file__).parent
DIM = 64


def calls_of(step):
    """The calls of our functions, by file and name."""
    calls = Counter()

    def profile(frame, event, _):
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT):
            calls[file.relative_to(ROOT).as_posix(), frame.f_code.co_name] += 1

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    return calls


def ordinary_pull():
    """All calls of ours, in engine and metric, of a pull after the burn-in at which nothing is refreshed."""
    reference = ReferenceStatistics(torch.zeros(DIM), torch.eye(DIM), 50_000)
    samplers = {
        name: lambda n, generator, shift=shift: shift + torch.randn(n, DIM, generator=generator)
        for name, shift in (("a", 0.0), ("b", 0.2), ("c", 0.3), ("d", 0.4), ("e", 0.5))
    }
    selector = ModelSelector(OptimisticFID("none", reference=reference), samplers, samples="features", stop="budget")
    while selector.spent < 400:
        selector.step()
    while True:
        before = {name: len(arm.trace) for name, arm in selector._arms.items()}
        calls = calls_of(selector.step)
        if before == {name: len(arm.trace) for name, arm in selector._arms.items()}:
            return calls


def test_a_pull_makes_few_calls_in_few_files():
    calls = ordinary_pull()
    listed = "\n".join(f"{count:4d} {file}:{name}" for (file, name), count in sorted(calls.items()))
    assert sum(calls.values()) <= 60, listed
    assert len({file for file, _ in calls}) <= 10, listed
    # Each step of a pull is in the count, and rows are checked once.
    for step in ("select", "choose", "carry_out", "tell", "check_rows", "add_rows", "note_update", "append"):
        assert any(name == step for _, name in calls), step
    assert {count for (_, name), count in calls.items() if name == "check_rows"} == {1}  # of a class and its base
