"""What both metrics share: losses by name, real samples, one bound from a table."""

import copy

import pytest
import torch

from tests._make import POWER, class_probs, fed, power_rows
from tm_bandit import OptimisticFID, OptimisticIS
from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.metrics.base import LOSS_FIELDS


def both(**options):
    return [
        (OptimisticFID("none", POWER, **options), power_rows(40)),
        (OptimisticIS("none", **options), class_probs(40)),
    ]


def test_losses_come_by_name_in_the_order_asked_for():
    for metric, rows in both():
        assert metric.losses([]) == {}
        with pytest.raises(NotReadyError):
            metric.losses(["estimate"])
        fed(metric, rows)
        everything = metric.losses(LOSS_FIELDS)
        assert tuple(everything) == LOSS_FIELDS
        for name in LOSS_FIELDS:
            assert metric.losses([name]) == {name: everything[name]}
        assert list(metric.losses(("stderr", "debiased"))) == ["stderr", "debiased"]
        with pytest.raises(InputError, match=r"Expected fields among .*, but got \['best'\]"):
            metric.losses(["best"])


@pytest.mark.parametrize("bound", ["paper", "none"])
def test_without_a_witness_there_is_no_standard_error(bound):
    for metric, rows in both(bound=bound):
        losses = fed(metric, rows).losses(["witness", "stderr"])
        assert losses["stderr"] == 0.0
        assert losses["witness"] == pytest.approx(metric.losses(["estimate"])["estimate"], rel=0.1)


def test_real_samples_stay_if_they_shall():
    for made, rows in ((OptimisticFID, power_rows(40)), (OptimisticIS, class_probs(40))):
        for keep in (True, False):
            metric = made("none", reset_real_features=not keep)
            metric.update_rows(rows, real=True)
            metric.update_rows(rows[:20])
            metric.reset()
            assert metric.num_samples == 0
            count = metric.real_num if made is OptimisticIS else sum(metric.real_count, torch.zeros(1))
            assert float(count) == 40 * keep
            with pytest.raises(InputError, match="generated samples in `forward`"):
                metric(rows, real=True)


def test_the_burn_in_needs_samples_and_a_reference():
    (fid, rows), (score, probs) = both()
    assert not fid.burn_in_met
    assert fed(fid, rows[:10]).burn_in_met
    assert not fed(OptimisticFID("none"), rows).burn_in_met
    assert not fed(score, probs[:9]).burn_in_met
    assert fed(score, probs[9:10]).burn_in_met


def test_the_width_of_a_row_is_known_from_the_first_on():
    for metric, rows in ((OptimisticFID("none"), power_rows(3)), (OptimisticIS("none"), class_probs(3))):
        assert metric.row_width is None
        metric.update_rows(rows)
        assert metric.row_width == rows.shape[1]


def test_a_look_changes_no_state():
    for metric, rows in both():
        fed(metric, rows)
        before = copy.deepcopy(metric.metric_state)
        metric.losses(LOSS_FIELDS)
        assert str(metric.metric_state) == str(before)
