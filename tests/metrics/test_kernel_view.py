"""What kernel values say about a squared MMD, against all pairs at once."""

import math

import pytest
import torch

from tests._make import normal_rows as draw
from tm_bandit import OptimisticKID, ReferenceStatistics
from tm_bandit.functional import GaussianKernel
from tm_bandit.metrics import kernel_view
from tm_bandit.metrics.base import LOSS_FIELDS
from tm_bandit.metrics.kernel_view import HajekBound, KernelStream, KernelView
from tm_bandit.metrics.row_log import RowLog

KERNEL = GaussianKernel(2.0)


def look(rows, real, batch=7, scale=1.0, level=0.05):
    log = RowLog(torch.split(rows, batch))
    own = KERNEL(real, real)
    within = float((own.sum() - own.trace()) / (len(real) * (len(real) - 1)))
    return KernelView(log, KERNEL, lambda: KERNEL(rows, real).mean(1), lambda: within, scale, level, "mixture")


def unbiased(rows, real):
    """The textbook's formula."""
    parts = []
    for block in (rows, real):
        values = KERNEL(block, block)
        parts.append((values.sum() - values.trace()) / (len(block) * (len(block) - 1)))
    return float(parts[0] + parts[1] - 2 * KERNEL(rows, real).mean())


def test_the_estimate_is_that_of_all_pairs_at_any_count():
    rows, real = draw(30, shift=0.5), draw(40, seed=1)
    view = look(rows, real, scale=3.0)
    assert view.estimate() == pytest.approx(3.0 * unbiased(rows, real), rel=1e-10)
    for count in (11, 25, 2):
        assert float(view.projection(count).mean()) == pytest.approx(3.0 * unbiased(rows[:count], real), rel=1e-9)
    assert view.debiased()[1] == pytest.approx(float(view.projection().std()) / math.sqrt(30))


def test_sums_are_remembered_for_the_last_counts_alone(monkeypatch):
    monkeypatch.setattr(kernel_view, "_REMEMBERED", 3)
    log, stream = RowLog([draw(20)]), KernelStream(KERNEL)
    for count in (4, 8, 12, 16, 20):
        stream.sums(log, count)
    assert list(stream._known) == [12, 16, 20]
    # An arm that joins late is compared at counts that the others passed long ago.
    again = KernelStream(KERNEL).sums(log, 4)
    assert torch.allclose(stream.sums(log, 4).totals, again.totals)
    assert list(stream._known) == [16, 20, 4]


def test_the_ends_enclose_the_distance_and_see_noise_of_second_order(monkeypatch):
    far = look(draw(300, shift=0.5), draw(40, seed=1))
    lower, upper = HajekBound().ends(far)
    assert lower < far.estimate() < upper
    assert HajekBound().centre(far) == far.debiased()
    monkeypatch.setattr(KernelView, "noise", lambda self: 0.0)
    narrow = HajekBound().ends(far)
    assert lower < narrow[0]
    assert narrow[1] < upper


def test_every_kernel_value_is_computed_once():
    seen = []

    class Counted(GaussianKernel):
        def __call__(self, first, second):
            seen.append(first.shape[0] * second.shape[0])
            return super().__call__(first, second)

    reference = ReferenceStatistics.from_features(draw(50, seed=100), keep_rows=True)
    metric = OptimisticKID("none", reference, kernel=Counted())
    for part in torch.split(draw(40), 10):
        metric.update_features(part)
        for _ in range(3):
            metric.losses(LOSS_FIELDS)
    # With the reference: 40 x 50. Among themselves, in batches of ten: 10 pairs of batches. Within the reference: once.
    # And the check of the reference and of each batch, by one value.
    assert sum(seen) == 40 * 50 + 10 * 100 + 50 * 50 + 5


def test_a_degenerate_statistic_is_said_to_be_so():
    rows = draw(4000, seed=100, dim=3)
    reference = ReferenceStatistics.from_features(rows, keep_rows=True)
    near, far = (OptimisticKID("none", reference, kernel="rbf", sigma=1.0) for _ in range(2))
    near.update_features(draw(100, dim=3))
    far.update_features(draw(100, dim=3) + 1)
    assert near.is_degenerate
    assert not far.is_degenerate
