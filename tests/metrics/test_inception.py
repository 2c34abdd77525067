"""OptimisticIS: one metric, however its samples arrive and wherever its states go."""

import copy
import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests._inception import random_images, random_weights_file
from tests._make import softmax_probs
from tm_bandit import OptimisticIS
from tm_bandit.bounds.is_bounds import is_bound_authors, is_bound_naive, is_bound_paper
from tm_bandit.errors import InputError, NotReadyError, WeightsError
from tm_bandit.functional import class_sums, inception_score
from tm_bandit.metrics.base import LOSS_FIELDS

FORMULAS = {"paper": is_bound_paper, "authors": is_bound_authors, "naive": is_bound_naive}
PLAIN = [*FORMULAS, "none"]


def draw(num=60, classes=10, sharpness=3.0, seed=0):
    return softmax_probs(num, classes, sharpness, seed)


def make(bound="paper", **kwargs):
    return OptimisticIS(feature="none", bound=bound, **kwargs)


def filled(bound="paper", probs=None, **kwargs):
    metric = make(bound, **kwargs)
    metric.update_probs(draw() if probs is None else probs)
    return metric


@pytest.mark.parametrize("bound", FORMULAS)
def test_values_are_those_of_the_functional_core(bound):
    probs = draw(num=80, sharpness=1.0)
    metric = filled(bound, probs, log_scale=True, delta=0.1)
    expected = FORMULAS[bound](class_sums(probs), 0.1)
    torch.testing.assert_close(metric.compute(), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(metric.estimate(), inception_score(probs, log=True), rtol=1e-12, atol=0)
    assert metric.bounds() == (float("-inf"), metric.compute())
    assert metric.num_samples == 80
    assert metric.num_classes == 10


def test_horizon_divides_delta():
    probs = draw()
    assert torch.equal(
        filled("paper", probs, delta=0.05, horizon=100).compute(), filled("paper", probs, delta=0.05 / 100).compute()
    )


def test_no_bound_is_the_estimate():
    metric = filled("none")
    assert torch.equal(metric.compute(), metric.estimate())
    assert metric.bounds() == (float("-inf"), float("inf"))


@pytest.mark.parametrize("bound", PLAIN)
def test_scales(bound):
    plain, logs = filled(bound), filled(bound, log_scale=True)
    torch.testing.assert_close(plain.compute().log(), logs.compute())
    torch.testing.assert_close(plain.estimate().log(), logs.estimate())
    assert plain.score_from_loss(-1.0) == pytest.approx(2.718281828, rel=1e-9)
    assert logs.score_from_loss(-1.0) == 1.0
    assert plain.score_from_loss(float("inf")) == float("-inf")  # about this side nothing is known


@settings(max_examples=30, derandomize=True, deadline=None)
@given(
    bound=st.sampled_from(PLAIN),
    num=st.integers(2, 50),
    cuts=st.lists(st.integers(1, 49), max_size=6),
    seed=st.integers(0, 1000),
)
def test_batches_and_order_do_not_matter(bound, num, cuts, seed):
    probs = draw(num, classes=6, seed=seed)
    shuffled = probs[torch.randperm(num, generator=torch.Generator().manual_seed(seed))]
    whole, parts = filled(bound, probs, log_scale=True), make(bound, log_scale=True)
    edges = [0, *sorted({cut for cut in cuts if cut < num}), num]
    for start, stop in itertools.pairwise(edges):
        parts.update(shuffled[start:stop])
    # Variances of nearly equal values come out of sums, and a square root is taken of them: hence the absolute part.
    torch.testing.assert_close(parts.compute(), whole.compute(), rtol=1e-9, atol=1e-7)
    torch.testing.assert_close(parts.estimate(), whole.estimate(), rtol=1e-9, atol=1e-12)


def test_memory_does_not_grow_with_the_samples():
    metric = make("paper")
    sizes = set()
    for seed in range(5):
        metric.update(draw(100, classes=50, seed=seed))
        sizes.add(sum(getattr(metric, name).numel() for name in metric._defaults))
    assert len(sizes) == 1
    assert sizes.pop() < 20 * 50  # ten folds for the debiased score, and a few more


def test_losses_are_logarithms_with_the_sign_turned():
    metric = filled("paper")
    losses = metric.losses(["estimate", "optimistic", "pessimistic", "witness", "stderr"])
    assert losses["estimate"] == pytest.approx(-float(metric.estimate().log()))
    assert losses["optimistic"] == pytest.approx(-float(metric.compute().log()))
    assert losses["pessimistic"] == float("inf")
    assert losses["witness"] == losses["estimate"]
    assert losses["stderr"] == 0.0
    assert metric.score_from_loss(losses["estimate"]) == pytest.approx(float(metric.estimate()))
    assert set(metric.losses(["estimate"])) == {"estimate"}
    assert filled("none").losses(["optimistic"])["optimistic"] == pytest.approx(losses["estimate"])
    with pytest.raises(InputError, match="bogus"):
        metric.losses(["bogus"])
    assert set(losses) < set(LOSS_FIELDS)


def test_values_stay_finite_however_vacuous():
    metric = filled("naive", draw(2, classes=5000))
    assert torch.isfinite(metric.compute())
    assert torch.isfinite(metric.set_dtype(torch.float32).compute())
    assert metric.compute().dtype == torch.float32


@pytest.mark.parametrize("bound", FORMULAS)
def test_one_sample_is_not_enough(bound):
    metric = filled(bound, draw(1))
    assert not metric.burn_in_met
    assert metric.min_samples == 2
    with pytest.raises(NotReadyError, match="two samples, but got 1"):
        metric.compute()
    metric.update(draw(1, seed=1))
    assert metric.burn_in_met
    assert torch.isfinite(metric.compute())


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_nothing_yet():
    for bound in PLAIN:
        with pytest.raises(NotReadyError):
            make(bound).compute()
    with pytest.raises(NotReadyError, match="at least one sample"):
        make("none").estimate()
    empty = make("paper")
    empty.update(torch.zeros(0, 10))
    assert empty.num_samples == 0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.full((2, 10), 0.2), "sum to one"),
        (torch.full((2, 10), float("nan")), "in 2 of 2 rows"),
        (draw(2, classes=11), "10 classes, but got 11"),
        (draw(2)[0], r"shape \(10,\)"),
    ],
)
def test_refused_batches_change_nothing(bad, message):
    metric = filled("paper")
    before = float(metric.compute())
    for add in (metric.update, metric.update_probs, metric.update_rows, metric):
        with pytest.raises(InputError, match=message):
            add(bad)
    assert metric.num_samples == 60
    assert float(metric.compute()) == before
    metric.update(draw(5, seed=1))
    assert metric.num_samples == 65


