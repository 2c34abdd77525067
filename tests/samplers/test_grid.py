"""Named combinations of options."""

import numpy as np
import pytest

from tm_bandit.callbacks._arms import check_variants
from tm_bandit.errors import InputError
from tm_bandit.samplers import grid


class Euler:
    """Stands for a scheduler's class."""


def test_every_combination_has_a_name_that_tells_what_differs():
    found = grid(guidance_scale=[1.0, 7.5], scheduler=[Euler, None], steps=[10])
    assert found["guidance_scale 7.5 scheduler Euler"] == {"guidance_scale": 7.5, "scheduler": Euler, "steps": 10}
    assert len(found) == 4
    assert not any("steps" in name for name in found)
    assert check_variants(found) == found
    assert grid(steps=[3]) == {"default": {"steps": 3}}
    assert list(grid(steps=list(np.array([1, 2])))) == ["steps 1", "steps 2"]
    assert list(grid(prompt=["a: b/c", ""])) == ["prompt a- b-c", "prompt empty"]


@pytest.mark.parametrize("values", [[], 3, "ab", {1: 2}])
def test_values_must_be_a_list(values):
    with pytest.raises(InputError, match="Expected `steps` to be a list of values"):
        grid(steps=values)


def test_names_must_differ():
    with pytest.raises(InputError, match="two combinations named 'steps 1'; name them yourself"):
        grid(steps=[1, 1])
