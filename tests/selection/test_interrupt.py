"""Ctrl-C in the middle of a pull: the pull is booked wholly, and a run that goes on is the uninterrupted one."""

import signal
import threading

import pytest
import torch

from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics
from tm_bandit._interrupt import uninterrupted
from tm_bandit.metrics.frechet_stream import FrechetStream
from tm_bandit.metrics.sample_spectrum import SampleSpectrum
from tm_bandit.selection.arm import Arm
from tm_bandit.selection.history import History

BUDGET = 200


@pytest.fixture(autouse=True)
def listening():
    """A shell starts what it puts in the background with an ignored Ctrl-C; here it must count wherever this runs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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
        (OptimisticFID, "_limit_rows"),
        (FrechetStream, "_fit"),
        (FrechetStream, "_score"),
        (ModelSelector, "_judge"),
        (ModelSelector, "_reserve"),
        (Arm, "reserve"),
        (Arm, "tell"),
        (History, "append"),
    ],
)
def test_a_pull_is_booked_wholly(owner, name, monkeypatch):
    original, calls = getattr(owner, name), []

    def interrupted(*args, **kwargs):
        calls.append(name)
        if name == "update_rows":  # before it nothing has changed
            original(*args, **kwargs)
        if len(calls) == 9:
            signal.raise_signal(signal.SIGINT)
        return None if name == "update_rows" else original(*args, **kwargs)

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


def test_a_retired_arm_is_retired_wholly(monkeypatch):
    selector = make()
    selector.run(progress=False, budget=100)
    reset = OptimisticFID.reset

    def interrupted(metric):
        reset(metric)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(OptimisticFID, "reset", interrupted)
    with pytest.raises(KeyboardInterrupt):
        selector.retire_arm("a", "gone")
    assert selector.result().retired == {"a": "gone"}


def test_an_interrupt_while_the_result_is_made_spoils_no_number(monkeypatch):
    selector, again = make(), make()
    count_in, calls = SampleSpectrum._count_in, []

    def interrupted(*args, **kwargs):
        count_in(*args, **kwargs)
        calls.append(args)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)

    for one in (selector, again):
        one.run(progress=False, budget=115)
        for arm in one._arms.values():
            arm.trace.popitem()  # as if the last numbers were not up to date
            arm.metric._row_log = None
    expected = selector.result().to_json()
    monkeypatch.setattr(SampleSpectrum, "_count_in", interrupted)
    with pytest.raises(KeyboardInterrupt):
        again.result()
    assert again.result().to_json() == expected


def test_the_second_press_is_let_through_and_a_new_handler_stays():
    reached = []
    with pytest.raises(KeyboardInterrupt):
        press_twice(reached)
    assert reached == ["once"]
    before = signal.getsignal(signal.SIGINT)
    try:
        with uninterrupted():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def press_twice(reached):
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
        reached.append("once")
        signal.raise_signal(signal.SIGINT)
        reached.append("twice")


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
