"""Witnesses of the Inception Score: on the right side whatever they are, from sums that do not grow."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tm_bandit.functional import class_sums, crossfit_marginals, log_inception_score, predict_marginal, score_probs
from tm_bandit.functional.confidence import ScoreMoments
from tm_bandit.functional.crossfit import fold_numbers, num_folds, refit_counts
from tm_bandit.functional.marginal_stream import FOLDS, MarginalSums, add_probs, witness_interval, witness_moments
from tm_bandit.functional.witness_is import (
    PRIOR_STRENGTHS,
    block_index,
    block_sums,
    crossfit_mean,
    moments_of_sums,
    recent_spread,
    uniform_prior,
)


def draw(count, classes=20, sharpness=5.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(count), torch.randint(classes, (count,), generator=generator)] += sharpness
    return logits.softmax(-1)


def folded(probs, folds=FOLDS):
    parts = [probs[fold_numbers(0, len(probs)) % folds == fold] for fold in range(folds)]
    return torch.stack([part.sum(0) for part in parts]), torch.tensor([float(len(part)) for part in parts]).double()


def entropy(probs):
    return torch.special.entr(probs).sum()


def summed(probs, batch=None, priors=None):
    classes = probs.shape[1]
    sums = MarginalSums.empty(classes)
    for part in probs.split(batch or len(probs)):
        sums = add_probs(sums, part, uniform_prior(classes) if priors is None else priors)
    return sums


@settings(max_examples=50, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), classes=st.integers(2, 30), sharpness=st.floats(0, 12))
def test_no_witness_falls_below_the_score(seed, classes, sharpness):
    """For the empirical distribution of any samples, the mean score under any marginal is at least log IS."""
    probs = draw(30, classes, sharpness, seed)
    marginal = draw(1, classes, 1.0, seed + 1)[0]
    exact = float(log_inception_score(class_sums(probs)))
    assert float(score_probs(probs, marginal).mean()) >= exact - 1e-12
    best = probs.mean(0)
    assert float(score_probs(probs, best).mean()) == pytest.approx(exact, abs=1e-12)


def test_the_mean_from_sums_is_the_mean_of_scores():
    probs = draw(203)
    prob, num = folded(probs)
    witnesses = crossfit_marginals(prob, num, uniform_prior(20))
    own = fold_numbers(0, 203)
    scores = torch.cat([score_probs(probs[own == fold], witnesses[fold]) for fold in range(FOLDS)])
    assert float(crossfit_mean(prob, num, entropy(probs), witnesses)) == pytest.approx(float(scores.mean()), rel=1e-12)


def test_a_fold_never_enters_its_own_witness():
    probs = draw(100)
    changed = probs.clone()
    changed[fold_numbers(0, 100) == 3] = draw(10, seed=9, sharpness=12.0)
    before, after = (crossfit_marginals(*folded(rows), uniform_prior(20)) for rows in (probs, changed))
    assert torch.allclose(before[3], after[3], rtol=1e-12)
    assert not torch.allclose(before[4], after[4], rtol=1e-3)


def test_few_samples_are_smoothed_more_than_many():
    prior = uniform_prior(50)
    few, many = (predict_marginal(*folded(draw(count, 50, 8.0)), prior) for count in (20, 5000))
    assert float(few.min()) > 0.2 / 50
    assert float((many - 1 / 50).abs().max()) < 0.3 / 50


def test_a_few_samples_of_one_class_prove_nothing():
    """Ten sure samples of a hundred classes, three of them of one class and two of another, as happens by chance."""
    label = torch.tensor([3, 3, 3, 8, 8, 20, 31, 47, 66, 90])
    probs = torch.full((10, 100), 1e-4, dtype=torch.float64)
    probs[torch.arange(10), label] = 1 - 99e-4
    truth = math.log(100) - float(entropy(probs)) / 10  # if all classes are equally likely
    scores = witness_moments(summed(probs), entropy(probs), uniform_prior(100))
    assert scores.mean > truth - 0.1


def test_a_good_prior_helps():
    """Real samples with the generator's own class frequencies, against uniform smoothing, at few samples."""
    weights = torch.arange(1, 101, dtype=torch.float64).reciprocal()
    label = torch.multinomial(weights, 40, replacement=True, generator=torch.Generator().manual_seed(0))
    probs = torch.full((40, 100), 1e-4, dtype=torch.float64)
    probs[torch.arange(40), label] = 1 - 99e-4
    known = torch.cat([uniform_prior(100), (weights / weights.sum())[None]])
    plain = witness_moments(summed(probs), entropy(probs), uniform_prior(100))
    helped = witness_moments(summed(probs, priors=known), entropy(probs), known)
    assert helped.mean < plain.mean - 0.3


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_batches_do_not_matter(batch):
    probs = draw(333)
    whole, pieces = summed(probs), summed(probs, batch)
    for one, two in zip(whole, pieces, strict=True):
        assert torch.allclose(one, two, rtol=1e-10, atol=1e-12)


