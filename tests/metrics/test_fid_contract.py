"""OptimisticFID as a torchmetrics metric: states, copies, collections, devices, inference mode."""

import copy
import pickle
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.wrappers import MetricTracker

from tests._make import fed, scaled_rows
from tm_bandit import OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit.errors import InputError, NotReadyError

DIM = 6


class Net(nn.Module):
    """Something with weights."""

    num_features = DIM

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, DIM)

    def forward(self, samples):
        return self.linear(samples)


draw = partial(scaled_rows, dim=DIM)


@pytest.fixture(scope="module")
def reference():
    return ReferenceStatistics.from_features(draw(1, 50))


def filled(reference, count, bound="authors", **kwargs):
    return fed(OptimisticFID("none", reference, bound=bound, **kwargs), draw(2, count), 3)


BOUNDS = pytest.mark.parametrize("bound", ["authors", "witness"])


@BOUNDS
@pytest.mark.parametrize("count", [5, 20, 90])
def test_restored_state_computes_without_an_update(reference, count, bound, tmp_path):
    metric = filled(reference, count, bound, max_rows=40)
    metric.persistent(True)
    torch.save(metric.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    other = OptimisticFID("none", reference, bound=bound, max_rows=40)
    other.persistent(True)
    other.load_state_dict(state)
    assert float(other.compute()) == pytest.approx(float(metric.compute()), rel=1e-9)
    for batch in draw(3, 40).split(4):
        for twin in (metric, other):
            twin.update_features(batch)
    assert float(other.compute()) == pytest.approx(float(metric.compute()), rel=1e-9)
    assert other.losses(["estimate", "pessimistic"]) == pytest.approx(
        metric.losses(["estimate", "pessimistic"]), rel=1e-9
    )


@BOUNDS
@pytest.mark.parametrize("count", [5, 30])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: m.clone(), lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_equal_and_independent(reference, count, duplicate, bound):
    metric = filled(reference, count, bound)
    before = float(metric.compute())
    twin = duplicate(metric)
    assert float(twin.compute()) == pytest.approx(before, rel=1e-9)
    twin.update_features(draw(3, 30) + 5)
    assert twin.num_samples == count + 30
    assert metric.num_samples == count
    metric._computed = None
    assert float(metric.compute()) == pytest.approx(before, rel=1e-12)
    assert float(twin.compute()) != pytest.approx(before, rel=1e-3)


def test_clones_share_network_and_reference(reference):
    net = Net()
    metric = OptimisticFID(net, reference, bound="authors")
    clones = [metric.clone() for _ in range(20)]
    assert {id(clone.extractor.network.module) for clone in clones} == {id(net)}
    assert {id(clone.reference) for clone in clones} == {id(reference)}


def test_network_is_no_part_of_the_state(reference):
    metric = OptimisticFID(Net(), reference, bound="authors")
    metric.update(torch.rand(5, 4))
    assert metric.state_dict() == {}
    assert list(metric.parameters()) == []
    metric.persistent(True)
    assert not any("linear" in key for key in metric.state_dict())


def test_a_loaded_state_is_not_written_to(reference):
    metric = filled(reference, 20)
    metric.persistent(True)
    state = metric.state_dict()
    before = copy.deepcopy(state)
    twins = [OptimisticFID("none", reference, bound="authors") for _ in range(2)]
    for seed, twin in enumerate(twins):
        twin.load_state_dict(dict(state))
        twin.update_features(draw(30 + seed, 4))
        twin.update_features(draw(40 + seed, 4))
    assert all(torch.equal(a, b) for key in before for a, b in zip(before[key], state[key], strict=True))
    metric.update_features(draw(30, 4))
    metric.update_features(draw(40, 4))
    assert float(twins[0].compute()) == pytest.approx(float(metric.compute()), rel=1e-12)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_states_can_be_kept_on_the_cpu(reference, on_cpu):
    metric = filled(reference, 20, compute_on_cpu=on_cpu)
    assert float(metric.compute()) == pytest.approx(float(filled(reference, 20).compute()), rel=1e-12)


def test_callers_may_reuse_their_buffers(reference):
    metric, buffer = OptimisticFID("none", reference, bound="authors"), torch.empty(4, DIM)
    for seed in range(3):
        buffer.copy_(draw(seed, 4))
        metric.update_features(buffer)
    fresh = OptimisticFID("none", reference, bound="authors")
    fresh.update_features(torch.cat([draw(seed, 4) for seed in range(3)]))
    assert float(metric.compute()) == pytest.approx(float(fresh.compute()), rel=1e-12)


@pytest.mark.parametrize("keep", [True, False])
def test_reset(keep):
    metric = OptimisticFID("none", bound="authors", reset_real_features=not keep)
    metric.update_features(draw(1, 20), real=True)
    metric.update_features(draw(2, 20))
    first = float(metric.compute())
    metric.reset()
    assert metric.num_samples == 0
    if not keep:
        with pytest.raises(NotReadyError, match="real samples, but got 0"):
            metric.estimate()
        metric.update_features(draw(1, 20), real=True)
    metric.update_features(draw(2, 20))
    assert float(metric.compute()) == pytest.approx(first, rel=1e-12)


def test_more_real_samples_change_the_value():
    metric = OptimisticFID("none", bound="none")
    metric.update_features(draw(1, 20), real=True)
    metric.update_features(draw(2, 20))
    first = float(metric.compute())
    metric.update_features(draw(3, 20) + 1, real=True)
    both = OptimisticFID("none", ReferenceStatistics.from_features(torch.cat([draw(1, 20), draw(3, 20) + 1])), "none")
    both.update_features(draw(2, 20))
    assert float(metric.compute()) == pytest.approx(float(both.compute()), rel=1e-12)
    assert float(metric.compute()) != pytest.approx(first, rel=1e-3)


@pytest.mark.parametrize("count", [4, 20])
def test_forward_returns_the_batch_and_accumulates(reference, count):
    metric, batches = OptimisticFID("none", reference, bound="authors"), draw(5, 2 * count).split(count)
    for batch in batches:
        alone = OptimisticFID("none", reference, bound="authors")
        alone.update_features(batch)
        assert float(metric(batch)) == pytest.approx(float(alone.compute()), rel=1e-12)
    whole = OptimisticFID("none", reference, bound="authors")
    whole.update_features(torch.cat(batches))
    assert metric.num_samples == 2 * count
    assert float(metric.compute()) == pytest.approx(float(whole.compute()), rel=1e-12)


def test_forward_uses_the_real_samples_so_far():
    metric = OptimisticFID("none", bound="none")
    metric.update_features(draw(1, 20), real=True)
    value = float(metric(draw(2, 9)))
    assert value == pytest.approx(float(metric.compute()), rel=1e-12)
    with pytest.raises(InputError, match="generated samples in `forward`"):
        metric(draw(1, 5), real=True)
    with pytest.raises(NotReadyError, match="but got 1"):
        metric(draw(1, 1))
    assert metric.num_samples == 9


def test_compute_groups_keep_metrics_apart(reference):
    others = ReferenceStatistics.from_features(draw(8, 50) + 1)
    collection = MetricCollection(
        {
            "a": OptimisticFID("none", reference, bound="authors"),
            "b": OptimisticFID("none", reference, bound="none"),
            "c": OptimisticFID("none", others, bound="none"),
        }
    )
    for batch in draw(2, 20).split(4):
        collection.update(batch)
    assert len(collection.compute_groups) == 3
    values = collection.compute()
    for name, bound, given in (("a", "authors", reference), ("b", "none", reference), ("c", "none", others)):
        single = OptimisticFID("none", given, bound=bound)
        single.update_features(draw(2, 20))
        assert float(values[name]) == pytest.approx(float(single.compute()), rel=1e-12)
    collection.reset()
    assert collection["a"].num_samples == 0


def test_tracker_finds_the_best_epoch(reference):
    tracker = MetricTracker(OptimisticFID("none", reference, bound="authors"), maximize=False)
    for shift in (2.0, 0.0, 5.0):
        tracker.increment()
        tracker.update(draw(2, 20) + shift)
    best, step = tracker.best_metric(return_step=True)
    assert step == 1
    assert best == pytest.approx(float(tracker.compute_all()[1]))


def test_dtype_conversions_never_touch_the_statistics(reference):
    exact, cast = filled(reference, 20), filled(reference, 20)
    nn.ModuleDict({"metric": cast}).to(torch.float16).half().double()
    assert float(cast.compute()) == float(exact.compute())
    cast.set_dtype(torch.float32)
    assert cast.compute().dtype == torch.float32
    assert cast.bounds().lower.dtype == torch.float32
    cast.set_dtype("float64")
    assert float(cast.compute()) == float(exact.compute())
    with pytest.raises(ValueError, match="floating dtype"):
        cast.set_dtype(torch.int64)


def test_rows_move_to_the_metric(reference):
    metric = filled(reference, 20).to("cpu")
    assert metric.compute().device == metric.device
    assert reference.to("cpu") is reference


@BOUNDS
@pytest.mark.parametrize("count", [4, 9])
def test_inference_mode_and_normal_mode_mix(reference, count, bound):
    """Validation loops run in inference mode; what they leave behind must still be usable afterwards."""
    metric = OptimisticFID("none", bound=bound)
    with torch.inference_mode():
        metric.update_features(draw(1, 20), real=True)
        metric.update_features(draw(2, count))
        metric.compute()
    metric.update_features(draw(3, 20), real=True)
    metric.update_features(draw(4, count))
    with torch.inference_mode():
        metric.update_features(draw(5, count))
        got = float(metric.compute())
    real = ReferenceStatistics.from_features(torch.cat([draw(1, 20), draw(3, 20)]))
    expected = OptimisticFID("none", real, bound=bound)
    expected.update_features(torch.cat([draw(seed, count) for seed in (2, 4, 5)]))
    assert got == pytest.approx(float(expected.compute()), rel=1e-9)


def test_merge_state(reference):
    one, two = filled(reference, 4), filled(reference, 20)
    one.compute()
    one.merge_state(two)
    whole = OptimisticFID("none", reference, bound="authors")
    whole.update_features(torch.cat([draw(2, 4), draw(2, 20)]))
    assert float(one.compute()) == pytest.approx(float(whole.compute()), rel=1e-12)
    one.update_features(draw(9, 3))
    whole.update_features(draw(9, 3))
    assert float(one.compute()) == pytest.approx(float(whole.compute()), rel=1e-12)


def test_a_merged_metric_goes_its_own_way(reference):
    fresh, other = OptimisticFID("none", reference, bound="authors"), filled(reference, 20)
    fresh.merge_state(other)
    before = float(other.compute())
    other.update_features(draw(9, 30) + 9)
    assert float(fresh.compute()) == before
    assert fresh.num_samples == 20


@pytest.mark.parametrize("count", [3, 20])
def test_metrics_loaded_from_one_state_are_independent(reference, count):
    metric = filled(reference, count)
    metric.persistent(True)
    state = metric.state_dict()
    twins = [OptimisticFID("none", reference, bound="authors") for _ in range(2)]
    for twin in twins:
        twin.load_state_dict(state)
    twins[0].update_features(draw(3, 2))
    twins[0].reset()
    assert twins[1].num_samples == count
    assert float(twins[1].compute()) == pytest.approx(float(metric.compute()), rel=1e-12)
    assert sum(len(rows) for rows in state["rows"]) == (count if count <= DIM else 0)


def test_a_reset_metric_holds_nothing(reference):
    metric = filled(reference, 5)
    metric.compute()
    first = weakref.ref(metric.rows[0])
    metric.reset()
    assert first() is None


@pytest.mark.parametrize("made", [OptimisticFID, OptimisticIS])
def test_a_sync_that_fails_leaves_the_states_alone(made):
    calls = []

    def lost(tensor, group=None):
        calls.append(tensor)
        if len(calls) == 3:
            raise ConnectionError("a rank is gone")
        return [tensor, tensor]

    metric = made("none", bound="none", dist_sync_fn=lost, distributed_available_fn=lambda: True)
    with pytest.raises(ConnectionError):
        metric.estimate()
    metric.sync_on_compute = metric._to_sync = False
    metric.update(torch.eye(4))  # an empty state would have a width of its own by now
    assert metric.num_samples == 4


@pytest.mark.parametrize("made", [OptimisticFID, OptimisticIS])
def test_samples_cannot_be_lost_in_a_synced_metric(made):
    metric = made("none", bound="none")
    metric.update(torch.eye(4))
    metric.sync(dist_sync_fn=lambda tensor, group=None: [tensor, tensor], distributed_available=lambda: True)
    assert metric.num_samples == 8
    for add in (metric.update, metric.update_rows, metric):
        with pytest.raises(TorchMetricsUserError, match="call `unsync` first"):
            add(torch.eye(4))
    metric.unsync()
    assert metric.num_samples == 4


@pytest.mark.parametrize("bound", ["paper", "none"])
def test_plot_shows_the_value_even_below_zero(reference, bound):
    metric = filled(reference, 20, bound)
    figure, axes = metric.plot()
    low, high = axes.get_ylim()
    assert low < float(metric.compute()) < high
    assert (float(metric.compute()) < 0) == (bound == "paper")
    figure.clear()


def test_empty_batches_are_fine(reference):
    metric = OptimisticFID("none", reference, bound="authors")
    metric.update_features(torch.empty(0, DIM))
    assert metric.num_samples == 0
    metric.update_features(draw(2, 5))
    metric.update_features(torch.empty(0, DIM), real=False)
    assert metric.num_samples == 5
