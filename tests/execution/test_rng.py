"""Seeds and the guard of the global random states."""

import random

import numpy as np
import pytest
import torch

from tm_bandit.execution.rng import preserved_rng, stable_seed


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


def test_seeds_are_the_same_in_every_version():
    assert stable_seed(0, "ema", 3, 0) == stable_seed(0, "ema", 3, 0)
    assert len({stable_seed(*parts) for parts in ((0, "a", 1), (0, "a", 2), (1, "a", 1), (0, "b", 1))}) == 4
    assert all(0 <= stable_seed(n) < 2**63 for n in range(100))
