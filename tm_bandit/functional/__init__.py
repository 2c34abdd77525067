"""Tensors in, tensors out: the mathematics, with no metric, no Lightning and no files."""

from tm_bandit.functional.betting import betting_lower_bound
from tm_bandit.functional.confidence import ScoreMoments, deviation, lil_width, mean_interval, mixture_width
from tm_bandit.functional.debias import bias_curve, debiased_log_is, expected_root_trace
from tm_bandit.functional.frechet import frechet_distance
from tm_bandit.functional.frechet_basis import FrechetBasis
from tm_bandit.functional.inception_score import ClassSums, class_sums, inception_score, log_inception_score
from tm_bandit.functional.kernels import GaussianKernel, PairSums, PolynomialKernel, add_pairs, mmd_projection
from tm_bandit.functional.moments import Moments, covariance, merge_moments, moments_from_rows
from tm_bandit.functional.witness_fd import FrechetWitness, damp_witness
from tm_bandit.functional.witness_is import crossfit_marginals, predict_marginal, score_probs, uniform_prior

__all__ = [
    "ClassSums",
    "FrechetBasis",
    "FrechetWitness",
    "GaussianKernel",
    "Moments",
    "PairSums",
    "PolynomialKernel",
    "ScoreMoments",
    "add_pairs",
    "betting_lower_bound",
    "bias_curve",
    "class_sums",
    "covariance",
    "crossfit_marginals",
    "damp_witness",
    "debiased_log_is",
    "deviation",
    "expected_root_trace",
    "frechet_distance",
    "inception_score",
    "lil_width",
    "log_inception_score",
    "mean_interval",
    "merge_moments",
    "mixture_width",
    "mmd_projection",
    "moments_from_rows",
    "predict_marginal",
    "score_probs",
    "uniform_prior",
]
