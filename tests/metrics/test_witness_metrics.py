"""The witness bound inside both metrics: states, processes, bad input, debiased values."""

import io
import math

import pytest
import torch

from tests._ddp import RankPool
from tm_bandit import OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit._exceptions import InputError, NotReadyError
from tm_bandit.functional import frechet_distance, moments_from_rows
from tm_bandit.functional.crossfit import fold_numbers, refit_counts
from tm_bandit.functional.debias import RootTrace, slope_ratio
from tm_bandit.metrics import marginal_view
from tm_bandit.metrics.base import LOSS_FIELDS
from tm_bandit.metrics.frechet_debias import measure_parts
from tm_bandit.metrics.frechet_stream import FrechetStream
from tm_bandit.metrics.row_log import RowLog

DIM = 24


def reference(scale=1.0, dim=DIM, rank=None):
    values = torch.arange(1, dim + 1, dtype=torch.float64) ** -0.7
    if rank is not None:
        values[rank:] = 0
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    return ReferenceStatistics(torch.full((dim,), 2 * scale), scale**2 * turn @ torch.diag(values) @ turn.T)


REFERENCE = reference()


def draw(count, scale=1.0, shift=0.3, stretch=1.3, seed=0, ref=REFERENCE):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, ref.num_features, generator=generator, dtype=torch.float64)
    root = ref.eigenvectors * ref.eigenvalues.sqrt()
    return stretch * rows @ root.T + ref.mean + shift * scale


def truth(shift=0.3, stretch=1.3, ref=REFERENCE):
    return float(frechet_distance(ref.mean + shift, stretch**2 * ref.covariance, ref.mean, ref.covariance))


def make(ref=REFERENCE, **options):
    return OptimisticFID(feature="none", reference=ref, **options)


def filled(rows, batch=None, **options):
    metric = make(**options)
    for part in rows.split(batch or len(rows)):
        metric.update_features(part)
    return metric


def draw_probs(count, classes=15, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(count), torch.randint(classes, (count,), generator=generator)] += 4
    return logits.softmax(-1)


def values(metric):
    """All that a metric says, in an order in which every value is asked for after others."""
    found = [metric.losses(LOSS_FIELDS), metric.losses(["witness"])]
    return [*(v for loss in found for v in loss.values()), *map(float, (*metric.bounds(), *metric.debiased()))]


def root_trace(rows):
    centred = (rows - rows.mean(0)) @ (REFERENCE.eigenvectors * REFERENCE.eigenvalues.sqrt())
    return RootTrace(float(torch.linalg.svdvals(centred).sum()) / math.sqrt(len(rows)), len(rows))


