"""Witnesses of the Frechet distance: on the right side whatever they are, tight when they are good."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tm_bandit.errors import InputError
from tm_bandit.functional import (
    FrechetBasis,
    FrechetStream,
    fit_frechet_witness,
    frechet_distance,
    moments_from_rows,
    score_frechet_witness,
)
from tm_bandit.functional.confidence import ScoreMoments, deviation
from tm_bandit.functional.crossfit import FOLDS, MIN_ROWS, FoldLayout, fold_numbers, num_folds, refit_counts
from tm_bandit.functional.frechet_stream import WitnessSummary, upper_bound
from tm_bandit.functional.witness_fd import (
    FrechetFit,
    FrechetSums,
    block_size,
    coarse_distances,
    damp_witness,
    fit_frechet_map,
    gaussian_score_std,
    make_axes,
    score_rows,
    sum_rows,
)


def random_covariance(dim, generator, decay=1.0):
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]
    return turn @ torch.diag(torch.arange(1, dim + 1, dtype=torch.float64) ** -decay) @ turn.T


def make_basis(mean, covariance):
    values, vectors = torch.linalg.eigh(covariance)
    return FrechetBasis.from_eigen(mean, values.flip(0).clamp_min(0), vectors.flip(1))


def gaussian_rows(count, mean, covariance, generator):
    root = torch.linalg.cholesky(covariance)
    return torch.randn(count, len(mean), generator=generator, dtype=torch.float64) @ root.T + mean


def expected_score(witness, basis, mean, covariance):
    """Expectation of a score over a distribution with these moments, written out from the quadratic form."""
    turn = basis.projection.double()
    m = (mean - basis.center) @ turn
    c = turn.T @ covariance @ turn
    k = witness.block.shape[-1]
    quadratic = torch.diag(witness.curvature)
    quadratic[:k, :k] = witness.block
    value = (quadratic * c).sum() + m @ quadratic @ m + witness.linear @ m + witness.constant
    return float(value) * basis.scale**2


class TestOneWitness:
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(seed=st.integers(0, 10_000), dim=st.integers(2, 12), count=st.integers(2, 60), damping=st.floats(0.05, 1.0))
    def test_no_witness_exceeds_the_distance(self, seed, dim, count, damping):
        """Whatever rows it was fitted on, its expectation under any moments is at most their distance."""
        generator = torch.Generator().manual_seed(seed)
        reference, other, third = (random_covariance(dim, generator, decay) for decay in (1.0, 0.5, 2.0))
        means = torch.randn(3, dim, generator=generator, dtype=torch.float64)
        basis = make_basis(means[0], reference)
        witness = fit_frechet_witness(gaussian_rows(count, means[2], third, generator), basis, damping)
        truth = float(frechet_distance(means[1], other, means[0], reference))
        assert expected_score(witness, basis, means[1], other) <= truth * (1 + 1e-9) + 1e-9

    def test_the_best_witness_attains_it(self):
        generator = torch.Generator().manual_seed(0)
        reference, own = random_covariance(6, generator), random_covariance(6, generator, 0.5)
        mean = torch.randn(6, generator=generator, dtype=torch.float64)
        basis = make_basis(torch.zeros(6, dtype=torch.float64), reference)
        rows = gaussian_rows(100_000, mean, own, generator)
        moments = moments_from_rows(rows)
        witness = fit_frechet_witness(rows, basis)
        truth = float(frechet_distance(moments.mean, moments.scatter / moments.count, mean * 0, reference))
        found = expected_score(witness, basis, moments.mean, moments.scatter / moments.count)
        assert found == pytest.approx(truth, rel=2e-3)
        assert found <= truth

    def test_scores_average_to_their_expectation(self):
        generator = torch.Generator().manual_seed(1)
        basis = make_basis(torch.ones(5, dtype=torch.float64), random_covariance(5, generator))
        rows = torch.randn(400, 5, generator=generator, dtype=torch.float64)
        witness = fit_frechet_witness(rows[:200], basis)
        moments = moments_from_rows(rows[200:])
        expected = expected_score(witness, basis, moments.mean, moments.scatter / moments.count)
        assert float(score_frechet_witness(witness, rows[200:], basis).mean()) == pytest.approx(expected)

    def test_two_moments_are_all_that_counts(self):
        """Rows on the corners of a cube and Gaussian rows of the same moments have the same expected score."""
        generator = torch.Generator().manual_seed(2)
        basis = make_basis(torch.zeros(4, dtype=torch.float64), 2 * torch.eye(4, dtype=torch.float64))
        witness = fit_frechet_witness(torch.randn(50, 4, generator=generator, dtype=torch.float64) + 1, basis)
        corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 4)
        found = float(score_frechet_witness(witness, corners, basis).mean())
        assert found == pytest.approx(
            expected_score(witness, basis, torch.zeros(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64))
        )

    def test_full_damping_is_the_trivial_witness(self):
        basis = make_basis(torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
        rows = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 2
        scores = score_frechet_witness(fit_frechet_witness(rows, basis, damping=1e-9), rows, basis)
        assert scores.abs().max() < 1e-6

    def test_a_map_that_is_not_positive_says_nothing(self):
        axes = make_axes(torch.ones(2))
        bad = FrechetFit(-torch.eye(2).double()[None], torch.ones(1, 0).double(), *[torch.zeros(1, 2).double()] * 3)
        bad = bad._replace(predicted=torch.zeros(1).double())
        witness = damp_witness(bad, axes, torch.ones(1).double())
        assert score_rows(witness, torch.ones(1, 5, 2).double()).abs().max() == 0

    def test_gaussian_spread_equals_that_of_gaussian_rows(self):
        generator = torch.Generator().manual_seed(3)
        covariance = random_covariance(5, generator)
        basis = make_basis(torch.zeros(5, dtype=torch.float64), torch.eye(5, dtype=torch.float64))
        rows = gaussian_rows(200_000, torch.full((5,), 0.3, dtype=torch.float64), covariance, generator)
        sums = FrechetSums(*(part[None] for part in sum_rows(basis.rotate(rows), basis.axes, 5)))
        fit = fit_frechet_map(sums, basis.axes)
        witness = damp_witness(fit, basis.axes, torch.ones_like(fit.predicted))
        expected = float(score_rows(witness, basis.rotate(rows)[None]).std())
        assert float(gaussian_score_std(witness, sums)) == pytest.approx(expected, rel=0.02)

    @pytest.mark.parametrize("shape", [(1, 3), (5, 2), (3,)])
    def test_bad_rows_are_refused(self, shape):
        basis = make_basis(torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
        with pytest.raises(InputError, match="two rows"):
            fit_frechet_witness(torch.zeros(shape), basis)


class TestSchedule:
    def test_refits_are_rare_and_begin_early(self):
        counts = refit_counts(5000)
        assert counts[0] == MIN_ROWS
        assert len(counts) < 50
        for earlier, later in pairwise(counts):
            growth = 1.15 if earlier < 200 else 1.3
            assert (growth - 0.01) * earlier - 1 <= later <= growth * earlier + 1

    def test_it_is_the_same_however_far_one_looks(self):
        for count in (9, 10, 63, 64, 65, 1000):
            assert tuple(refit_counts(count)) == tuple(n for n in refit_counts(4000) if n <= count)

    def test_folds_are_merged_by_halves(self):
        assert num_folds(20) % num_folds(2000) == 0

    def test_folds_are_even_and_do_not_depend_on_where_one_begins(self):
        fold = fold_numbers(0, 5000)
        assert torch.equal(fold.view(-1, FOLDS).sort().values, torch.arange(FOLDS).expand(500, -1))
        for start, stop in ((3, 4), (7, 31), (10, 20), (4321, 4999), (50, 50)):
            assert torch.equal(fold_numbers(start, stop), fold[start:stop])

    def test_folds_know_nothing_of_a_cycle_in_the_order(self):
        """Each fold gets each label of a cycle of ten about equally often; index modulo ten would give it one label."""
        count = torch.zeros(FOLDS, FOLDS)
        label = torch.arange(10_000) % 10
        count.index_put_((fold_numbers(0, 10_000), label), torch.ones(10_000), accumulate=True)
        # One hundred expected, standard deviation below ten; the largest of a hundred cells stays within four of them.
        assert (count - 100).abs().max() < 40

    @pytest.mark.parametrize("folds", [1, 5, 10])
    @pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (0, 97), (13, 14), (13, 57)])
    def test_the_layout_has_one_place_for_each_row(self, folds, start, stop):
        layout = FoldLayout.of(start, stop, folds)
        assert torch.equal(layout.fold, fold_numbers(start, stop) % folds)
        places = {(int(fold), int(slot)) for fold, slot in zip(layout.fold, layout.slot, strict=True)}
        assert len(places) == stop - start
        assert all(0 <= slot < layout.shape[1] for _, slot in places)
        assert layout.empty(2, width=3, like=torch.zeros(1)).shape == (2, folds, layout.shape[1], 3)

    def test_the_block_grows_up_to_its_limit(self):
        assert [block_size(n, 2048) for n in (1, 2, 3, 100, 255, 256, 9999)] == [1, 2, 2, 64, 128, 256, 256]
        assert [block_size(n, 5) for n in (3, 5, 100)] == [2, 5, 5]


class TestStream:
    dim = 20

    def setup_method(self):
        self.generator = torch.Generator().manual_seed(0)
        reference = random_covariance(self.dim, self.generator)
        self.basis = make_basis(torch.full((self.dim,), 3.0, dtype=torch.float64), reference)
        self.rows = gaussian_rows(
            700, torch.full((self.dim,), 3.1, dtype=torch.float64), 1.5 * reference, self.generator
        )

    def stream(self, rows=None, **options):
        stream = FrechetStream(self.basis, **options)
        if rows is not None:
            stream.extend(rows)
        return stream

    @pytest.mark.parametrize("fitting", ["crossfit", "predictable"])
    @pytest.mark.parametrize("batch", [1, 5, 64])
    def test_batches_do_not_matter(self, fitting, batch):
        whole = self.stream(self.rows, fitting=fitting).summary()
        stream = self.stream(fitting=fitting)
        for part in self.rows.split(batch):
            stream.extend(part)
            stream.summary()
        pieces = stream.summary()
        assert pieces.scores.count == whole.scores.count
        assert pieces.scores.mean == pytest.approx(whole.scores.mean, rel=1e-9)
        assert pieces.scores.std == pytest.approx(whole.scores.std, rel=1e-9)
        assert pieces.damping == pytest.approx(whole.damping, rel=1e-9)

    def test_a_row_never_meets_a_witness_that_saw_it(self):
        """Move one row to absurdity: in its own fold only its own score may change."""
        before = self.stream(self.rows[:100])
        before.summary()
        moved = self.rows[:100].clone()
        moved[37] += 1000.0
        after = self.stream(moved)
        after.summary()
        fold = fold_numbers(0, 100)
        own_fold = [i for i in range(100) if fold[i] == fold[37] and i != 37]
        assert torch.allclose(before.scores()[own_fold], after.scores()[own_fold], rtol=1e-12)
        others = [i for i in range(100) if fold[i] != fold[37]]
        assert not torch.isclose(before.scores()[others], after.scores()[others], rtol=1e-3).any()

    def test_predictable_scores_are_never_revised(self):
        early = self.stream(self.rows[:200], fitting="predictable").scores()
        late = self.stream(self.rows, fitting="predictable").scores()
        assert torch.allclose(late[: len(early)], early, rtol=1e-10)
        assert len(early) == 200 - MIN_ROWS

    def test_too_few_rows_have_no_scores(self):
        for count in (0, 1, MIN_ROWS - 1):
            summary = self.stream(self.rows[:count]).summary()
            assert summary.scores.count == 0
            assert upper_bound(1.0, summary, 0.05) == math.inf
            assert deviation(summary.scores, 0.05, upper=False) == math.inf

    @pytest.mark.parametrize("fitting", ["crossfit", "predictable"])
    def test_settled_rows_stay_in_the_mean_and_go_on_teaching(self, fitting):
        kept = self.stream(self.rows, fitting=fitting)
        first = self.stream(self.rows[:400], fitting=fitting)
        settled = self.stream(
            self.rows[400:], fitting=fitting, settled=moments_from_rows(self.rows[:400]), settled_scores=first.scores()
        )
        one, two = kept.summary().scores, settled.summary().scores
        assert one.count == two.count
        assert two.mean == pytest.approx(one.mean, abs=one.std / math.sqrt(one.count))
        assert two.std == pytest.approx(one.std, rel=0.1)
        # Without what the settled rows teach, the last few rows would be scored by worse witnesses.
        taught = self.stream(
            self.rows[660:],
            fitting=fitting,
            settled=moments_from_rows(self.rows[:660]),
            settled_scores=self.stream(self.rows[:660], fitting=fitting).scores(),
        )
        alone = self.stream(self.rows[660:], fitting=fitting)
        assert float(taught.scores()[-len(alone.scores()) :].mean()) > float(alone.scores().mean()) + 0.05

    def test_float32_is_enough_beyond_256_dimensions(self):
        generator = torch.Generator().manual_seed(5)
        values = torch.arange(1, 301, dtype=torch.float64) ** -0.8
        rows = torch.randn(200, 300, generator=generator, dtype=torch.float64) * values.sqrt() * 1.3
        single = FrechetBasis.from_eigen(torch.zeros(300), values, torch.eye(300))
        assert single.projection.dtype == torch.float32
        double = single._replace(projection=single.projection.double())
        one, two = FrechetStream(single), FrechetStream(double)
        one.extend(rows)
        two.extend(rows)
        assert one.summary().scores.mean == pytest.approx(two.summary().scores.mean, rel=1e-4)
        assert one._grouped(0, 5, 1)[1].dtype == torch.float32
        one.extend(1e60 * rows[:20])
        one.extend(rows[:20])
        one.summary()
        assert one._grouped(0, 5, 1)[1].dtype == torch.float64
        scores = one.summary().scores
        assert not any(map(math.isnan, (scores.mean, scores.std, scores.skewness)))


class TestTightness:
    def test_256_dimensions(self):
        """Distance 6.6; the gap includes the width. The bounds of the paper are in the hundreds here."""
        generator = torch.Generator().manual_seed(0)
        dim = 256
        values = torch.arange(1, dim + 1, dtype=torch.float64) ** -0.7
        values *= 50 / values.sum()
        turn = torch.linalg.qr(
            torch.eye(dim, dtype=torch.float64) + 0.02 * torch.randn(dim, dim, generator=generator, dtype=torch.float64)
        )[0]
        turn = turn * turn.diagonal().sign()
        stretch = (0.4 * torch.randn(dim, generator=generator, dtype=torch.float64)).exp()
        own = turn @ torch.diag(values * stretch) @ turn.T
        mean = 0.22 * values.sqrt() * torch.randn(dim, generator=generator, dtype=torch.float64)
        zero = torch.zeros(dim, dtype=torch.float64)
        truth = float(frechet_distance(mean, own, zero, torch.diag(values)))
        assert 6.0 < truth < 7.0
        basis = FrechetBasis.from_eigen(zero, values, torch.eye(dim, dtype=torch.float64))
        stream = FrechetStream(basis, alpha=0.025)
        done = 0
        for count, gap in ((200, 10.0), (500, 5.0), (1000, 3.0)):
            stream.extend(gaussian_rows(count - done, mean, own, generator))
            done = count
            scores = stream.summary().scores
            lower = max(0.0, scores.mean - deviation(scores, 0.025, upper=False))
            assert truth - gap <= lower <= truth


def test_the_pessimistic_end_does_not_trust_a_shrunken_witness():
    """A witness that was shrunk to nothing has no spread, but the plug-in still deviates."""
    silent = WitnessSummary(ScoreMoments(50, 0.0, 0.0, 0.0), 1.0, largest=1.0)
    assert upper_bound(0.5, silent, 0.05) > 0.5 + 0.5 / math.sqrt(50)
    assert upper_bound(0.0, silent._replace(largest=0.0), 0.05) == 0.0


@pytest.mark.parametrize("dim", [256, 300, 512, 768])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 64, 65])
def test_few_rows_are_rotated_as_many_are(dim, count):
    generator = torch.Generator().manual_seed(dim + count)
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]
    mean, values = torch.ones(dim, dtype=torch.float64), torch.arange(dim, 0, -1, dtype=torch.float64)
    basis = FrechetBasis.from_eigen(mean, values, turn)
    rows = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    expected = (rows - mean) @ turn / values.mean().sqrt()
    torch.testing.assert_close(basis.rotate(rows).double(), expected, rtol=1e-4, atol=1e-4)


class TestCoarseDistances:
    @staticmethod
    def of(rows, axes):
        return coarse_distances(*sum_rows(rows, axes, 1)[:3], axes)

    @staticmethod
    def copies(shift, scale, runs, count, seed=0):
        """Rows of shifted and scaled copies of a reference with a steep spectrum, and the reference's axes."""
        generator = torch.Generator().manual_seed(seed)
        deviations = torch.arange(1, 41, dtype=torch.float64) ** -0.5
        signs = torch.randint(0, 2, (40,), generator=generator) * 2.0 - 1.0
        noise = torch.randn(runs, count, 40, generator=generator, dtype=torch.float64)
        return deviations * (shift * signs + scale * noise), make_axes(deviations.square())

    @pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.5, 1.0), (0.0, 1.5), (0.7, 0.6)])
    def test_many_copies_have_the_true_distance_on_average(self, shift, scale):
        rows, axes = self.copies(shift, scale, runs=2000, count=10)
        covariance = torch.diag(axes.eigenvalues)
        zero = torch.zeros(40, dtype=torch.float64)
        mean = shift * axes.eigenvalues.sqrt()  # the signs do not change the distance
        truth = float(frechet_distance(mean, scale**2 * covariance, zero, covariance))
        for found in self.of(rows, axes):
            # The root of an estimated trace is off by second-order noise; 1 % of the reference's trace allows for it.
            assert float(found.mean()) == pytest.approx(truth, abs=0.01 * float(axes.eigenvalues.sum()))

    def test_the_even_one_is_less_noisy_and_the_plain_one_sees_a_shift_of_one_axis(self):
        rows, axes = self.copies(0.5, 1.0, runs=2000, count=10)
        found = self.of(rows, axes)
        assert float(found.even.std()) < 0.75 * float(found.plain.std())
        rows, axes = self.copies(0.0, 1.0, runs=2000, count=10)
        rows[..., 0] += 1.0
        found = self.of(rows, axes)
        assert float(found.plain.mean()) == pytest.approx(1.0, abs=0.05)
        assert float(found.even.mean()) < 0.2

    def test_by_hand(self):
        rows = torch.tensor([[1.0, 0.0], [3.0, 0.0]], dtype=torch.float64)
        found = self.of(rows, make_axes(torch.tensor([4.0, 1.0])))
        # Means 2 and 0, variances 2 and 0.
        scale = (math.sqrt(2) - math.sqrt(5)) ** 2
        assert float(found.even) == pytest.approx(5 * ((4 - 1) / 4) / 2 + scale, rel=1e-12)
        assert float(found.plain) == pytest.approx(4 - 1 + scale, rel=1e-12)

    def test_axes_without_variance_do_not_drown_the_others(self):
        rows, axes = self.copies(0.5, 1.0, runs=1, count=10)
        values = axes.eigenvalues.clone()
        values[20:] = 1e-9
        full, cut = self.of(rows, make_axes(values)), self.of(rows[..., :20], make_axes(values[:20]))
        assert float(full.even) < float(cut.even) + float(rows.var(1).sum())
        nothing = self.of(rows, make_axes(torch.zeros(40)))
        assert float(nothing.even) == pytest.approx(float(rows.var(1).sum()))
        assert self.of(torch.zeros(3, 40).double(), make_axes(torch.zeros(40))) == (0.0, 0.0)

    @pytest.mark.parametrize("fitting", ["crossfit", "predictable"])
    def test_the_stream_tells_them_of_the_rows_at_the_last_fit(self, fitting):
        rows, axes = self.copies(0.5, 1.2, runs=1, count=64)
        basis = FrechetBasis.from_eigen(torch.zeros(40).double(), axes.eigenvalues, torch.eye(40).double())
        stream = FrechetStream(basis, fitting=fitting)
        stream.extend(rows[0, :9])
        assert math.isnan(stream.summary().coarse_even)
        stream.extend(rows[0, 9:])
        expected = self.of(rows[0, : max(refit_counts(64))], axes)
        scores = torch.zeros(20).double()
        settled = FrechetStream(basis, fitting=fitting, settled=moments_from_rows(rows[0, :20]), settled_scores=scores)
        settled.extend(rows[0, 20:])
        for summary in (stream.summary(), settled.summary()):
            assert summary.coarse_even == pytest.approx(float(expected.even), rel=1e-9)
            assert summary.coarse_plain == pytest.approx(float(expected.plain), rel=1e-9)
