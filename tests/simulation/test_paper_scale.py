"""Arms of the paper's size have its published numbers."""

import pytest

from tm_bandit.errors import InputError
from tm_bandit.simulation import paper_scale_arms
from tm_bandit.simulation.paper_scale import ARM_SHAPES, DISTANCES, REFERENCE_SHAPE, Shape, spectrum


@pytest.mark.parametrize("shape", [REFERENCE_SHAPE, *ARM_SHAPES])
def test_spectra_have_the_published_numbers(shape):
    values = spectrum(shape)
    got = (values.sum(), values.norm(), values.max())
    assert [float(v) for v in got] == pytest.approx(list(shape), rel=1e-6)
    assert bool((values > 0).all())
    assert bool((values.diff() <= 0).all())


def test_impossible_spectra_are_refused():
    with pytest.raises(InputError, match="power law"):
        spectrum(Shape(trace=100.0, frobenius=1000.0, norm=1.0))


@pytest.mark.parametrize("dataset", list(DISTANCES))
def test_paper_scale_arms_have_the_published_distances(dataset):
    _, arms = paper_scale_arms(dataset)
    assert {arm.name: round(arm.score, 2) for arm in arms} == DISTANCES[dataset]
    with pytest.raises(InputError, match="imagenet"):
        paper_scale_arms("mnist")