class TestFrechet:
    def test_one_look_asks_the_witness_once(self, monkeypatch):
        asked = []
        real = FrechetStream.summary
        monkeypatch.setattr(FrechetStream, "summary", lambda self, log: asked.append(log.length) or real(self, log))
        metric = filled(draw(60))
        values(metric)
        assert asked == [60]
        metric.update_features(draw(25, seed=1))
        assert values(metric) == pytest.approx(values(filled(torch.cat([draw(60), draw(25, seed=1)]))), rel=1e-9)
        assert asked == [60, 85, 85]

    @pytest.mark.parametrize("gone", [0, 50])
    def test_the_slope_is_that_of_all_rows_against_their_parts(self, gone):
        rows = draw(200)
        folded = moments_from_rows(rows[:gone]) if gone else None
        log = RowLog(list(rows[gone:].split(30)), folded)
        found = measure_parts(REFERENCE, log, max(refit_counts(200)), True)
        used = rows[: found.num]
        side = (torch.arange(len(used)) >= gone).long() if gone else fold_numbers(0, len(used)) % 2
        ratio = slope_ratio(root_trace(used), [root_trace(used[side == half]) for half in (0, 1)], REFERENCE.bias)
        assert found.ratio == pytest.approx(ratio, rel=1e-9)

    def test_it_is_the_default_and_needs_no_horizon(self):
        metric = make()
        assert metric.bound == "witness"
        assert metric.horizon is None
        assert metric.min_samples == 10

    def test_the_interval_encloses_the_truth_and_the_score_is_its_lower_end(self):
        metric = filled(draw(400))
        lower, upper = metric.bounds()
        assert 0.6 * truth() < lower < truth() < upper < 1.5 * truth()
        assert metric.compute() == lower
        losses = metric.losses(["optimistic", "pessimistic", "witness", "stderr", "estimate"])
        assert losses["optimistic"] == float(lower)
        assert losses["pessimistic"] == float(upper)
        assert float(lower) < losses["witness"] < losses["estimate"] < float(upper)
        assert losses["witness"] - 5 * losses["stderr"] < float(lower) < losses["witness"] - 2 * losses["stderr"]

    def test_a_horizon_divides_delta(self):
        rows = draw(300)
        assert filled(rows, horizon=100).compute() == filled(rows, delta=0.05 / 100).compute()
        assert filled(rows, horizon=100).compute() < filled(rows).compute()

    @pytest.mark.parametrize("options", [{"width": "lil"}, {"fitting": "predictable"}])
    def test_the_safer_options_are_wider(self, options):
        rows = draw(400)
        default, safe = filled(rows).bounds(), filled(rows, **options).bounds()
        assert 0 < safe.lower < default.lower
        assert safe.upper > default.upper

    @pytest.mark.parametrize("options", [{"width": "normal"}, {"fitting": "none"}, {"max_rows": 1}])
    def test_bad_options_are_refused(self, options):
        with pytest.raises(InputError, match=next(iter(options))):
            make(**options)

    @pytest.mark.parametrize("options", [{}, {"max_rows": 100}, {"max_rows": 100, "fitting": "predictable"}])
    def test_values_depend_on_the_ordered_rows_alone(self, options):
        """Not on batches, and not on whether the metric was saved and restored on the way."""
        rows = draw(430)
        whole = filled(rows, **options)
        pieces = make(**options)
        for number, part in enumerate(rows.split(7)):
            pieces.update_features(part)
            if number % 5 == 0 and pieces.num_samples >= 2:
                pieces.compute()
        saved = filled(rows[:300], 11, **options)
        saved.persistent(True)
        file = io.BytesIO()
        torch.save(saved.state_dict(), file)
        file.seek(0)
        restored = make(**options)
        restored.persistent(True)
        restored.load_state_dict(torch.load(file, weights_only=True))
        restored.update_features(rows[300:])
        expected = whole.bounds()
        for metric in (pieces, restored):
            assert metric.num_samples == 430
            assert float(metric.bounds().lower) == pytest.approx(float(expected.lower), rel=1e-8)
            assert float(metric.bounds().upper) == pytest.approx(float(expected.upper), rel=1e-8)

    def test_rows_are_settled_but_nothing_is_lost(self):
        rows = draw(1000)
        free, tight = filled(rows, 10), filled(rows, 10, max_rows=200)
        assert sum(len(batch) for batch in tight.rows) < 200
        assert tight.num_samples == 1000
        assert float(tight.estimate()) == pytest.approx(float(free.estimate()), rel=1e-9)
        assert float(tight.compute()) == pytest.approx(float(free.compute()), rel=0.1)
        assert float(tight.debiased().value) == pytest.approx(float(free.debiased().value), rel=0.1)

    def test_nothing_is_settled_before_the_reference_is_known(self):
        metric = OptimisticFID(feature="none", max_rows=40)
        metric.update_features(draw(100))
        assert sum(len(batch) for batch in metric.rows) == 100
        with pytest.raises(NotReadyError):
            metric.compute()
        metric.update_features(draw(3000, shift=0.0, stretch=1.0, seed=1), real=True)
        assert metric.compute() > 0

    def test_a_growing_reference_is_followed(self):
        metric = OptimisticFID(feature="none")
        metric.update_features(draw(200))
        metric.update_features(draw(500, shift=0.0, stretch=1.0, seed=1), real=True)
        before = metric.compute()
        metric.update_features(draw(500, shift=2.0, stretch=1.0, seed=2), real=True)
        fresh = OptimisticFID(feature="none")
        fresh.update_features(draw(500, shift=0.0, stretch=1.0, seed=1), real=True)
        fresh.update_features(draw(500, shift=2.0, stretch=1.0, seed=2), real=True)
        fresh.update_features(draw(200))
        assert metric.compute() == fresh.compute() != before

    def test_reset_forgets(self):
        metric = filled(draw(300, seed=1), max_rows=100)
        metric.debiased()
        metric.reset()
        metric.update_features(draw(300))
        assert metric.bounds() == filled(draw(300), max_rows=100).bounds()
        assert metric.debiased() == filled(draw(300), max_rows=100).debiased()

    def test_clones_share_the_rotation_of_the_reference(self):
        metric = filled(draw(50))
        metric.compute()
        other = metric.clone()
        other.update_features(draw(50, seed=1))
        assert other.reference.witness_basis is metric.reference.witness_basis
        assert other.num_samples == 100
        assert metric.num_samples == 50

    def test_half_precision_rows(self):
        rows = draw(200)
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
        self.check(filled(draw(count)), truth())

    @pytest.mark.parametrize("scale", [1e-8, 1e8])
    def test_extreme_scale(self, scale):
        ref = reference(scale)
        rows = draw(300, scale=scale, ref=ref)
        metric = filled(rows, ref=ref)
        lower, _ = self.check(metric, truth(0.3 * scale, 1.3, ref))
        assert lower / scale**2 == pytest.approx(float(filled(draw(300)).compute()), rel=1e-6)

    @pytest.mark.parametrize("scale", [1e-8, 1e8])
    def test_samples_of_another_scale(self, scale):
        rows = REFERENCE.mean + (draw(300) - REFERENCE.mean) * scale
        exact = float(
            frechet_distance(
                REFERENCE.mean + 0.3 * scale,
                (1.3 * scale) ** 2 * REFERENCE.covariance,
                REFERENCE.mean,
                REFERENCE.covariance,
            )
        )
        lower, _ = self.check(filled(rows), exact)
        assert lower > 0.5 * exact

    def test_one_repeated_sample(self):
        """A generator that has only one picture: the distance is known exactly."""
        row = draw(1)
        exact = float((row - REFERENCE.mean).square().sum() + REFERENCE.trace)
        lower, upper = self.check(filled(row.repeat(200, 1)), exact)
        assert 0.9 * exact < lower <= exact * (1 + 1e-9)
        assert upper >= exact

    def test_a_constant_feature(self):
        rows = draw(300)
        rows[:, 3] = 2.5
        mean, root = REFERENCE.mean + 0.3, torch.eye(DIM, dtype=torch.float64)
        root[3, 3], mean[3] = 0.0, 2.5
        exact = float(
            frechet_distance(mean, 1.69 * root @ REFERENCE.covariance @ root, REFERENCE.mean, REFERENCE.covariance)
        )
        self.check(filled(rows), exact)

    @pytest.mark.parametrize("rank", [1, 8])
    def test_a_rank_deficient_reference(self, rank):
        ref = reference(rank=rank)
        inside = draw(300, ref=ref)
        self.check(filled(inside, ref=ref), truth(ref=ref))
        outside = inside + torch.randn(inside.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        exact = float(
            frechet_distance(
                ref.mean + 0.3, 1.69 * ref.covariance + torch.eye(DIM, dtype=torch.float64), ref.mean, ref.covariance
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
        ref = reference(dim=dim)
        metric = OptimisticFID(feature="none", reference=ref)
        for part in draw(count, ref=ref).split(7):
            metric.update_features(part)
            metric.compute()
        stream = metric.row_log.known("stream")
        tensors = [value for value in vars(stream).values() if isinstance(value, torch.Tensor)]
        kept = sum(part.numel() for part in (*tensors, *stream._witness))
        assert kept <= 1.5 * count + 5 * (dim * dim + 3 * dim) + dim


class TestDebiased:
    @pytest.mark.parametrize("ratio", [0.25, 0.5, 1, 2])
    def test_a_third_of_the_error_of_extrapolation(self, ratio):
        """Against a straight line in 1/n through ten subsets; root mean squared error of six runs, d = 64."""
        ref = reference(dim=64)
        count, generator = int(64 * ratio), torch.Generator().manual_seed(0)
        exact, ours, theirs = truth(0.05, 1.1, ref), [], []
        for seed in range(6):
            rows = draw(count, shift=0.05, stretch=1.1, seed=seed, ref=ref)
            ours.append(float(filled(rows, ref=ref).debiased().value) - exact)
            theirs.append(extrapolated(rows, ref, generator) - exact)
        assert root_mean_square(ours) <= root_mean_square(theirs) / 3

    def test_its_error_bar_is_honest(self):
        """The spread over runs, at n = 4d, against the mean reported standard error."""
        values, errors = [], []
        for seed in range(40):
            value, stderr = filled(draw(4 * DIM, seed=seed)).debiased()
            values.append(float(value))
            errors.append(float(stderr))
        spread = torch.tensor(values).std()
        assert 0.6 * spread < torch.tensor(errors).mean() < 1.6 * spread
        assert abs(torch.tensor(values).mean() - truth()) < 4 * spread / math.sqrt(40) + 0.03 * truth()

    @pytest.mark.parametrize(("count", "dim"), [(16, 64), (64, 64), (200, 64)])
    def test_its_error_bar_is_honest_with_fewer_samples(self, count, dim):
        """Near the reference, where the scores show hardly any noise; 40 runs tell a spread to about a tenth."""
        ref = reference(dim=dim)
        found = [
            filled(draw(count, shift=0.05, stretch=1.1, seed=seed, ref=ref), ref=ref).debiased() for seed in range(40)
        ]
        spread = torch.stack([value for value, _ in found]).std()
        assert 0.6 * spread < torch.stack([stderr for _, stderr in found]).mean() < 2.0 * spread

    def test_labels_in_a_cycle_do_no_harm(self):
        """Ten modes, one far out, drawn in turn: with folds by position each witness would miss one mode."""
        ref = reference()
        offset = torch.zeros(10, DIM, dtype=torch.float64)
        offset[:, 0] = torch.arange(10) - 4.5
        noise = draw(600, ref=ref)
        cycle = noise + offset[torch.arange(600) % 10]
        mixed = noise + offset[torch.randperm(600, generator=torch.Generator().manual_seed(0)) % 10]
        one, two = filled(cycle, ref=ref), filled(mixed, ref=ref)
        assert float(one.compute()) == pytest.approx(float(two.compute()), rel=0.05)
        assert float(one.debiased().value) == pytest.approx(float(two.debiased().value), rel=0.05)

    @pytest.mark.parametrize("bound", ["paper", "none"])
    def test_other_bounds_have_it_too(self, bound):
        rows = draw(200)
        ours, other = filled(rows).debiased(), filled(rows, bound=bound).debiased()
        assert float(other.value) == pytest.approx(float(ours.value), rel=0.05)
        assert float(other.stderr) == pytest.approx(float(ours.stderr), rel=0.3)

    def test_it_does_not_depend_on_the_number_of_samples(self):
        """The plain estimate begins at three times the truth."""
        found = [float(filled(draw(count, shift=0.1)).debiased().value) for count in (30, 100, 1000)]
        plain = [float(filled(draw(count, shift=0.1)).estimate()) for count in (30, 100, 1000)]
        exact = truth(0.1)
        assert all(abs(value - exact) < 0.5 * exact for value in found)
        assert plain[0] > 3 * exact


def extrapolated(rows, ref, generator, points=10):
    """Linear extrapolation in 1/n from random subsets of half to all rows."""
    inverse, values = [], []
    for size in torch.linspace(len(rows) / 2, len(rows), points).int().tolist():
        part = rows[torch.randperm(len(rows), generator=generator)[:size]]
        inverse.append(1 / size)
        values.append(float(filled(part, ref=ref, bound="none").estimate()))
    design = torch.stack([torch.ones(points), torch.tensor(inverse)], 1).double()
    return float(torch.linalg.lstsq(design, torch.tensor(values).double()[:, None]).solution[0])


def root_mean_square(values):
    return float(torch.tensor(values).square().mean().sqrt())


class TestInception:
    def filled(self, probs, batch=None, **options):
        metric = OptimisticIS(feature="none", log_scale=True, **options)
        for part in probs.split(batch or len(probs)):
            metric.update_probs(part)
        return metric

    def test_one_look_asks_the_witness_once(self, monkeypatch):
        asked = []
        real = marginal_view.witness_moments
        monkeypatch.setattr(marginal_view, "witness_moments", lambda *given: asked.append(given) or real(*given))
        metric, fresh = OptimisticIS("none"), OptimisticIS("none")
        metric.update_probs(draw_probs(60))
        values(metric)
        assert len(asked) == 1
        # What is added changes the answer, real samples (which are another prior) included.
        for add in ({"probs": draw_probs(25, seed=1)}, {"probs": draw_probs(25, seed=2), "real": True}):
            metric.update_probs(**add)
            values(metric)
        assert len(asked) == 3
        for add in (draw_probs(60), draw_probs(25, seed=1)):
            fresh.update_probs(add)
        fresh.update_probs(draw_probs(25, seed=2), real=True)
        assert values(metric) == values(fresh)

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


def _share(rank, world_size, shares, options):
    """What one rank of several returns for its share of the rows."""
    metric = make(**options)
    rows = draw(sum(shares))
    start = sum(shares[:rank])
    if shares[rank]:
        metric.update_features(rows[start : start + shares[rank]])
    scores = OptimisticIS(feature="none", log_scale=True)
    probs = draw_probs(sum(shares))
    if shares[rank]:
        scores.update_probs(probs[start : start + shares[rank]])
    found = [*metric.bounds(), *metric.debiased(), *scores.bounds(), *scores.debiased()]
    return [float(value) for value in found], metric.num_samples


@pytest.mark.parametrize(("shares", "options"), [([150, 250], {}), ([400, 0], {}), ([250, 150], {"max_rows": 60})])
def test_two_processes(ranks, shares, options):
    """Bit-equal on both ranks, within the width of one process, and a rank without samples takes part."""
    answers = ranks.run(_share, shares, options)
    assert answers[0][0] == answers[1][0]
    assert [answer[1] for answer in answers] == shares
    (alone, _) = _share(0, 1, [400], options)
    assert answers[0][0] == pytest.approx(alone, rel=0.25)
    lower, upper = answers[0][0][:2]
    assert lower < truth() < upper


def test_four_processes():
    pool = RankPool(4)
    try:
        answers = pool.run(_share, [100, 150, 0, 150], {})
    finally:
        pool.close()
    assert all(answer[0] == answers[0][0] for answer in answers)
    assert answers[0][0] == pytest.approx(_share(0, 1, [400], {})[0], rel=0.25)
