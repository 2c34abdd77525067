"""What class sums say about the Inception Score, through the metric."""

import math
from functools import partial

import pytest
import torch

from tests._make import all_values, class_probs, fed
from tm_bandit import OptimisticIS
from tm_bandit.errors import InputError
from tm_bandit.metrics import marginal_view
from tm_bandit.simulation import class_bank

draw_probs = partial(class_probs, classes=15, sharpness=4.0)


class TestInception:
    def filled(self, probs, batch=None, **options):
        return fed(OptimisticIS(feature="none", log_scale=True, **options), probs, batch)

    def test_one_look_asks_the_witness_once(self, monkeypatch):
        asked = []
        real = marginal_view.witness_moments
        monkeypatch.setattr(marginal_view, "witness_moments", lambda *given: asked.append(given) or real(*given))
        metric, fresh = OptimisticIS("none"), OptimisticIS("none")
        metric.update_probs(draw_probs(60))
        all_values(metric)
        assert len(asked) == 1
        # What is added changes the answer, real samples (which are another prior) included.
        for add in ({"probs": draw_probs(25, seed=1)}, {"probs": draw_probs(25, seed=2), "real": True}):
            metric.update_probs(**add)
            all_values(metric)
        assert len(asked) == 3
        for add in (draw_probs(60), draw_probs(25, seed=1)):
            fresh.update_probs(add)
        fresh.update_probs(draw_probs(25, seed=2), real=True)
        assert all_values(metric) == all_values(fresh)

    def test_the_interval_encloses_the_truth_and_the_score_is_its_upper_end(self):
        exact = float(self.filled(draw_probs(100_000, seed=3)).estimate())
        metric = self.filled(draw_probs(400))
        lower, upper = metric.bounds()
        assert exact - 0.3 < lower < exact < upper < exact + 0.3
        assert metric.compute() == upper
        assert upper <= math.log(15)
        losses = metric.losses(["optimistic", "pessimistic", "witness", "stderr", "debiased"])
        assert losses["optimistic"] == -float(upper)
        assert losses["pessimistic"] == -float(lower)
        assert losses["optimistic"] < losses["witness"] < losses["pessimistic"]
        assert -losses["debiased"] == pytest.approx(exact, abs=0.1)
        plain = OptimisticIS(feature="none")
        plain.update_probs(draw_probs(400))
        assert float(plain.compute()) == pytest.approx(math.exp(float(upper)))

    def test_nothing_is_promised_below_200_samples(self):
        few, enough = self.filled(draw_probs(199)), self.filled(draw_probs(200))
        assert tuple(map(float, few.bounds())) == pytest.approx((0.0, math.log(15)))
        assert few.compute() < math.log(15)
        assert enough.compute() == enough.bounds().upper
        assert enough.bounds().lower > 0

    def test_batches_do_not_matter(self):
        probs = draw_probs(430)
        whole, pieces = self.filled(probs), self.filled(probs, 7)
        assert float(pieces.compute()) == pytest.approx(float(whole.compute()), rel=1e-10)
        assert float(pieces.debiased().value) == pytest.approx(float(whole.debiased().value), rel=1e-10)

    @pytest.mark.parametrize("options", [{"width": "lil"}, {"fitting": "predictable"}])
    def test_the_safer_options_are_wider(self, options):
        probs = draw_probs(300)
        assert self.filled(probs, **options).compute() > self.filled(probs).compute()

    @pytest.mark.parametrize("options", [{"width": "normal"}, {"fitting": "none"}])
    def test_bad_options_are_refused(self, options):
        with pytest.raises(InputError, match=next(iter(options))):
            OptimisticIS(feature="none", **options)

    def test_real_samples_tighten_it(self):
        weights = torch.arange(1, 16, dtype=torch.float64).reciprocal()
        label = torch.multinomial(weights, 530, replacement=True, generator=torch.Generator().manual_seed(0))
        probs = torch.full((530, 15), 1e-3, dtype=torch.float64)
        probs[torch.arange(530), label] = 1 - 14e-3
        plain, helped = self.filled(probs[:30]), OptimisticIS(feature="none", log_scale=True)
        helped.update_probs(probs[30:], real=True)
        helped.update_probs(probs[:30])
        assert helped.compute() < plain.compute()

    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_few_samples(self, count):
        metric = self.filled(draw_probs(count))
        lower, upper = (float(end) for end in metric.bounds())
        assert 0 <= lower <= upper <= math.log(15)
        assert not math.isnan(float(metric.debiased().value))

    def test_the_debiased_score_keeps_its_error_bar_on_the_plain_scale(self):
        metric = OptimisticIS(feature="none")
        metric.update_probs(draw_probs(300))
        value, stderr = metric.debiased()
        assert float(stderr) == pytest.approx(float(value * self.filled(draw_probs(300)).debiased().stderr))


def equal_classes(count, generator):
    bank = class_bank(range(100), 100, 9.0, 4000, torch.Generator().manual_seed(0))
    return bank[torch.randint(len(bank), (count,), generator=generator)]


def sure_answers(count, generator):
    return torch.eye(10)[torch.randint(10, (count,), generator=generator)]


def sure_answers_of_zipf_classes(count, generator):
    return torch.eye(10)[torch.multinomial(1 / torch.arange(1, 11), count, replacement=True, generator=generator)]


def sure_answers_of_mostly_one_class(count, generator):
    return torch.eye(10)[(torch.randint(45, (count,), generator=generator) - 35).clamp_min(0)]


def sure_answers_of_a_thousand_classes(count, generator):
    return torch.eye(1000)[torch.randint(1000, (count,), generator=generator)]


@pytest.mark.parametrize(
    ("sample", "counts", "most"),
    [
        (equal_classes, (20, 120, 500), 1.0),
        (sure_answers, (20, 120, 500), 1.0),
        (sure_answers_of_zipf_classes, (20, 120, 500), 1.3),
        (sure_answers_of_mostly_one_class, (10, 20), 2.0),
        (sure_answers_of_a_thousand_classes, (120, 500), 1.2),
    ],
)
def test_the_standard_error_of_the_score_is_that_of_many_runs(sample, counts, most):
    """Spread of 100 runs, good to 7 %, over what the runs say it is.

    The error of the witness alone would be up to 50 times too small, and without a class that was not seen up to three
    times (mostly one class, a thousand classes).
    """
    generator = torch.Generator().manual_seed(0)
    for count in counts:
        found = []
        for _ in range(100):
            metric = OptimisticIS("none", log_scale=True)
            metric.update_probs(sample(count, generator))
            found.append(tuple(map(float, metric.debiased())))
        values, errors = torch.tensor(found, dtype=torch.float64).T
        assert 0.3 < float(values.std() / errors.mean()) < most


def test_one_class_so_far_is_no_certainty():
    metric = OptimisticIS("none", log_scale=True)
    metric.update_probs(torch.eye(5)[[2] * 10])
    value, error = map(float, metric.debiased())
    assert value == pytest.approx(0.0, abs=1e-9)
    assert 0.1 < error < 1.0


@pytest.mark.parametrize("count", [20, 100, 500])
def test_the_debiased_score_is_within_its_own_interval_and_the_number_of_classes(count):
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        metric = OptimisticIS("none")
        metric.update_probs(sure_answers(count, generator))
        lower, upper = map(float, metric.bounds())
        assert lower <= float(metric.debiased().value) <= upper <= 10.0 + 1e-12
