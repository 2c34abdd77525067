"""Witness scores of rows that arrive over time."""

import math

import pytest
import torch

from tests._make import Streamed, gaussian_rows, make_basis, random_covariance
from tm_bandit.functional import (
    FrechetBasis,
    frechet_distance,
    moments_from_rows,
)
from tm_bandit.functional.confidence import ScoreMoments, deviation
from tm_bandit.functional.crossfit import MIN_ROWS, fold_numbers
from tm_bandit.metrics.frechet_stream import WitnessSummary, upper_bound


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
        return Streamed(self.basis, rows, **options)

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
        one, two = Streamed(single), Streamed(double)
        one.extend(rows)
        two.extend(rows)
        assert one.summary().scores.mean == pytest.approx(two.summary().scores.mean, rel=1e-4)
        assert one.stream._grouped(one.log, 0, 5, 1)[1].dtype == torch.float32
        one.extend(1e60 * rows[:20])
        one.extend(rows[:20])
        one.summary()
        assert one.stream._grouped(one.log, 0, 5, 1)[1].dtype == torch.float64
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
        stream = Streamed(basis, alpha=0.025)
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
