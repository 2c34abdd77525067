"""Values of OptimisticFID: against torchmetrics, scipy, mpmath and plain numpy versions of the bounds."""

import gc
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics.image.fid import FrechetInceptionDistance

from tests._make import fed
from tests._reference import frechet as oracle
from tm_bandit import OptimisticFID, ReferenceStatistics
from tm_bandit.bounds.fd_bounds import covariance_norms, fd_burn_in
from tm_bandit.errors import NotReadyError
from tm_bandit.functional.confidence import ScoreMoments, deviation
from tm_bandit.functional.frechet_basis import FrechetBasis
from tm_bandit.functional.paired import paired_frechet_scores, safe_bias
from tm_bandit.metrics.fid import _last_turned

DIM = 12
CLASSIC_BOUNDS = ("paper", "authors", "bounded", "naive", "none")


class Identity(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.num_features = dim

    def forward(self, rows):
        return rows


def draw(seed, count, dim=DIM, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(dim, dim, generator=torch.Generator().manual_seed(99), dtype=torch.float64) / math.sqrt(dim)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64) @ mix + shift


def torchmetrics_value(real, fake, dtype=torch.float64):
    metric = FrechetInceptionDistance(feature=Identity(real.shape[1]))
    metric.update(real.to(dtype), real=True)
    metric.update(fake.to(dtype), real=False)
    return float(metric.compute())


def make(bound, reference, **kwargs):
    if bound == "bounded":
        kwargs.setdefault("norm_bound", 50.0)
    return OptimisticFID("none", reference, bound=bound, **kwargs)


@pytest.fixture(scope="module")
def reference():
    return ReferenceStatistics.from_features(draw(1, 60))


@pytest.mark.parametrize("count", [DIM + 1, 40, 300])
@pytest.mark.parametrize("given_reference", [True, False])
def test_estimate_equals_torchmetrics(count, given_reference):
    real, fake = draw(1, 80), draw(2, count, shift=0.4)
    metric = make("none", ReferenceStatistics.from_features(real) if given_reference else None)
    if not given_reference:
        for batch in real.split(7):
            metric.update_features(batch, real=True)
    fed(metric, fake, 9)
    assert float(metric.estimate()) == pytest.approx(torchmetrics_value(real, fake), rel=1e-9)
    assert float(metric.compute()) == float(metric.estimate())


@pytest.mark.parametrize("count", [2, 5, 11])
def test_fewer_samples_than_dimensions_are_exact(count):
    real, fake = draw(1, 80), draw(3, count, shift=0.4)
    reference = ReferenceStatistics.from_features(real)
    exact = oracle.exact_distance(fake.numpy(), reference.mean.numpy(), reference.covariance.numpy())
    ours = float(fed(make("none", reference), fake, 3).estimate())
    assert ours == pytest.approx(exact, rel=1e-12)
    assert abs(ours - exact) <= abs(torchmetrics_value(real, fake) - exact)


@pytest.mark.parametrize("decay", [1.0, 2.5, 4.0])
@pytest.mark.parametrize("rotated", [True, False])
def test_small_eigenvalues_count(decay, rotated):
    """Products of covariances span sixteen digits and more; what is small in them is no noise."""
    dim = 60
    scale = torch.arange(1.0, dim + 1, dtype=torch.float64) ** -decay
    mix = torch.linalg.qr(draw(17, dim, dim)).Q if rotated else torch.eye(dim, dtype=torch.float64)
    generator = torch.Generator().manual_seed(18)
    real, fake = (torch.randn(n, dim, generator=generator, dtype=torch.float64) * scale @ mix for n in (200, 100))
    metric = fed(make("none", ReferenceStatistics.from_features(real)), fake, 30)
    exact = oracle.distance_between_rows(real.numpy(), fake.numpy())
    assert float(metric.estimate()) == pytest.approx(exact, rel=1e-9)
    assert float(metric.estimate()) == pytest.approx(torchmetrics_value(real, fake), rel=1e-4)


@pytest.mark.parametrize("count", [5, DIM, 70])
def test_a_singular_reference_from_a_float32_file(count):
    real, fake = draw(10, 7), draw(11, count)
    exact = ReferenceStatistics.from_features(real)
    rounded = ReferenceStatistics(exact.mean, exact.covariance.float())
    expected = float(fed(make("none", exact), fake, 9).estimate())
    assert float(fed(make("none", rounded), fake, 9).estimate()) == pytest.approx(expected, rel=1e-6)


def test_noise_of_rows_far_away_does_not_count(reference):
    few = draw(19, 3).repeat(3, 1) + 1e4
    exact = oracle.exact_distance(few.numpy(), reference.mean.numpy(), reference.covariance.numpy())
    assert float(fed(make("none", reference), few, 2).estimate()) == pytest.approx(exact, rel=1e-14)


def test_identical_data_scores_zero_where_torchmetrics_goes_negative():
    rows = torch.randn(100, 256, generator=torch.Generator().manual_seed(0))
    metric = make("none", ReferenceStatistics.from_features(rows))
    metric.update_features(rows)
    assert 0.0 <= float(metric.estimate()) < 1e-9
    assert torchmetrics_value(rows, rows, torch.float32) < -1e-6


def test_a_large_common_offset_does_not_matter():
    rows = draw(4, 60).mul(1024).round().div(1024)
    offset = 1e7
    metric = make("none", ReferenceStatistics.from_features(rows + offset))
    fed(metric, rows + offset, 13)
    assert float(metric.estimate()) < 1e-6
    assert abs(torchmetrics_value(rows + offset, rows + offset)) > 1e-3


@pytest.mark.parametrize("count", [5, DIM, DIM + 1, 70])
@pytest.mark.parametrize("horizon", [None, 1000])
def test_bounds_equal_plain_formulas(reference, count, horizon):
    fake = draw(5, count, shift=0.3)
    rows, mu, sigma = fake.numpy(), reference.mean.numpy(), reference.covariance.numpy()
    delta = 0.05 / (horizon or 1)
    # Sixty digits are needed only while the product of covariances is singular, and they are slow.
    plug_in = (oracle.exact_distance if count <= DIM + 1 else oracle.distance)(rows, mu, sigma, ddof=0)
    bonuses = {
        ("paper", False): oracle.bonus_paper(rows, mu, sigma, delta, 0.8),
        ("paper", True): oracle.bonus_paper(rows, mu, sigma, delta, 0.8, printed=True),
        ("bounded", False): oracle.bonus_bounded(rows, mu, sigma, delta, 50.0, 0.8),
        ("bounded", True): oracle.bonus_bounded(rows, mu, sigma, delta, 50.0, 0.8, printed=True),
    }
    for (bound, printed), bonus in bonuses.items():
        metric = fed(make(bound, reference, horizon=horizon, kappa=0.8, paper_as_printed=printed), fake, 4)
        lower, upper = metric.bounds()
        assert float(metric.compute()) == float(lower) == pytest.approx(plug_in - bonus, rel=1e-9)
        assert float(upper) == pytest.approx(plug_in + bonus, rel=1e-9)


@pytest.mark.parametrize("count", [5, DIM, DIM + 1, 70])
@pytest.mark.parametrize(("bound", "threshold"), [("authors", 0.0), ("authors", 0.5), ("naive", 0.0)])
def test_the_authors_program_gives_the_same_scores(reference, count, bound, threshold):
    fake = draw(6, count, shift=0.3)
    expected = oracle.authors_score(
        fake.numpy(), reference.mean.numpy(), reference.covariance.numpy(), 0.05, 1.2, threshold, bound == "naive"
    )
    metric = fed(make(bound, reference, kappa=1.2, threshold=threshold), fake, 5)
    # Their general square root of a singular product is good to about 1e-7.
    assert float(metric.compute()) == pytest.approx(expected, rel=1e-5)


def test_thresholding_with_the_theorems_constants(reference):
    fake = draw(6, 30)
    cov = oracle.covariance(fake.numpy(), 0)
    limit = 0.7 * np.sqrt(2 * np.outer(np.diag(cov), np.diag(cov)) * np.log(DIM) / 30)
    norms = covariance_norms(torch.from_numpy(np.where(np.abs(cov) < limit, 0.0, cov)))
    plain, cut = (fed(make("paper", reference, threshold=t), fake, 30) for t in (0.0, 0.7))
    assert cut.burn_in_met == (fd_burn_in(norms, 0.05) <= 30)
    assert float(cut.compute()) != pytest.approx(float(plain.compute()), rel=1e-3)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(
    order=st.permutations(list(range(30))),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    count=st.integers(2, 30),
    bound=st.sampled_from(CLASSIC_BOUNDS),
)
def test_order_and_batch_sizes_do_not_matter(reference, order, sizes, count, bound):
    rows = draw(7, 30)[:count]
    whole, pieces = make(bound, reference), make(bound, reference)
    whole.update_features(rows)
    left, step = rows[[i for i in order if i < count]], 0
    while left.shape[0]:
        size = sizes[step % len(sizes)]
        pieces.update_features(left[:size])
        left, step = left[size:], step + 1
        if step % 2 and pieces.num_samples >= 2:
            pieces.compute()  # a look in between must not change anything
    assert pieces.num_samples == count
    for one, other in zip((whole.compute(), *whole.bounds()), (pieces.compute(), *pieces.bounds()), strict=True):
        assert float(other) == pytest.approx(float(one), rel=1e-9)
    assert float(pieces.estimate()) == pytest.approx(float(whole.estimate()), rel=1e-9)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(
    owners=st.lists(st.integers(0, 3), min_size=2, max_size=40),
    bound=st.sampled_from(CLASSIC_BOUNDS),
)
def test_the_number_of_ranks_does_not_matter(reference, owners, bound):
    rows = draw(7, len(owners))
    parts = [make(bound, reference) for _ in range(4)]
    for rank, part in enumerate(parts):
        part.update_features(rows[[i for i, owner in enumerate(owners) if owner == rank]])
    merged = parts[0]
    for part in parts[1:]:
        merged.merge_state(part)
    whole = make(bound, reference)
    whole.update_features(rows)
    assert merged.num_samples == len(owners)
    assert float(merged.compute()) == pytest.approx(float(whole.compute()), rel=1e-9)


def test_the_estimate_does_not_depend_on_what_the_bound_keeps(reference):
    """Few rows, more rows than dimensions, rows settled into moments: looked at all along the way."""
    plain, witness = make("none", reference), make("witness", reference, max_rows=40)
    for batch in draw(14, 120, shift=0.2).split(7):
        for metric in (plain, witness):
            metric.update_features(batch)
        assert witness.num_samples == plain.num_samples
        assert float(witness.estimate()) == pytest.approx(float(plain.estimate()), rel=1e-9)
    assert sum(batch.shape[0] for batch in witness.rows) < 60
    assert plain.rows == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rows_of_low_precision_are_taken_at_their_value(reference, dtype):
    rows = draw(8, 40).to(dtype)
    low, exact = make("authors", reference), make("authors", reference)
    fed(low, rows, 6)
    fed(exact, rows.double(), 11)
    assert float(low.compute()) == pytest.approx(float(exact.compute()), rel=1e-12)
    assert low.compute().dtype == torch.float64


def test_burn_in_is_reported(reference):
    metric = make("paper", reference)
    assert not metric.burn_in_met
    rows = draw(9, 200)
    seen = []
    for batch in rows.split(5):
        metric.update_features(batch)
        so_far = rows[: metric.num_samples].numpy()
        norms = covariance_norms(torch.from_numpy(oracle.covariance(so_far, 0)))
        assert metric.burn_in_met == (metric.num_samples >= fd_burn_in(norms, 0.05))
        seen.append(metric.burn_in_met)
    assert seen[0] is False
    assert seen[-1] is True
    naive = fed(make("naive", reference), rows[: 4 * DIM], 48)
    assert not naive.burn_in_met
    naive.update_features(rows[:10])
    assert naive.burn_in_met
    assert fed(make("none", reference), rows[:2], 2).burn_in_met
    assert not fed(make("paper", None), rows, 50).burn_in_met  # nothing to compare with yet


def test_without_a_bound_nothing_is_invented(reference):
    metric = fed(make("none", reference), draw(1, 9), 9)
    assert tuple(map(float, metric.bounds())) == (-math.inf, math.inf)


def test_a_singular_reference_works():
    dead = draw(10, 7)  # fewer real samples than dimensions
    dead[:, 3] = 0.25  # and a feature that never changes
    reference = ReferenceStatistics.from_features(dead)
    assert reference.rank == 6
    for count in (4, 50):
        fake = draw(11, count)
        metric = fed(make("authors", reference), fake, 3)
        expected = oracle.exact_distance(fake.numpy(), reference.mean.numpy(), reference.covariance.numpy())
        assert float(metric.estimate()) == pytest.approx(expected, rel=1e-7)
        assert math.isfinite(float(metric.compute()))
    itself = fed(make("none", reference), dead, 2)
    assert float(itself.estimate()) < 1e-6


@pytest.mark.parametrize("bound", CLASSIC_BOUNDS)
@pytest.mark.parametrize("count", [2, 30])
def test_samples_that_never_change(reference, bound, count):
    metric = make(bound, reference)
    metric.update_features(torch.ones(count, DIM))
    expected = float((1 - reference.mean).square().sum() + reference.trace)
    assert float(metric.estimate()) == pytest.approx(expected, rel=1e-12)
    assert math.isfinite(float(metric.compute()))


@pytest.mark.parametrize("bound", [*CLASSIC_BOUNDS, "witness"])
@pytest.mark.parametrize("scale", [1e-40, 1e20, 1e40])
def test_a_generator_gone_wild_still_has_a_score(reference, bound, scale):
    metric = make(bound, reference, **({"norm_bound": 1e45} if bound == "bounded" else {}))
    for count in (5, 30):
        metric.update_features(draw(15, count) * scale)
        values = [*metric.bounds(), metric.compute(), metric.estimate(), *metric.debiased()]
        assert not any(math.isnan(float(value)) for value in values)
        assert float(metric.estimate()) >= 0


@pytest.mark.parametrize("bound", [*CLASSIC_BOUNDS, "witness"])
@pytest.mark.parametrize("count", [2, 3, 9, 12])
def test_one_feature_is_enough(bound, count):
    reference = ReferenceStatistics.from_features(draw(1, 30, dim=1))
    metric = make(bound, reference)
    metric.update_features(draw(2, count, dim=1))
    values = [*metric.bounds(), metric.compute(), metric.estimate(), *metric.debiased()]
    assert not any(math.isnan(float(value)) for value in values)


def test_losses_are_the_values_and_nothing_else_is_computed(reference):
    metric = fed(make("authors", reference), draw(12, 9), 3)
    lower, upper = metric.bounds()
    losses = metric.losses(["optimistic", "pessimistic", "estimate", "witness", "stderr"])
    assert losses == {
        "optimistic": float(lower),
        "pessimistic": float(upper),
        "estimate": float(metric.estimate()),
        "witness": float(metric.estimate()),
        "stderr": 0.0,
    }
    assert metric.losses(["estimate"]) == {"estimate": float(metric.estimate())}
    assert metric.losses([]) == {}
    assert metric.score_from_loss(3.5) == 3.5


class Spy(TorchDispatchMode):
    """Records the calls of eigenvalue routines and the largest square matrix that any operation made.

    Args:
        shared: a matrix that all arms share; looking at it makes nothing.
    """

    def __init__(self, shared):
        super().__init__()
        self.shared = shared.data_ptr()
        self.largest, self.decomposed = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            square = isinstance(tensor, torch.Tensor) and tensor.ndim >= 2 and tensor.shape[-1] == tensor.shape[-2]
            if square and tensor.data_ptr() != self.shared:
                self.largest = max(self.largest, tensor.shape[-1])
        if "linalg" in str(func) and ("eig" in str(func) or "svd" in str(func)):
            self.decomposed.append(args[0].shape[-1])
        return out


@pytest.mark.parametrize("bound", ["authors", "paper", "none"])
def test_nothing_of_size_d_is_made_while_there_are_few_samples(bound, monkeypatch):
    decompose = scipy.linalg.eigh

    def spied(matrix, **options):  # large matrices go to scipy, where torch's dispatcher does not see them
        spy.decomposed.append(matrix.shape[-1])
        return decompose(matrix, **options)

    monkeypatch.setattr("scipy.linalg.eigh", spied)
    dim = 150
    reference = ReferenceStatistics.from_features(draw(1, 200, dim))
    reference.trace_root.item()
    metric = make(bound, reference)
    for batch in draw(2, 120, dim).split(20):
        with Spy(reference.covariance) as spy:
            metric.update_features(batch)
            metric.compute()
            metric.bounds()
            metric.losses(["optimistic", "pessimistic", "estimate", "witness"])
        count = metric.num_samples
        assert spy.largest <= math.ceil(1.125 * count) < dim  # buffers have some room to grow
        # One spectrum per pull for the distance, at most one more for the spectral norm; all methods share them.
        assert 1 <= len(spy.decomposed) <= 2
        assert set(spy.decomposed) == {count}
    metric.update_features(draw(4, 31, dim))
    for batch in draw(3, 40, dim).split(20):
        metric.update_features(batch)
        with Spy(reference.covariance) as spy:
            metric.compute()
            metric.estimate()
        assert spy.decomposed == [dim]


def test_two_samples_and_a_reference_are_needed(reference):
    metric = make("authors", reference)
    for ask in (metric.estimate, metric.bounds, lambda: metric.losses(["estimate"])):
        with pytest.raises(NotReadyError, match="at least two generated samples, but got 0"):
            ask()
    metric.update_features(draw(1, 1))
    with pytest.raises(NotReadyError, match="but got 1"):
        metric.compute()
    metric.update_features(draw(2, 1))
    assert math.isfinite(float(metric.compute()))
    alone = make("none", None)
    alone.update_features(draw(1, 5))
    with pytest.raises(NotReadyError, match="real samples, but got 0"):
        alone.compute()
    alone.update_features(draw(1, 1), real=True)
    with pytest.raises(NotReadyError, match="real samples, but got 1"):
        alone.compute()


def test_a_leader_that_meets_its_rivals_is_turned_once_and_nothing_stale_is_used(reference, monkeypatch):
    turned = []
    rotate = FrechetBasis.rotate
    monkeypatch.setattr(FrechetBasis, "rotate", lambda basis, rows: turned.append(rows) or rotate(basis, rows))
    rows = {name: draw(5, 60) * (1.0 + 0.1 * at) + 0.1 * at for at, name in enumerate("abcd")}

    def arms(reference=reference):
        return {name: fed(make("witness", reference), part, 20) for name, part in rows.items()}

    def alone(one, two, count, reference=reference):
        fresh = arms(reference)
        return fresh[one].paired(fresh[two], count)

    kept = arms()
    for count in (30, 60):
        for name in "bcd":
            assert kept["a"].paired(kept[name], count) == alone("a", name, count)
            assert len(_last_turned) <= 2
    for metric in kept.values():
        metric.losses(metric.loss_fields)
    kept["a"].paired(kept["b"], 30)
    turned.clear()
    met = [kept["a"].paired(kept[name], 60) for name in "bcd"]
    assert sum(torch.equal(seen, rows["a"]) for seen in turned) == 1
    assert met == [alone("a", name, 60) for name in "bcd"]
    other = ReferenceStatistics.from_features(draw(3, 90))
    moved = arms(other)
    assert moved["a"].paired(moved["b"], 60) == alone("a", "b", 60, other) != alone("a", "b", 60)
    kept["a"].reset()
    fed(kept["a"], rows["c"], 60)
    assert kept["a"].paired(kept["d"], 60) == alone("c", "d", 60)
    del kept, moved, metric
    gc.collect()
    assert not _last_turned


@pytest.mark.parametrize(("dim", "shared"), [(1, 0.0), (2, 0.99)])
def test_a_perfect_arm_is_not_certified_to_be_worse(dim, shared):
    """Next to the reference, a distance less its bias is below zero in every other run, and that proves nothing."""
    reference, wrong = ReferenceStatistics(torch.zeros(dim), torch.eye(dim), 10**6), 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        one, two = (torch.randn(1_500, dim, generator=generator, dtype=torch.float64) for _ in range(2))
        perfect, rival = (OptimisticFID("none", reference, delta=0.05).fork() for _ in range(2))
        perfect.update_rows(one)
        rival.update_rows(1.01 * (shared * one + (1 - shared**2) ** 0.5 * two))
        wrong += perfect.certificate(rival, 1_500) > 0.0
    assert wrong == 0


@pytest.mark.parametrize("count", [900, 1_200])
def test_a_certificate_put_together_by_hand(count):
    """Scores by each arm's own witnesses, their width, the plain distance, and from 1,000 rows on less of its bias."""
    reference = ReferenceStatistics(torch.zeros(4), torch.diag(torch.tensor([2.0, 1.0, 0.5, 0.1])), 10**6)
    noise = torch.randn(count, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    worse, better = (OptimisticFID("none", reference, delta=0.05).fork() for _ in range(2))
    worse.update_rows(1.3 * noise + 0.4)
    better.update_rows(1.1 * noise)
    basis = reference.witness_basis
    rows = [basis.rotate(1.3 * noise + 0.4), basis.rotate(1.1 * noise)]
    one, two = (paired_frechet_scores([part], basis, common=False).scores[0] for part in rows)
    spread, root = torch.cov((1.1 * noise).T, correction=0), reference.covariance.double().sqrt()
    cross = scipy.linalg.sqrtm((root @ spread @ root).numpy()).trace().real
    plain = float((1.1 * noise).mean(0).square().sum() + spread.trace() + reference.covariance.trace()) - 2 * cross
    width = deviation(ScoreMoments.of(one - two), 0.05, upper=False)
    expected = float(one.mean()) - (plain - safe_bias(rows[1], basis)) - width
    assert worse.certificate(better, count) == pytest.approx(expected, rel=1e-6)
    assert (safe_bias(rows[1], basis) > 0.0) == (count > 1_000)
