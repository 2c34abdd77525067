"""Ctrl-C in the middle of a pull: the pull is booked wholly, and a run that goes on is the uninterrupted one."""

import signal
import threading

import pytest
import torch

from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics
from tm_bandit._interrupt import uninterrupted
from tm_bandit.functional.frechet_stream import FrechetStream
from tm_bandit.selection.report import History

BUDGET = 200


def make():
    reference = ReferenceStatistics(torch.zeros(4).double(), torch.eye(4).double(), 1000)
    metric = OptimisticFID("none", reference=reference, max_rows=40)
    arms = {
        name: lambda num_samples, generator, shift=shift: torch.randn(num_samples, 4, generator=generator) + shift
        for name, shift in (("a", 0.4), ("b", 0.6))
    }
    return ModelSelector(metric, arms, batch_size=5, budget=BUDGET, samples="features")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (OptimisticFID, "update_rows"),
        (OptimisticFID, "losses"),
        (OptimisticFID, "_settle_rows"),
        (FrechetStream, "_fit"),
        (FrechetStream, "_score"),
        (ModelSelector, "_judge"),
        (History, "append"),
    ],
)
def test_a_pull_is_booked_wholly(owner, name, monkeypatch):
    original, calls = getattr(owner, name), []

    def interrupted(*args, **kwargs):
        calls.append(name)
        if len(calls) == 9:
            signal.raise_signal(signal.SIGINT)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)
    selector = make()
    stopped = selector.run(progress=False)
    assert stopped.stopped_by == "interrupt"
    assert 0 < stopped.total_samples < BUDGET
    for arm in selector._arms.values():
        assert arm.stats.num_samples == arm.metric.num_samples
    monkeypatch.undo()
    expected = make().run(progress=False)
    assert selector.run(progress=False).history == expected.history


def fail_while_interrupted():
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("first")


def test_an_error_comes_before_the_interrupt():
    with pytest.raises(KeyboardInterrupt) as caught:
        fail_while_interrupted()
    assert isinstance(caught.value.__context__, ValueError)


def test_other_threads_and_ignored_signals_are_left_alone():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [before, signal.SIG_IGN]
