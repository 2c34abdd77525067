"""What is reproduced: the bounds of the paper and of its authors' program, apart from our own."""

from tm_bandit.bounds.bound import Bound
from tm_bandit.bounds.fd_bounds import (
    FD_BOUNDS,
    CovarianceNorms,
    covariance_norms,
    fd_bonus_authors,
    fd_bonus_bounded,
    fd_bonus_naive,
    fd_bonus_paper,
    fd_burn_in,
    threshold_covariance,
)
from tm_bandit.bounds.is_bounds import IS_BOUNDS, is_bound_authors, is_bound_naive, is_bound_paper

__all__ = [
    "FD_BOUNDS",
    "IS_BOUNDS",
    "Bound",
    "CovarianceNorms",
    "covariance_norms",
    "fd_bonus_authors",
    "fd_bonus_bounded",
    "fd_bonus_naive",
    "fd_bonus_paper",
    "fd_burn_in",
    "is_bound_authors",
    "is_bound_naive",
    "is_bound_paper",
    "threshold_covariance",
]
