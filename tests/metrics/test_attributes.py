"""Settings that are changed after a look give what a fresh metric gives; states that are assigned rewrite history."""

import weakref

import numpy as np
import pytest
import torch

from tests._make import POWER, all_values, class_probs, fed, filled, power_rows
from tm_bandit import OptimisticFID, OptimisticIS
from tm_bandit.errors import InputError

ROWS = power_rows(90)
PROBS = class_probs(90)

FRECHET = [
    ({}, {"fitting": "predictable"}),
    ({"fitting": "predictable"}, {"fitting": "crossfit"}),
    ({}, {"width": "lil"}),
    ({}, {"delta": 0.3}),
    ({}, {"horizon": 50}),
    ({"bound": "paper"}, {"delta": 0.3}),
    ({"bound": "paper"}, {"horizon": 50}),
    ({"bound": "paper"}, {"kappa": 2.0}),
    ({"bound": "paper"}, {"threshold": 0.7}),
    ({"bound": "paper", "threshold": 0.7}, {"threshold": 0.0}),
    ({"bound": "paper"}, {"paper_as_printed": True}),
    ({"bound": "authors"}, {"kappa": 2.0}),
    ({"bound": "bounded", "norm_bound": 90.0}, {"norm_bound": 60.0}),
    ({"bound": "paper"}, {"bound": "authors"}),
    ({"bound": "authors"}, {"bound": "naive"}),
    ({"bound": "none"}, {"bound": "paper"}),
]
INCEPTION = [
    ({}, {"fitting": "predictable"}),
    ({}, {"width": "lil"}),
    ({}, {"delta": 0.3}),
    ({}, {"horizon": 50}),
    ({}, {"log_scale": True}),
    ({}, {"bound": "paper"}),
    ({"bound": "paper"}, {"bound": "witness"}),
    ({"bound": "paper"}, {"delta": 0.3}),
    ({"bound": "naive"}, {"horizon": 50}),
]


def look(metric):
    return [float(metric.compute()), float(metric.estimate()), *all_values(metric)]


def change(metric, changes):
    for name, value in changes.items():
        setattr(metric, name, value)


@pytest.mark.parametrize(("options", "changes"), FRECHET, ids=str)
@pytest.mark.parametrize("count", [20, 90])  # fewer and more rows than dimensions
def test_a_changed_setting_is_as_good_as_a_new_metric(options, changes, count):
    metric = filled(ROWS[:count], 7, **options)
    before = look(metric)
    change(metric, changes)
    fresh = filled(ROWS[:count], 7, **{**options, **changes})
    assert look(metric) == pytest.approx(look(fresh), rel=1e-12)
    assert look(metric) != before
    # And it goes on like that.
    for twin in (metric, fresh):
        twin.update_features(power_rows(9, seed=5))
    assert look(metric) == pytest.approx(look(fresh), rel=1e-12)


@pytest.mark.parametrize(("options", "changes"), INCEPTION, ids=str)
def test_the_same_for_the_score(options, changes):
    metric = fed(OptimisticIS("none", **options), PROBS, 7)
    before = look(metric)
    change(metric, changes)
    fresh = fed(OptimisticIS("none", **{**options, **changes}), PROBS, 7)
    assert look(metric) == look(fresh) != before


@pytest.mark.parametrize("setting", ["delta", "horizon", "width", "fitting", "reference"])
def test_what_settled_scores_depend_on_stays(setting):
    metric = filled(ROWS, 7, max_rows=40)
    before = look(metric)
    values = {"delta": 0.3, "horizon": 9, "width": "lil", "fitting": "predictable"}
    with pytest.raises(InputError, match=f"`{setting}` to stay as it is once rows are settled"):
        metric.use_reference(None) if setting == "reference" else change(metric, {setting: values[setting]})
    change(metric, {"delta": metric.delta, "width": metric.width})  # the same again is no change
    assert look(metric) == before


@pytest.mark.parametrize(
    ("setting", "value"),
    [("delta", 1.5), ("horizon", 0), ("width", "normal"), ("fitting", None), ("kappa", -1), ("max_rows", 1.5)],
)
def test_a_bad_setting_changes_nothing(setting, value):
    metric = filled(ROWS[:20])
    before, kept = look(metric), getattr(metric, setting)
    with pytest.raises(InputError, match=f"`{setting}`"):
        setattr(metric, setting, value)
    assert getattr(metric, setting) == kept
    assert look(metric) == before


def test_a_bound_that_needs_other_rows_is_refused():
    metric = filled(ROWS[:20], bound="paper")
    with pytest.raises(InputError, match=r"same rows as 'paper'.*got 'witness'.*reset"):
        metric.bound = "witness"
    with pytest.raises(InputError, match="one of witness, paper"):
        metric.bound = "tight"
    assert metric.bound == "paper"
    metric.reset()
    metric.bound = "witness"
    assert look(fed(metric, ROWS[:20])) == look(filled(ROWS[:20]))


def test_settings_that_do_not_fit_together_are_named_at_the_next_look():
    metric = filled(ROWS[:20], bound="bounded", norm_bound=90.0)
    metric.norm_bound = None
    for ask in (metric.compute, metric.bounds, lambda: metric.losses(["pessimistic"])):
        with pytest.raises(InputError, match="Expected `norm_bound` with"):
            ask()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("whole", [np.int32, np.int64])
def test_numpy_numbers_become_python_numbers(kind, whole):
    fid = OptimisticFID(
        "none",
        bound="bounded",
        delta=kind(0.25),
        horizon=whole(4),
        kappa=kind(2),
        threshold=whole(0),
        norm_bound=kind(8),
        paper_as_printed=np.bool_(True),
        max_rows=whole(40),
        reset_real_features=np.bool_(False),
    )
    found = [fid.delta, fid.horizon, fid.kappa, fid.threshold, fid.norm_bound, fid.paper_as_printed, fid.max_rows]
    assert found == [0.25, 4, 2.0, 0.0, 8.0, True, 40]
    assert [type(value) for value in found] == [float, int, float, float, float, bool, int]
    score = OptimisticIS("none", delta=kind(0.25), horizon=whole(4), num_classes=whole(5))
    assert (type(score.delta), type(score.horizon), score.num_classes) == (float, int, 5)


def test_a_state_that_is_assigned_is_read_anew():
    metric, other = filled(ROWS[:40], 7), filled(power_rows(40, seed=3), 7)
    look(metric)
    metric.rows = other.rows
    metric._computed = None
    assert look(metric) == look(other)


def test_rows_are_the_state_itself():
    metric = filled(ROWS[:40], 7)
    assert metric.row_log.batches is metric.rows
    assert torch.equal(torch.cat(metric.rows), ROWS[:40])


def test_a_rewritten_history_lets_its_rows_go():
    """At once, without a garbage collection: what is derived from rows does not hold them."""
    metric, other = filled(ROWS[:40], 7), filled(ROWS[40:60])
    look(metric)
    row = weakref.ref(metric.rows[0])
    metric.load_states(other.metric_state)
    assert row() is None


@pytest.mark.parametrize("fitting", ["crossfit", "predictable"])
def test_rows_that_waited_for_a_reference_are_settled_as_if_it_had_been_there(fitting):
    metric = OptimisticFID("none", max_rows=40, fitting=fitting)
    fed(metric, ROWS[:75], 7)
    metric.use_reference(POWER)
    fed(metric, ROWS[75:])
    assert sum(len(batch) for batch in metric.rows) < 40
    assert look(metric) == pytest.approx(look(filled(ROWS, 7, max_rows=40, fitting=fitting)), rel=1e-9)
