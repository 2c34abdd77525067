"""The random states are restored, and Ctrl-C waits."""

import random
import signal
import threading

import numpy as np
import pytest
import torch

from tm_bandit._guards import preserved_rng, uninterrupted

pytestmark = pytest.mark.usefixtures("listening")


def numbers():
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def draw_and_stop(seed):
    with preserved_rng(seed):
        numbers()
        raise KeyboardInterrupt


@pytest.mark.parametrize("seed", [None, 0, 2**40])
def test_states_come_back_whatever_happens(seed):
    seed_everything(1)
    expected = numbers()
    seed_everything(1)
    with preserved_rng(seed):
        numbers()
    with pytest.raises(KeyboardInterrupt):
        draw_and_stop(seed)
    assert numbers() == expected


def test_a_seed_makes_the_block_repeatable():
    drawn = []
    for outside in (1, 2):
        seed_everything(outside)
        with preserved_rng(7):
            drawn.append(numbers())
    assert drawn[0] == drawn[1]


def test_without_a_seed_the_block_goes_on_from_where_it_was():
    seed_everything(1)
    expected = numbers()
    seed_everything(1)
    with preserved_rng():
        assert numbers() == expected


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


def press_in_a_block_of_a_block(reached):
    with uninterrupted():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
        reached.append("inner")
    reached.append("outer")


def test_a_block_in_a_block_waits_for_the_outer_one_and_leaves_nothing_behind():
    before = signal.getsignal(signal.SIGINT)
    for _ in range(2):
        reached = []
        with pytest.raises(KeyboardInterrupt):
            press_in_a_block_of_a_block(reached)
        assert reached == ["inner"]
        assert signal.getsignal(signal.SIGINT) is before


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
