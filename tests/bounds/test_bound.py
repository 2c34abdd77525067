"""What all bounds answer."""

import math
from types import SimpleNamespace

import pytest

from tm_bandit import OptimisticFID, OptimisticIS
from tm_bandit.bounds.bound import NoBound
from tm_bandit.bounds.fd_bounds import FD_BOUNDS, CovarianceNorms, FrechetTuning, fd_bonus_authors, fd_bonus_naive
from tm_bandit.bounds.is_bounds import IS_BOUNDS

VIEW = SimpleNamespace(
    count=50,
    dim=9,
    level=0.05,
    tuning=lambda: FrechetTuning(kappa=1.5),
    plug_in=lambda unbiased: 7.0 + unbiased,
    estimate=lambda: 8.0,
    norms=lambda unbiased: CovarianceNorms(10.0 + unbiased, 4.0, 2.0),
    gaps=lambda: (1.0, 5.0),
)


def test_no_bound_is_greedy_and_knows_no_interval():
    bound = NoBound(min_samples=1)
    assert bound.optimistic(VIEW) == 8.0
    assert bound.pessimistic(VIEW) == math.inf
    assert bound.ends(VIEW) == (-math.inf, math.inf)
    assert bound.centre(VIEW) == (8.0, 0.0)
    assert bound.burn_in_met(VIEW)


def test_a_bonus_is_taken_off_the_plug_in_it_was_made_for():
    bonus = fd_bonus_authors(50, CovarianceNorms(11.0, 4.0, 2.0), 1.0, 5.0, 0.05, 1.5)
    assert FD_BOUNDS["authors"].ends(VIEW) == (8.0 - bonus, 8.0 + bonus)
    assert FD_BOUNDS["authors"].centre(VIEW) == (8.0, 0.0)
    assert FD_BOUNDS["paper"].centre(VIEW) == (7.0, 0.0)
    naive = fd_bonus_naive(50, 9, 1.0, 5.0, 0.05, 1.5)
    assert FD_BOUNDS["naive"].optimistic(VIEW) == 8.0 - naive
    assert FD_BOUNDS["naive"].pessimistic(VIEW) == 8.0 + naive


@pytest.mark.parametrize(("made", "table"), [(OptimisticFID, FD_BOUNDS), (OptimisticIS, IS_BOUNDS)])
def test_each_metric_has_one_table(made, table):
    assert set(made.bound_table) == {"witness", *table}
    ours = made.bound_table["witness"]
    assert (ours.guarantee, ours.standard_errors, ours.min_samples) == ("anytime", True, 10)
    assert not any(bound.standard_errors or bound.keeps_rows for bound in table.values())


def test_tuning_that_a_bound_cannot_use_is_refused():
    assert FrechetTuning(norm_bound=1.0).checked("bounded").norm_bound == 1.0
    with pytest.raises(ValueError, match="norm_bound"):
        FrechetTuning().checked("bounded")
    with pytest.raises(ValueError, match="paper_as_printed"):
        FrechetTuning(as_printed=True).checked("naive")
