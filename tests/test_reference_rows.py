"""Rows of real samples: kept, shared, thinned by a seed, and stored as clean-fid stores them."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch

from tm_bandit import ReferenceStatistics
from tm_bandit.errors import InputError
from tm_bandit.functional import PolynomialKernel
from tm_bandit.functional.kernels import mean_of_pairs
from tm_bandit.reference_rows import ReferenceRows, RowCollector


def draw(count=40, dim=3, seed=0):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def test_rows_are_kept_in_their_dtype_and_shared():
    rows = ReferenceRows(draw())
    assert torch.equal(rows.values, draw())
    assert rows.values.dtype == torch.float32
    assert copy.deepcopy(rows) is rows
    assert rows.to("cpu") is rows
    elsewhere = rows.to("meta")
    assert elsewhere is rows.to("meta")
    assert elsewhere.to("cpu") is rows
    assert torch.equal(pickle.loads(pickle.dumps(rows)).values, rows.values)


def test_the_mean_of_pairs_is_computed_once_per_kernel():
    rows, calls = ReferenceRows(draw()), []

    class Counted(PolynomialKernel):
        def __call__(self, first, second):
            calls.append(first.shape)
            return super().__call__(first, second)

    values = [rows.mean_of_pairs(Counted()) for _ in range(3)]
    assert values == [mean_of_pairs(draw(), PolynomialKernel())] * 3
    assert len(calls) == 1


@pytest.mark.parametrize("batch", [1, 7, 40, 1000])
def test_a_subset_depends_on_the_seed_alone(batch):
    rows = torch.arange(1000.0).unsqueeze(1)

    def subset(size, seed=0):
        collector = RowCollector(30, seed)
        for part in torch.split(rows, size):
            collector.add(part)
        assert collector.seen == 1000
        return collector.rows()[:, 0].tolist()

    assert subset(batch) == subset(250)
    assert len(set(subset(batch))) == 30
    assert subset(batch) == sorted(subset(batch)) != subset(batch, seed=1)


def test_every_row_has_the_same_chance():
    counts = torch.zeros(20)
    for seed in range(400):
        collector = RowCollector(5, seed)
        collector.add(torch.arange(20.0).unsqueeze(1))
        counts[collector.rows()[:, 0].long()] += 1
    assert bool(((counts - 100).abs() < 40).all())  # four and a half standard deviations


def test_statistics_with_rows(tmp_path):
    reference = ReferenceStatistics.from_features(torch.split(draw(), 7), "mine", keep_rows=True)
    assert torch.equal(reference.rows.values, draw())
    assert repr(reference).endswith("num_samples=40, extractor='mine', num_rows=40)")
    for name in ("reference.npz", "reference.pt"):
        loaded = ReferenceStatistics.load(reference.save(tmp_path / name))
        assert torch.equal(loaded.rows.values, draw())
        assert (loaded.num_samples, loaded.extractor) == (40, "mine")
    few = ReferenceStatistics.from_features(draw(), keep_rows=10, seed=3)
    assert (len(few.rows), few.num_samples) == (10, 40)
    assert torch.equal(few.covariance, ReferenceStatistics.from_features(draw()).covariance)
    assert ReferenceStatistics.from_features(draw()).rows is None
    assert ReferenceStatistics.from_images([draw().reshape(40, 3, 1)], torch.nn.Flatten(), keep_rows=5).rows is not None


def test_a_cap_that_nobody_chose_is_said(monkeypatch):
    monkeypatch.setattr("tm_bandit.reference.MOST_ROWS", 30)
    with pytest.warns(UserWarning, match=r"Kept a random 30 of 40 rows \(seed 3\); give keep_rows= as a number"):
        assert len(ReferenceStatistics.from_features(draw(), keep_rows=True, seed=3).rows) == 30
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(ReferenceStatistics.from_features(draw(30), keep_rows=True).rows) == 30
        assert len(ReferenceStatistics.from_features(draw(), keep_rows=10).rows) == 10


def test_clean_fids_files_hold_rows_alone(tmp_path):
    np.savez(tmp_path / "kid.npz", feats=draw().numpy())
    loaded = ReferenceStatistics.load(tmp_path / "kid.npz")
    expected = ReferenceStatistics.from_features(draw())
    assert torch.equal(loaded.rows.values, draw())
    assert torch.allclose(loaded.mean, expected.mean, rtol=1e-12)
    assert torch.allclose(loaded.covariance, expected.covariance, rtol=1e-10)
    assert loaded.num_samples == 40


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (torch.zeros(1, 3), r"at least two rows of real samples, of shape \(m, d\), but got shape \(1, 3\)"),
        (torch.zeros(5), r"but got shape \(5,\)"),
        (torch.full((4, 2), float("nan")), "Expected finite rows"),
    ],
)
def test_unusable_rows(rows, text):
    with pytest.raises(InputError, match=text):
        ReferenceRows(rows)


def test_rows_of_another_length():
    with pytest.raises(InputError, match="Expected rows of length 2, like the mean, but got 3"):
        ReferenceStatistics(torch.zeros(2), torch.eye(2), rows=draw())


@pytest.mark.parametrize("seed", [-1, 2.5, "x", None, float("-inf")])
def test_a_seed_is_a_number_of_any_size(seed):
    with pytest.raises(InputError, match="seed"):
        RowCollector(2, seed)
    RowCollector(2, 10**30)
