"""The witness of the Inception Score from sums that do not grow."""

import math

import pytest
import torch

from tests._make import class_probs, fold_sums, marginal_sums
from tm_bandit.functional import class_sums, crossfit_marginals, log_inception_score, predict_marginal, score_probs
from tm_bandit.functional.confidence import ScoreMoments
from tm_bandit.functional.crossfit import fold_numbers, num_folds, refit_counts
from tm_bandit.functional.witness_is import (
    PRIOR_STRENGTHS,
    block_index,
    block_sums,
    uniform_prior,
)
from tm_bandit.metrics.marginal_stream import FOLDS, MarginalSums, witness_interval, witness_moments


def entropy(probs):
    return torch.special.entr(probs).sum()


def test_a_good_prior_helps():
    """Real samples with the generator's own class frequencies, against uniform smoothing, at few samples."""
    weights = torch.arange(1, 101, dtype=torch.float64).reciprocal()
    label = torch.multinomial(weights, 40, replacement=True, generator=torch.Generator().manual_seed(0))
    probs = torch.full((40, 100), 1e-4, dtype=torch.float64)
    probs[torch.arange(40), label] = 1 - 99e-4
    known = torch.cat([uniform_prior(100), (weights / weights.sum())[None]])
    plain = witness_moments(marginal_sums(probs), entropy(probs), uniform_prior(100))
    helped = witness_moments(marginal_sums(probs, priors=known), entropy(probs), known)
    assert helped.mean < plain.mean - 0.3


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_batches_do_not_matter(batch):
    probs = class_probs(333)
    whole, pieces = marginal_sums(probs), marginal_sums(probs, batch)
    for one, two in zip(whole, pieces, strict=True):
        assert torch.allclose(one, two, rtol=1e-10, atol=1e-12)


def test_a_sample_is_scored_by_the_latest_witness_before_it():
    probs, prior = class_probs(300), uniform_prior(20)
    expected = []
    for number, row in enumerate(probs):
        fitted = max(refit_counts(number), default=0)
        witness = predict_marginal(*fold_sums(probs[:fitted]), prior) if fitted else prior[0]
        expected.append(score_probs(row[None], witness))
    assert torch.allclose(marginal_sums(probs).score_sums, block_sums(torch.cat(expected), 0), rtol=1e-10)


def test_memory_is_constant():
    sizes = {sum(part.numel() for part in marginal_sums(class_probs(count))) for count in (10, 100, 1000)}
    assert len(sizes) == 1


def test_the_spread_at_arrival_is_that_of_present_scores():
    """Within a tenth, although no sample was scored twice."""
    probs = class_probs(2000, 100, 6.0)
    sums = marginal_sums(probs, 50)
    folds = num_folds(2000)
    witnesses = crossfit_marginals(*fold_sums(probs, folds), uniform_prior(100))
    scores = torch.empty(2000, dtype=torch.float64)
    own = fold_numbers(0, 2000) % folds
    for fold in range(folds):
        scores[own == fold] = score_probs(probs[own == fold], witnesses[fold])
    exact, stored = ScoreMoments.of(scores), witness_moments(sums, entropy(probs), uniform_prior(100))
    assert stored.mean == pytest.approx(exact.mean, rel=1e-10)
    assert stored.std == pytest.approx(exact.std, rel=0.1)
    assert stored.count == 2000


def test_predictable_scores_come_from_earlier_samples_only():
    probs = class_probs(300)
    early, late = marginal_sums(probs[:150]), marginal_sums(probs)
    for block in range(int(block_index(torch.tensor(149)))):
        assert torch.allclose(early.score_sums[block], late.score_sums[block], rtol=1e-12)
    moments = witness_moments(late, entropy(probs), uniform_prior(20), "predictable")
    assert moments.count == 300 - 10
    assert moments.mean >= float(log_inception_score(class_sums(probs)))


class TestInterval:
    def test_it_never_exceeds_what_is_possible(self):
        for count in (0, 1, 2, 5):
            probs = class_probs(count, 7, 9.0)
            scores = witness_moments(
                marginal_sums(probs) if count else MarginalSums.empty(7), entropy(probs), uniform_prior(7)
            )
            lower, upper = witness_interval(scores, 0.0, 7, 0.025)
            assert lower == 0.0
            assert 0.0 <= upper <= math.log(7)

    def test_a_thousand_classes(self):
        """Within 1.5 of the truth at 200 samples and 0.15 at 5,000, width included."""
        generator = torch.Generator().manual_seed(0)
        weights = torch.rand(1000, generator=generator, dtype=torch.float64).pow(2)

        def sample(count):
            label = torch.multinomial(weights, count, replacement=True, generator=generator)
            logits = torch.randn(count, 1000, generator=generator, dtype=torch.float64)
            logits[torch.arange(count), label] += 8.5
            return logits.softmax(-1)

        truth = float(log_inception_score(class_sums(sample(40_000))))
        assert 4.0 < truth < 5.0
        probs = sample(5000)
        for count, gap in ((200, 1.5), (5000, 0.15)):
            part = probs[:count]
            scores = witness_moments(marginal_sums(part, 500), entropy(part), uniform_prior(1000))
            plug_in = float(log_inception_score(class_sums(part)))
            lower, upper = witness_interval(scores, plug_in, 1000, 0.025)
            assert lower < truth < upper < truth + gap

    @pytest.mark.parametrize(
        "probs",
        [
            torch.eye(4).double().repeat(10, 1),
            torch.full((40, 4), 0.25).double(),
            torch.eye(4)[:1].double().repeat(40, 1),
        ],
    )
    def test_degenerate_predictions(self, probs):
        """One-hot, flat, and one class only: finite, and the truth (the samples' own score) is inside."""
        scores = witness_moments(marginal_sums(probs), entropy(probs), uniform_prior(4))
        plug_in = float(log_inception_score(class_sums(probs)))
        lower, upper = witness_interval(scores, plug_in, 4, 0.025)
        assert 0.0 <= lower <= plug_in + 1e-9
        assert plug_in - 1e-9 <= upper <= math.log(4)


def test_sums_do_not_depend_on_how_many_witnesses_are_fitted_together(monkeypatch):
    probs = class_probs(203)
    whole = marginal_sums(probs)
    assert all(part.untyped_storage().nbytes() == part.nbytes for part in whole)
    for most in (1, 3 * FOLDS * 20 * len(PRIOR_STRENGTHS)):
        monkeypatch.setattr("tm_bandit.metrics.marginal_stream._MOST_CANDIDATES", most)
        for one, other in zip(whole, marginal_sums(probs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
