"""Ctrl-C in the middle of a pull: the pull is booked in full, and a continued run equals an uninterrupted one."""

import signal

import pytest
import torch

from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics
from tm_bandit.metrics.frechet_stream import FrechetStream
from tm_bandit.metrics.sample_spectrum import SampleSpectrum
from tm_bandit.selection.arm import Arm
from tm_bandit.selection.history import History

BUDGET = 200


pytestmark = pytest.mark.usefixtures("listening")


def make():
    reference = ReferenceStatistics(torch.zeros(4).double(), torch.eye(4).double(), 1000)
    metric = OptimisticFID("none", reference=reference, max_rows=40)
    arms = {
        name: lambda num_samples, generator, shift=shift: torch.randn(num_samples, 4, generator=generator) + shift
        for name, shift in (("a", 0.4), ("b", 0.6))
    }
    return ModelSelector(metric, arms, batch_size=5, budget=BUDGET, samples="features", goal="regret", refresh=0.05)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (OptimisticFID, "add_rows"),
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
        if name == "add_rows":  # before it nothing has changed
            original(*args, **kwargs)
        if len(calls) == 9:
            signal.raise_signal(signal.SIGINT)
        return None if name == "add_rows" else original(*args, **kwargs)

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