def test_a_batch_too_small_for_forward_is_not_added():
    metric = filled("paper")
    with pytest.raises(NotReadyError):
        metric(draw(1))
    assert metric.num_samples == 60
    assert torch.equal(metric.compute(), filled("paper").compute())


def test_forward_returns_the_batch_value_and_accumulates():
    first, second = draw(30, seed=1), draw(20, seed=2)
    metric = make("paper")
    torch.testing.assert_close(metric(first), filled("paper", first).compute())
    torch.testing.assert_close(metric(second), filled("paper", second).compute())
    torch.testing.assert_close(metric.compute(), filled("paper", torch.cat([first, second])).compute())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"bound": "bogus"}, "witness, paper, authors, naive, none"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": float("nan")}, "delta"),
        ({"delta": "0.05"}, "delta"),
        ({"horizon": 0}, "horizon"),
        ({"horizon": 2.5}, "horizon"),
        ({"num_classes": -1}, "num_classes"),
        ({"num_classes": 2.5}, "num_classes"),
        ({"feature": "bogus"}, "bogus"),
        ({"normalize": "yes"}, "normalize"),
    ],
)
def test_refused_arguments(kwargs, message):
    with pytest.raises(InputError, match=message):
        OptimisticIS(**{"feature": "none", **kwargs})


