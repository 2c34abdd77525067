"""Near-unbiased estimates: the bias in closed form, against simulation."""

import math

import pytest
import torch

from tm_bandit.functional import bias_curve, debiased_log_is, expected_root_trace
from tm_bandit.functional.debias import (
    RootTrace,
    merge_biases,
    second_order_noise,
    slope_ratio,
    slope_weight,
    spectral_bias,
)


def spectrum(dim, decay):
    values = torch.arange(1, dim + 1, dtype=torch.float64) ** -decay
    return values / values.sqrt().sum() ** 2 * 2500


def simulated(values, count, repeats, seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(repeats):
        rows = torch.randn(count, len(values), generator=generator, dtype=torch.float64) * values.sqrt()
        found.append(torch.linalg.svdvals((rows - rows.mean(0)) / math.sqrt(count)).sum())
    found = torch.stack(found)
    return float(found.mean()), float(found.std() / math.sqrt(repeats))


@pytest.mark.parametrize(("dim", "decay"), [(128, 0.0), (128, 1.5), (24, 2.0)])
@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0, 2.0, 8.0])
def test_the_closed_form_equals_simulation(dim, decay, ratio):
    """Within four standard errors of the simulation plus half a percent; no random number on our side."""
    values = spectrum(dim, decay)
    count = int(ratio * dim)
    mean, error = simulated(values, count, repeats=60 if count < 200 else 20)
    assert expected_root_trace(values, count) == pytest.approx(mean, abs=4 * error + 0.005 * mean)


def test_it_is_exact_in_the_limits():
    values = spectrum(30, 1.0)
    assert expected_root_trace(values, 10_000_000) == pytest.approx(float(values.sqrt().sum()), rel=1e-5)
    assert expected_root_trace(values, 1) == 0.0
    assert expected_root_trace(torch.zeros(5), 10) == 0.0


@pytest.mark.parametrize("scale", [1e-16, 1.0, 1e16])
def test_it_scales(scale):
    values = spectrum(40, 1.0)
    expected = expected_root_trace(values, 25) * math.sqrt(scale)
    assert expected_root_trace(values * scale, 25) == pytest.approx(expected, rel=1e-9)


def test_axes_without_variance_do_not_matter():
    values = spectrum(40, 1.0)
    padded = torch.cat([values, torch.zeros(60, dtype=torch.float64)])
    assert expected_root_trace(padded, 30) == pytest.approx(expected_root_trace(values, 30), rel=1e-12)


def test_the_bias_falls_to_zero_and_never_below():
    values = torch.linspace(2, 0.1, 50)
    curve = [bias_curve(values, n) for n in (2, 5, 10, 50, 200, 1000, 100_000)]
    assert curve == sorted(curve, reverse=True)
    assert curve[0] < 2 * float(values.sum())
    assert 0 <= curve[-1] < 0.01 * curve[0]


def test_the_plug_in_minus_the_curve_is_zero_for_the_reference_itself():
    """d = 64, from eight rows on; the plug-in alone is off by up to 84."""
    values = spectrum(64, 0.8).sqrt()
    for count in (8, 16, 64, 256):
        generator = torch.Generator().manual_seed(count)
        errors = []
        for _ in range(40):
            rows = torch.randn(count, 64, generator=generator, dtype=torch.float64) * values.sqrt()
            centred = rows - rows.mean(0)
            cross = torch.linalg.svdvals(centred * values.sqrt() / math.sqrt(count)).sum()
            plug_in = rows.mean(0).square().sum() + centred.square().sum() / count + values.sum() - 2 * cross
            errors.append(float(plug_in) - bias_curve(values, count))
        errors = torch.tensor(errors)
        assert abs(float(errors.mean())) < 4 * float(errors.std()) / math.sqrt(40) + 0.3


