"""What rows say about their Frechet distance, through the metric: the witness bound, bad input, memory."""

import io
import math

import pytest
import torch

from tests._make import POWER, all_values, filled, power_reference, power_rows, power_truth
from tm_bandit import OptimisticFID, ReferenceStatistics
from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.functional import frechet_distance
from tm_bandit.metrics.frechet_stream import FrechetStream


class TestFrechet:
    def test_one_look_asks_the_witness_once(self, monkeypatch):
        asked = []
        real = FrechetStream.summary
        monkeypatch.setattr(FrechetStream, "summary", lambda self, log: asked.append(log.length) or real(self, log))
        metric = filled(power_rows(60))
        all_values(metric)
        assert asked == [60]
        metric.update_features(power_rows(25, seed=1))
        assert all_values(metric) == pytest.approx(
            all_values(filled(torch.cat([power_rows(60), power_rows(25, seed=1)]))), rel=1e-9
        )
        assert asked == [60, 85, 85]

    def test_it_is_the_default_and_needs_no_horizon(self):
        metric = OptimisticFID(
            "none",
            POWER,
        )
        assert metric.bound == "witness"
        assert metric.horizon is None
        assert metric.min_samples == 10

    def test_the_interval_encloses_the_truth_and_the_score_is_its_lower_end(self):
        metric = filled(power_rows(400))
        lower, upper = metric.bounds()
        assert 0.6 * power_truth() < lower < power_truth() < upper < 1.5 * power_truth()
        assert metric.compute() == lower
        losses = metric.losses(["optimistic", "pessimistic", "witness", "stderr", "estimate"])
        assert losses["optimistic"] == float(lower)
        assert losses["pessimistic"] == float(upper)
        assert float(lower) < losses["witness"] < losses["estimate"] < float(upper)
        assert losses["witness"] - 5 * losses["stderr"] < float(lower) < losses["witness"] - 2 * losses["stderr"]

    def test_nothing_is_promised_below_200_samples(self):
        """A mode of 2 % may not have shown yet; the score by which arms are compared is there all the same."""
        few, enough = filled(power_rows(199)), filled(power_rows(200))
        assert tuple(map(float, few.bounds())) == (0.0, math.inf)
        assert few.compute() > 0
        assert few.traits.certifies_from == 200
        assert enough.compute() == enough.bounds().lower > 0
        assert math.isfinite(float(enough.bounds().upper))

    def test_a_finite_reference_widens_the_interval_but_not_what_arms_are_compared_by(self):
        rows = power_rows(400)
        exact = filled(rows)
        finite = filled(rows, ref=ReferenceStatistics(POWER.mean, POWER.covariance, 1000))
        assert finite.compute() == exact.compute()
        assert finite.losses(["witness", "pessimistic"]) == exact.losses(["witness", "pessimistic"])
        assert 0 < finite.bounds().lower < exact.bounds().lower
        assert finite.bounds().upper > exact.bounds().upper

    @pytest.mark.parametrize("relu", [False, True])
    def test_a_perfect_generator_is_not_accused_of_the_reference_s_noise(self, relu):
        """500 real images, d = 32: without the allowance every run is (truth 0, followed from 200 to 1,000 rows)."""

        def sample(count, seed):
            rows = torch.randn(count, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            return (rows - 1).clamp_min(0) if relu else rows

        wrong = naive = 0
        for run in range(20):
            metric = OptimisticFID("none", ReferenceStatistics.from_features(sample(500, run)))
            ever = never_mind = False
            for part in sample(1000, 1000 + run).split(200):
                metric.update_features(part)
                ever |= bool(metric.bounds().lower > 0)
                never_mind |= bool(metric.compute() > 0)
            wrong, naive = wrong + ever, naive + never_mind
        assert wrong <= 1
        assert naive >= 15

    def test_a_horizon_divides_delta(self):
        rows = power_rows(300)
        assert filled(rows, horizon=100).compute() == filled(rows, delta=0.05 / 100).compute()
        assert filled(rows, horizon=100).compute() < filled(rows).compute()

    @pytest.mark.parametrize("options", [{"width": "lil"}, {"fitting": "predictable"}])
    def test_the_safer_options_are_wider(self, options):
        rows = power_rows(400)
        default, safe = filled(rows).bounds(), filled(rows, **options).bounds()
        assert 0 < safe.lower < default.lower
        assert safe.upper > default.upper

    @pytest.mark.parametrize("options", [{"width": "normal"}, {"fitting": "none"}, {"max_rows": 1}])
    def test_bad_options_are_refused(self, options):
        with pytest.raises(InputError, match=next(iter(options))):
            OptimisticFID("none", POWER, **options)

    @pytest.mark.parametrize("options", [{}, {"max_rows": 100}, {"max_rows": 100, "fitting": "predictable"}])
    def test_values_depend_on_the_ordered_rows_alone(self, options):
        """Not on batches, and not on whether the metric was saved and restored on the way."""
        rows = power_rows(430)
        whole = filled(rows, **options)
        pieces = OptimisticFID("none", POWER, **options)
        for number, part in enumerate(rows.split(7)):
            pieces.update_features(part)
            if number % 5 == 0 and pieces.num_samples >= 2:
                pieces.compute()
        saved = filled(rows[:300], 11, **options)
        saved.persistent(True)
        file = io.BytesIO()
        torch.save(saved.state_dict(), file)
        file.seek(0)
        restored = OptimisticFID("none", POWER, **options)
        restored.persistent(True)
        restored.load_state_dict(torch.load(file, weights_only=True))
        restored.update_features(rows[300:])
        expected = whole.bounds()
        for metric in (pieces, restored):
            assert metric.num_samples == 430
            assert float(metric.bounds().lower) == pytest.approx(float(expected.lower), rel=1e-8)
            assert float(metric.bounds().upper) == pytest.approx(float(expected.upper), rel=1e-8)

    def test_rows_are_settled_but_nothing_is_lost(self):
        rows = power_rows(1000)
        free, tight = filled(rows, 10), filled(rows, 10, max_rows=200)
        assert sum(len(batch) for batch in tight.rows) < 200
        assert tight.num_samples == 1000
        assert float(tight.estimate()) == pytest.approx(float(free.estimate()), rel=1e-9)
        assert float(tight.compute()) == pytest.approx(float(free.compute()), rel=0.1)
        assert float(tight.debiased().value) == pytest.approx(float(free.debiased().value), rel=0.1)

    def test_nothing_is_settled_before_the_reference_is_known(self):
        metric = OptimisticFID(feature="none", max_rows=40)
        metric.update_features(power_rows(100))
        assert sum(len(batch) for batch in metric.rows) == 100
        with pytest.raises(NotReadyError):
            metric.compute()
        metric.update_features(power_rows(3000, shift=0.0, stretch=1.0, seed=1), real=True)
        assert metric.compute() > 0

    def test_a_growing_reference_is_followed(self):
        metric = OptimisticFID(feature="none")
        metric.update_features(power_rows(200))
        metric.update_features(power_rows(500, shift=0.0, stretch=1.0, seed=1), real=True)
        before = metric.compute()
        metric.update_features(power_rows(500, shift=2.0, stretch=1.0, seed=2), real=True)
        fresh = OptimisticFID(feature="none")
        fresh.update_features(power_rows(500, shift=0.0, stretch=1.0, seed=1), real=True)
        fresh.update_features(power_rows(500, shift=2.0, stretch=1.0, seed=2), real=True)
        fresh.update_features(power_rows(200))
        assert metric.compute() == fresh.compute() != before

    def test_reset_forgets(self):
        metric = filled(power_rows(300, seed=1), max_rows=100)
        metric.debiased()
        metric.reset()
        metric.update_features(power_rows(300))
        assert metric.bounds() == filled(power_rows(300), max_rows=100).bounds()
        assert metric.debiased() == filled(power_rows(300), max_rows=100).debiased()

    def test_clones_share_the_rotation_of_the_reference(self):
        metric = filled(power_rows(50))
        metric.compute()
        other = metric.clone()
        other.update_features(power_rows(50, seed=1))
        assert other.reference.witness_basis is metric.reference.witness_basis
        assert other.num_samples == 100
        assert metric.num_samples == 50

    def test_half_precision_rows(self):
        rows = power_rows(200)
        assert float(filled(rows.half()).compute()) == pytest.approx(float(filled(rows).compute()), rel=0.02)


class TestBadInput:
    """A vacuous bound or a finite correct one; never NaN, never on the wrong side."""

    def check(self, metric, exact):
        lower, upper = (float(end) for end in metric.bounds())
        value, stderr = (float(part) for part in metric.debiased())
        losses = metric.losses(["witness", "stderr", "optimistic", "pessimistic", "estimate"])
        assert not any(math.isnan(number) for number in (lower, upper, value, stderr, *losses.values()))
        assert lower <= exact * (1 + 1e-6) + 1e-12 * exact
        assert upper >= exact * (1 - 1e-6)
        assert math.isfinite(value)
        return lower, upper

    @pytest.mark.parametrize("count", [2, 3, 9, 10, 11, 15])
    def test_fewer_samples_than_folds(self, count):
        self.check(filled(power_rows(count)), power_truth())

    @pytest.mark.parametrize("scale", [1e-8, 1e8])
    def test_extreme_scale(self, scale):
        ref = power_reference(scale)
        rows = power_rows(300, scale=scale, ref=ref)
        metric = filled(rows, ref=ref)
        lower, _ = self.check(metric, power_truth(0.3 * scale, 1.3, ref))
        assert lower / scale**2 == pytest.approx(float(filled(power_rows(300)).compute()), rel=1e-6)

    @pytest.mark.parametrize("scale", [1e-8, 1e8])
    def test_samples_of_another_scale(self, scale):
        rows = POWER.mean + (power_rows(300) - POWER.mean) * scale
        exact = float(
            frechet_distance(
                POWER.mean + 0.3 * scale,
                (1.3 * scale) ** 2 * POWER.covariance,
                POWER.mean,
                POWER.covariance,
            )
        )
        lower, _ = self.check(filled(rows), exact)
        assert lower > 0.5 * exact

    def test_one_repeated_sample(self):
        """A generator that has only one picture: the distance is known exactly."""
        row = power_rows(1)
        exact = float((row - POWER.mean).square().sum() + POWER.trace)
        lower, upper = self.check(filled(row.repeat(200, 1)), exact)
        assert 0.9 * exact < lower <= exact * (1 + 1e-9)
        assert upper >= exact

    def test_a_constant_feature(self):
        rows = power_rows(300)
        rows[:, 3] = 2.5
        mean, root = POWER.mean + 0.3, torch.eye(POWER.num_features, dtype=torch.float64)
        root[3, 3], mean[3] = 0.0, 2.5
        exact = float(frechet_distance(mean, 1.69 * root @ POWER.covariance @ root, POWER.mean, POWER.covariance))
        self.check(filled(rows), exact)

    @pytest.mark.parametrize("rank", [1, 8])
    def test_a_rank_deficient_reference(self, rank):
        ref = power_reference(rank=rank)
        inside = power_rows(300, ref=ref)
        self.check(filled(inside, ref=ref), power_truth(ref=ref))
        outside = inside + torch.randn(inside.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        exact = float(
            frechet_distance(
                ref.mean + 0.3,
                1.69 * ref.covariance + torch.eye(POWER.num_features, dtype=torch.float64),
                ref.mean,
                ref.covariance,
            )
        )
        lower, _ = self.check(filled(outside, ref=ref), exact)
        assert lower > 0.5 * exact

    def test_a_reference_that_is_a_point(self):
        ref = ReferenceStatistics(torch.zeros(4), torch.zeros(4, 4))
        rows = torch.randn(200, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.check(filled(rows, ref=ref), 4.0)

    def test_one_dimension(self):
        ref = ReferenceStatistics(torch.zeros(1), torch.ones(1, 1))
        rows = 2 * torch.randn(300, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        lower, _ = self.check(filled(rows, ref=ref), 1.0)
        assert lower > 0.3


class TestMemory:
    def test_no_copy_of_the_rows_is_kept(self):
        """Beyond the rows: a score per row, and per fold one block and a few vectors."""
        dim, count = 64, 700
        ref = power_reference(dim=dim)
        metric = OptimisticFID(feature="none", reference=ref)
        for part in power_rows(count, ref=ref).split(7):
            metric.update_features(part)
            metric.compute()
        stream = metric.row_log.known("stream")
        tensors = [value for value in vars(stream).values() if isinstance(value, torch.Tensor)]
        kept = sum(part.numel() for part in (*tensors, *stream._witness))
        assert kept <= 1.5 * count + 5 * (dim * dim + 3 * dim) + dim