def test_num_classes_is_checked_from_the_first_batch_on():
    metric = make(num_classes=7)
    with pytest.raises(InputError, match="7 classes, but got 10"):
        metric.update(draw())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: m.clone(), lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_go_their_own_way(duplicate):
    network = nn.Linear(4, 10)
    metric = OptimisticIS(feature=network, bound="paper")
    metric.update(torch.randn(20, 4, generator=torch.Generator().manual_seed(0)))
    other = duplicate(metric)
    assert torch.equal(other.compute(), metric.compute())
    other.update(torch.randn(20, 4, generator=torch.Generator().manual_seed(1)))
    assert (metric.num_samples, other.num_samples) == (20, 40)


def test_clones_share_the_network():
    network = nn.Linear(4, 10)
    metric = OptimisticIS(feature=network, bound="paper")
    clones = [metric.clone() for _ in range(20)]
    assert all(clone.extractor.network.module is network for clone in clones)


def test_the_network_is_no_part_of_the_metric():
    metric = OptimisticIS(feature=nn.Linear(4, 10), bound="paper")
    metric.persistent(True)
    metric.update(torch.randn(5, 4))
    assert list(metric.parameters()) == []
    assert not any("weight" in name for name in metric.state_dict())
    assert {"num", "prob", "prob_square", "entropy", "entropy_square"} <= set(metric.state_dict())


def test_restored_states_compute_without_an_update():
    metric = filled("paper")
    metric.persistent(True)
    restored = make("paper")
    restored.load_state_dict(metric.state_dict())
    assert torch.equal(restored.compute(), metric.compute())
    restored.update(draw(3, seed=4))
    assert (restored.num_samples, metric.num_samples) == (63, 60)


def test_reset():
    metric = filled("paper")
    metric.reset()
    assert metric.num_samples == 0
    metric.update(draw(30, classes=4))  # another classifier may follow
    assert metric.num_classes == 4


def test_half_precision_everywhere_keeps_the_statistics_exact():
    metric = filled("paper")
    expected = metric.compute()
    holder = nn.ModuleDict({"metric": metric}).half().to(torch.bfloat16)
    assert holder["metric"].prob.dtype == torch.float64
    assert torch.equal(holder["metric"].compute(), expected)
    metric.update(draw(10, seed=1).half())
    assert metric.estimate().dtype == torch.float64


def test_devices():
    """The meta device stands for an accelerator: states and network both move there."""
    network = nn.Linear(4, 10)
    metric = OptimisticIS(feature=network, bound="paper").to("meta")
    assert metric.device.type == "meta"
    assert metric.prob.device.type == "meta"
    assert network.weight.device.type == "meta"


def test_devices_without_float64_keep_the_statistics_on_the_cpu(monkeypatch):
    """MPS is not at hand, so the meta device plays a device without float64."""
    monkeypatch.setattr("tm_bandit._device._WITHOUT_FLOAT64", frozenset({"meta"}))
    network = nn.Linear(4, 10)
    metric = OptimisticIS(feature=network, bound="paper")
    metric.update_probs(draw())
    before = metric.compute()
    metric.to("meta")
    assert network.weight.device.type == "meta"
    assert metric.prob.device.type == "cpu"
    metric.update_probs(draw())
    assert torch.isfinite(before)
    assert metric.num_samples == 120


def test_a_pinned_network_stays_where_it_is():
    from tm_bandit.extractors import resolve

    network = nn.Linear(4, 10)
    metric = OptimisticIS(feature=resolve(network).to("cpu"), bound="paper").to("meta")
    assert network.weight.device.type == "cpu"
    assert metric.device.type == "meta"


def test_inference_mode_and_back():
    metric, plain = make("paper"), make("paper")
    with torch.inference_mode():
        metric.update(draw(30, seed=1))
    metric.update(draw(30, seed=2))
    for seed in (1, 2):
        plain.update(draw(30, seed=seed))
    assert torch.equal(metric.compute(), plain.compute())
    assert not metric.prob.is_inference()


