"""What each metric says of itself."""

import pytest

from tm_bandit import OptimisticFID, OptimisticIS
from tm_bandit.metrics import Traits

GUARANTEES = {"witness": "anytime", "paper": "finite", "bounded": "finite"}


@pytest.mark.parametrize("bound", ["witness", "paper", "authors", "bounded", "naive", "none"])
def test_the_frechet_distance(bound):
    traits = OptimisticFID("none", bound=bound, norm_bound=1.0).traits
    guarantee = GUARANTEES.get(bound, "none")
    assert traits == Traits(False, "optimistic", guarantee, "moments", bound, bound == "witness")
    assert traits.certifies == (bound in GUARANTEES)


@pytest.mark.parametrize("bound", ["witness", "paper", "authors", "naive", "none"])
def test_the_inception_score(bound):
    traits = OptimisticIS("none", bound=bound).traits
    assert traits == Traits(True, "optimistic", GUARANTEES.get(bound, "none"), "none", bound, bound == "witness")


def test_a_metric_of_which_little_is_said_has_standard_errors():
    assert Traits(True, "unbiased", "none", "none").standard_errors
