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
from tm_bandit.functional.inception_score import ClassSums, class_sums, inception_score, log_inception_score
from tm_bandit.functional.is_bounds import is_bound_authors, is_bound_naive, is_bound_paper
from tm_bandit.functional.moments import Moments, covariance, merge_moments, moments_from_rows

__all__ = [
    "ClassSums",
    "CovarianceNorms",
    "Moments",
    "class_sums",
    "covariance",
    "covariance_norms",
    "fd_bonus_authors",
    "fd_bonus_bounded",
    "fd_bonus_naive",
    "fd_bonus_paper",
    "fd_burn_in",
    "frechet_distance",
    "frechet_distance_low_rank",
    "inception_score",
    "is_bound_authors",
    "is_bound_naive",
    "is_bound_paper",
    "log_inception_score",
    "merge_moments",
    "moments_from_rows",
    "threshold_covariance",
]