def test_modules_return_logits_unless_told_otherwise():
    inputs = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    expected = inception_score(inputs.double().softmax(dim=1))
    logits = OptimisticIS(feature=nn.Identity(), bound="none")
    logits.update(inputs)
    torch.testing.assert_close(logits.compute(), expected)
    probs = OptimisticIS(feature=nn.Softmax(dim=1), bound="none", logits=False)
    probs.update(inputs)
    torch.testing.assert_close(probs.compute(), expected, rtol=1e-6, atol=0)


def test_logits_that_overflow_are_refused_by_row():
    metric = OptimisticIS(feature=nn.Identity(), bound="none")
    bad = torch.zeros(4, 3)
    bad[1, 0] = float("inf")
    with pytest.raises(InputError, match="in 1 of 4 rows"):
        metric.update(bad)
    metric.update(torch.tensor([[0.0, float("-inf")], [0.0, 1.0]]).repeat(1, 1))  # a masked class is in order
    assert metric.num_samples == 2


def test_plot():
    pytest.importorskip("matplotlib")
    figure, axes = filled("paper").plot()
    assert figure is not None
    assert axes.get_ylabel() is not None


@pytest.mark.filterwarnings("ignore:Metric `InceptionScore` will save all")
@pytest.mark.filterwarnings("ignore:std\\(\\)")
def test_the_inception_network_as_torchmetrics_has_it(tmp_path_factory):
    from torchmetrics.image.fid import NoTrainInceptionV3
    from torchmetrics.image.inception import InceptionScore

    path = random_weights_file(tmp_path_factory.getbasetemp())
    ours = OptimisticIS(bound="none", feature_extractor_weights_path=path)
    theirs = InceptionScore(feature=NoTrainInceptionV3("inception-v3-compat", ["logits_unbiased"], str(path)), splits=1)
    images = random_images(4)
    ours.update(images)
    theirs.update(images)
    torch.testing.assert_close(ours.compute().float(), theirs.compute()[0], rtol=1e-4, atol=1e-6)
    with pytest.raises(InputError, match="uint8"):
        ours.update(images.float())
    assert ours.num_samples == 4


def test_a_missing_file_of_weights(tmp_path):
    with pytest.raises(WeightsError, match=r"nowhere.pth does not exist"):
        OptimisticIS(feature_extractor_weights_path=tmp_path / "nowhere.pth")


def test_merging_states():
    first, second = draw(30, seed=1), draw(20, seed=2)
    metric, other = make("paper"), filled("paper", second)
    metric.merge_state(other)  # into one that has seen nothing
    assert torch.equal(metric.compute(), other.compute())
    metric = filled("paper", first)
    metric.merge_state(other)
    torch.testing.assert_close(metric.compute(), filled("paper", torch.cat([first, second])).compute())
    metric.merge_state(make("paper"))
    assert metric.num_samples == 50


def test_real_samples_are_no_generated_ones():
    metric = make("paper", reset_real_features=False)
    metric.update(draw(40, seed=3), real=True)
    metric.update_probs(draw(20, seed=4), real=True)
    assert metric.num_samples == 0
    metric.update(draw())
    assert torch.equal(metric.compute(), filled("paper").compute())
    metric.reset()
    assert (metric.num_samples, float(metric.real_num)) == (0, 60.0)
    with pytest.raises(InputError, match="real ones"):
        metric(draw(), real=True)
    forgetful = make("paper")
    forgetful.update(draw(), real=True)
    forgetful.reset()
    assert float(forgetful.real_num) == 0.0
    with pytest.raises(InputError, match="reset_real_features"):
        make("paper", reset_real_features=1)


def test_arms_are_compared_though_the_template_has_not_seen_a_class():
    template = make("witness")
    arms = [template.fork(0.01), template.fork(0.01)]
    for seed, arm in enumerate(arms):
        arm.update_probs(draw(30, seed=seed))
    told = make("witness", num_classes=10)
    copies = [told.fork(0.01), told.fork(0.01)]
    for seed, arm in enumerate(copies):
        arm.update_probs(draw(30, seed=seed))
    assert arms[0].paired(arms[1], 30) == copies[0].paired(copies[1], 30)