def plug_ins(count, own, reference, runs, seed):
    """Plug-in distances of independent runs of centred Gaussian rows with axis variances ``own``."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(runs, count, len(own), generator=generator, dtype=torch.float64) * own.sqrt()
    mean = rows.mean(1, keepdim=True)
    cross = torch.linalg.svdvals((rows - mean) * reference.sqrt() / math.sqrt(count)).sum(-1)
    trace = (rows - mean).square().sum((1, 2)) / count
    return mean.square().sum((1, 2)) + trace + reference.sum() - 2 * cross


def test_the_bias_of_another_spectrum_than_the_reference():
    """A white generator against a steep reference, whose own curve is off by many standard errors."""
    reference = spectrum(64, 0.8)
    own = torch.full((64,), float(reference.mean()), dtype=torch.float64)
    truth = float((own.sqrt() - reference.sqrt()).square().sum())
    for count in (16, 64, 256):
        found = plug_ins(count, own, reference, 200, seed=count) - truth
        error = 4 * float(found.std()) / math.sqrt(200) + 0.005 * float(found.mean())
        assert float(found.mean()) == pytest.approx(spectral_bias(own * reference, count), abs=error)
        assert abs(float(found.mean()) - bias_curve(reference, count)) > 2 * error


def test_the_noise_of_the_reference_itself():
    """Standard deviation over 2,000 runs, whose own relative error is below two per cent; second order, so large n."""
    reference = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.1], dtype=torch.float64)
    found = plug_ins(400, reference, reference, 2000, seed=0)
    assert float(found.std()) * 400 == pytest.approx(second_order_noise(reference), rel=0.08)
    assert second_order_noise(torch.zeros(3)) == 0.0


def test_a_smaller_own_bias_counts_at_once_and_a_larger_one_from_the_dimension_on():
    assert [merge_biases(5.0, 3.0, n, 20) for n in (1, 10, 20, 1000)] == [3.0] * 4
    assert [merge_biases(3.0, 5.0, n, 20) for n in (1, 10, 15, 20, 1000)] == pytest.approx([3, 3, 4, 5, 5])


def test_the_slope_ratio_of_the_reference_itself_is_one():
    values = torch.linspace(2, 0.1, 50)
    curve = {n: RootTrace(float(values.sum()) - bias_curve(values, n) / 2, n) for n in (60, 100, 160)}

    def bias(count):
        return bias_curve(values, count)

    assert slope_ratio(curve[160], [curve[100], curve[60]], bias) == pytest.approx(1.0)
    assert slope_ratio(curve[160], [curve[160]], bias) == 1.0  # no decay to measure


def test_the_slope_counts_late_only():
    assert [slope_weight(n, 10) for n in (5, 20, 30, 40, 1000)] == [0, 0, 0.5, 1, 1]


class TestLogInceptionScore:
    def folds(self, probs, count=10):
        prob = torch.stack([probs[fold::count].sum(0) for fold in range(count)])
        num = torch.tensor([float(len(probs[fold::count])) for fold in range(count)])
        return prob, num, float(torch.special.entr(probs).sum(-1).mean())

    def test_it_halves_the_error_of_the_plug_in(self):
        """Root mean squared error over 100 runs of 60 samples and 100 classes."""
        generator = torch.Generator().manual_seed(0)

        def sample(count):
            logits = torch.randn(count, 100, generator=generator, dtype=torch.float64)
            logits[torch.arange(count), torch.randint(100, (count,), generator=generator)] += 7
            return logits.softmax(-1)

        big = sample(200_000)
        truth = float(torch.special.entr(big.mean(0)).sum() - torch.special.entr(big).sum(-1).mean())
        plain, better = [], []
        for _ in range(100):
            probs = sample(60)
            prob, num, entropy = self.folds(probs)
            plain.append(float(torch.special.entr(probs.mean(0)).sum()) - entropy - truth)
            better.append(debiased_log_is(prob, num, entropy, math.log(100)) - truth)
        assert torch.tensor(better).square().mean().sqrt() < 0.5 * torch.tensor(plain).square().mean().sqrt()

    def test_it_stays_between_plug_in_and_witness(self):
        probs = torch.eye(5, dtype=torch.float64).repeat(4, 1)
        prob, num, entropy = self.folds(probs)
        assert debiased_log_is(prob, num, entropy, 1.62) <= 1.62
        assert debiased_log_is(prob, num, entropy, math.log(5)) == pytest.approx(math.log(5))
        assert debiased_log_is(prob, num, entropy, 0.0) == pytest.approx(math.log(5))

    def test_one_sample_has_only_the_plug_in(self):
        prob, num, entropy = self.folds(torch.full((1, 3), 1 / 3, dtype=torch.float64))
        assert debiased_log_is(prob, num, entropy, 1.0) == pytest.approx(0.0, abs=1e-12)
