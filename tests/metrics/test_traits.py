"""What each metric says about itself."""

from dataclasses import replace

import pytest

from tm_bandit import OptimisticFID, OptimisticIS
from tm_bandit.metrics import Traits

GUARANTEES = {"witness": "anytime", "paper": "finite", "bounded": "finite"}
#: Fewest samples for a certificate.
FROM = {"witness": 200}


@pytest.mark.parametrize("bound", ["witness", "paper", "authors", "bounded", "naive", "none"])
def test_the_frechet_distance(bound):
    traits = OptimisticFID("none", bound=bound, norm_bound=1.0).traits
    guarantee = GUARANTEES.get(bound, "none")
    wanted = Traits(False, "optimistic", guarantee, "moments", bound, bound == "witness", FROM.get(bound, 0))
    assert traits == replace(wanted, interval=bound != "none")
    assert traits.certifies == (bound in GUARANTEES)


@pytest.mark.parametrize("bound", ["witness", "paper", "authors", "naive", "none"])
def test_the_inception_score(bound):
    traits = OptimisticIS("none", bound=bound).traits
    guarantee = GUARANTEES.get(bound, "none")
    wanted = Traits(True, "optimistic", guarantee, "none", bound, bound == "witness", FROM.get(bound, 0))
    assert traits == replace(wanted, interval=bound != "none")


def test_a_metric_of_which_little_is_said_has_standard_errors():
    assert Traits(True, "unbiased", "none", "none").standard_errors
