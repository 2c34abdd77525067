"""Tensors in, tensors out: the mathematics, with no metric, no Lightning and no files."""

from tm_bandit.functional.fd_bounds import (
    CovarianceNorms,
    covariance_norms,
    fd_bonus_authors,
    fd_bonus_bounded,
    fd_bonus_naive,
    fd_bonus_paper,
    fd_burn_in,
    threshold_covariance,
)
from tm_bandit.functional.frechet import frechet_distance, frechet_distance_low_rank
from tm_bandit.functional.moments import Moments, covariance, merge_moments, moments_from_rows

__all__ = [
    "CovarianceNorms",
    "Moments",
    "covariance",
    "covariance_norms",
    "fd_bonus_authors",
    "fd_bonus_bounded",
    "fd_bonus_naive",
    "fd_bonus_paper",
    "fd_burn_in",
    "frechet_distance",
    "frechet_distance_low_rank",
    "merge_moments",
    "moments_from_rows",
    "threshold_covariance",
]