def test_a_sample_is_scored_by_the_latest_witness_before_it():
    probs, prior = draw(300), uniform_prior(20)
    expected = []
    for number, row in enumerate(probs):
        fitted = max(refit_counts(number), default=0)
        witness = predict_marginal(*folded(probs[:fitted]), prior) if fitted else prior[0]
        expected.append(score_probs(row[None], witness))
    assert torch.allclose(summed(probs).score_sums, block_sums(torch.cat(expected), 0), rtol=1e-10)


def test_memory_is_constant():
    sizes = {sum(part.numel() for part in summed(draw(count))) for count in (10, 100, 1000)}
    assert len(sizes) == 1


def test_the_spread_at_arrival_is_that_of_present_scores():
    """Within a tenth, although no sample was scored twice."""
    probs = draw(2000, 100, 6.0)
    sums = summed(probs, 50)
    folds = num_folds(2000)
    witnesses = crossfit_marginals(*folded(probs, folds), uniform_prior(100))
    scores = torch.empty(2000, dtype=torch.float64)
    own = fold_numbers(0, 2000) % folds
    for fold in range(folds):
        scores[own == fold] = score_probs(probs[own == fold], witnesses[fold])
    exact, stored = ScoreMoments.of(scores), witness_moments(sums, entropy(probs), uniform_prior(100))
    assert stored.mean == pytest.approx(exact.mean, rel=1e-10)
    assert stored.std == pytest.approx(exact.std, rel=0.1)
    assert stored.count == 2000


def test_predictable_scores_come_from_earlier_samples_only():
    probs = draw(300)
    early, late = summed(probs[:150]), summed(probs)
    for block in range(int(block_index(torch.tensor(149)))):
        assert torch.allclose(early.score_sums[block], late.score_sums[block], rtol=1e-12)
    moments = witness_moments(late, entropy(probs), uniform_prior(20), "predictable")
    assert moments.count == 300 - 10
    assert moments.mean >= float(log_inception_score(class_sums(probs)))


def test_blocks_double():
    assert block_index(torch.tensor([0, 9, 10, 19, 20, 40, 10 * 2**20])).tolist() == [0, 0, 1, 1, 2, 3, 21]
    assert int(block_index(torch.tensor(2**62))) == 39


def test_block_sums_give_the_moments_back():
    scores = torch.rand(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    blocks = block_sums(scores[:123], 0) + block_sums(scores[123:], 123)
    everything = moments_of_sums(blocks.sum(0))
    exact = ScoreMoments.of(scores)
    assert (everything.count, everything.mean) == (500, pytest.approx(exact.mean))
    assert everything.std == pytest.approx(exact.std)
    assert everything.skewness == pytest.approx(exact.skewness, abs=1e-9)
    assert recent_spread(blocks).count == 180 + 160  # the blocks from 160 and from 320 on: more than half
    assert recent_spread(block_sums(scores[:30], 0)).count == 30


class TestInterval:
    def test_it_never_exceeds_what_is_possible(self):
        for count in (0, 1, 2, 5):
            probs = draw(count, 7, 9.0)
            scores = witness_moments(
                summed(probs) if count else MarginalSums.empty(7), entropy(probs), uniform_prior(7)
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
            scores = witness_moments(summed(part, 500), entropy(part), uniform_prior(1000))
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
        scores = witness_moments(summed(probs), entropy(probs), uniform_prior(4))
        plug_in = float(log_inception_score(class_sums(probs)))
        lower, upper = witness_interval(scores, plug_in, 4, 0.025)
        assert 0.0 <= lower <= plug_in + 1e-9
        assert plug_in - 1e-9 <= upper <= math.log(4)


def test_sums_do_not_depend_on_how_many_witnesses_are_fitted_together(monkeypatch):
    probs = draw(203)
    whole = summed(probs)
    assert all(part.untyped_storage().nbytes() == part.nbytes for part in whole)
    for most in (1, 3 * FOLDS * 20 * len(PRIOR_STRENGTHS)):
        monkeypatch.setattr("tm_bandit.functional.marginal_stream._MOST_CANDIDATES", most)
        for one, other in zip(whole, summed(probs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
