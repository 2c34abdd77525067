"""Spectra of growing rows against those of all rows at once."""

import numpy as np
import pytest
import torch

from tests._make import POWER, power_rows
from tm_bandit.functional import moments_from_rows
from tm_bandit.metrics.row_log import RowLog
from tm_bandit.metrics.sample_spectrum import GramPair, SampleSpectrum

DIM = POWER.num_features


def check(spectrum, log, rows):
    """Compare with singular values of the centred rows."""
    spectrum.read(log)
    rows, sigma = rows.numpy(), POWER.covariance.numpy()
    centred = rows - rows.mean(0)
    values, vectors = np.linalg.eigh(sigma)
    root = vectors * np.sqrt(np.clip(values, 0, None))
    own = np.linalg.svd(centred, compute_uv=False) ** 2
    assert spectrum.count == len(rows)
    assert float(spectrum.mean_gap_squared) == pytest.approx(((rows.mean(0) - POWER.mean.numpy()) ** 2).sum())
    assert float(spectrum.trace) == pytest.approx((centred**2).sum())
    cross = np.linalg.svd(centred @ root, compute_uv=False).sum()
    assert float(spectrum.root_trace(log)) == pytest.approx(cross, rel=1e-9)
    norms = spectrum.norms(log, len(rows) - 1)
    assert tuple(norms) == pytest.approx([own.sum(), np.linalg.norm(own), own.max()] / np.float64(len(rows) - 1))
    assert torch.allclose(spectrum.scatter(log), torch.from_numpy(centred.T @ centred))


@pytest.mark.parametrize("batch", [1, 5, 23])
@pytest.mark.parametrize("folds", [(), (40,), (10, 30, 31)], ids=str)
def test_rows_one_after_the_other(batch, folds):
    """Few rows, more than dimensions, and rows that are folded away after they were read."""
    rows, log, spectrum = power_rows(70), RowLog(), SampleSpectrum(POWER)
    for part in rows.split(batch):
        log.append(part)
        if log.length >= 2:
            check(spectrum, log, rows[: log.length])
        for count in folds:
            if log.gone < count <= log.length:
                log.fold(count - log.gone, moments_from_rows(rows[:count]))
                check(spectrum, log, rows[: log.length])


@pytest.mark.parametrize("seen", [0, 20, 50])
def test_rows_that_were_folded_away_unseen(seen):
    rows, spectrum = power_rows(70), SampleSpectrum(POWER)
    log = RowLog([rows[:seen]] if seen else [])
    spectrum.read(log)
    log.append(rows[seen:])
    log.fold(60, moments_from_rows(rows[:60]))
    check(spectrum, log, rows)


@pytest.mark.parametrize("looked", [False, True])
def test_a_fold_that_is_announced_costs_no_new_start(looked, monkeypatch):
    rows, log, spectrum = power_rows(80), RowLog(), SampleSpectrum(POWER)
    log.append(rows[:40])
    if looked:
        check(spectrum, log, rows[:40])
    forgotten = []
    monkeypatch.setattr(spectrum, "_forget", lambda: forgotten.append(log.length) or SampleSpectrum._forget(spectrum))
    log.append(rows[40:])
    spectrum.prepare_fold(log)
    log.fold(80, moments_from_rows(rows))
    assert bool(forgotten) is not looked
    check(spectrum, log, rows)


def test_both_gram_matrices_share_a_buffer():
    rows = power_rows(17)
    log, grams = RowLog(), GramPair(POWER.mean, POWER.covariance, plain=True)
    for part in rows.split(4):
        log.append(part)
        grams.read(log)
        grams.read(log)  # nothing new
    centred = rows - rows.mean(0)
    assert grams.size == 17
    assert torch.allclose(grams.weighted, centred @ POWER.covariance @ centred.T)
    assert torch.allclose(grams.plain, centred @ centred.T)
