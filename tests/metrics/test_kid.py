"""OptimisticKID: equal to others, valid intervals, what torchmetrics expects, and bad input."""

import copy
import math
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.image.kid import KernelInceptionDistance, poly_mmd
from torchmetrics.wrappers import FeatureShare

from benchmarks.intervals import KERNELS, LIMITED, RUNS, SCORES, VERY_SKEWED, follow_kid, similarity
from tests._inception import random_images, random_weights_file
from tests._make import normal_rows
from tests.metrics.test_collections import both, calls  # noqa: F401 - a fixture
from tm_bandit import ModelSelector, OptimisticFID, OptimisticIS, OptimisticKID, ReferenceStatistics
from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.functional import GaussianKernel
from tm_bandit.metrics.base import LOSS_FIELDS, missing_parts

DIM = 6
TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "intervals.md"


draw = partial(normal_rows, dim=DIM)


@pytest.fixture(scope="module")
def reference():
    return ReferenceStatistics.from_features(draw(50, seed=100), keep_rows=True)


def filled(reference, count=40, seed=0, batch=7, shift=0.5, **kwargs):
    metric = OptimisticKID("none", reference, **kwargs)
    for part in torch.split(draw(count, seed, shift), batch):
        metric.update_features(part)
    return metric


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance`")
def test_equals_torchmetrics(reference):
    theirs = KernelInceptionDistance(feature=nn.Identity(), subsets=1, subset_size=50)
    theirs.real_features, theirs.fake_features = [draw(50, seed=100)], [draw(50, shift=0.5)]
    theirs._update_count = 1
    ours = filled(reference, 50)
    assert float(ours.estimate()) == pytest.approx(float(theirs.compute()[0]), rel=1e-6)
    assert float(ours.debiased().value) == float(ours.estimate())
    other = filled(reference, 50, degree=2, gamma=0.7, coef=0.1)
    assert float(other.estimate()) == pytest.approx(
        float(poly_mmd(draw(50, seed=100), draw(50, shift=0.5), 2, 0.7, 0.1)), rel=1e-6
    )


@pytest.mark.parametrize(("kernel", "theirs"), [("polynomial", "poly"), ("rbf", "rbf")])
def test_equals_torch_fidelity_within_its_noise(kernel, theirs):
    from torch_fidelity.metric_kid import kid_features_to_metric

    fake, real = draw(500, shift=0.5), draw(500, seed=100)
    options = {"kid_kernel": theirs, "kid_kernel_rbf_sigma": 10.0, "kid_subsets": 200, "kid_subset_size": 100}
    found = kid_features_to_metric(fake, real, rng_seed=0, verbose=False, **options)
    ours = OptimisticKID("none", ReferenceStatistics.from_features(real, keep_rows=True), kernel)
    ours.update_features(fake)
    error = found["kernel_inception_distance_std"] / math.sqrt(200)
    assert float(ours.estimate()) == pytest.approx(found["kernel_inception_distance_mean"], abs=4 * error)


def test_cmmd_equals_numpy(reference):
    metric = OptimisticKID.cmmd("none", reference)
    metric.update_features(draw(40, shift=0.5))
    x, y = (
        z / np.linalg.norm(z, axis=1, keepdims=True) for z in (draw(40, shift=0.5).numpy(), draw(50, seed=100).numpy())
    )

    def kernel(a, b):
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / 200)

    within = [(kernel(z, z).sum() - len(z)) / (len(z) * (len(z) - 1)) for z in (x, y)]
    assert float(metric.estimate()) == pytest.approx(1000 * (sum(within) - 2 * kernel(x, y).mean()), rel=1e-6)


def test_traits(reference):
    traits = OptimisticKID("none", reference).traits
    assert (traits.centre, traits.guarantee, traits.reference) == ("unbiased", "anytime", "rows")
    assert traits.certifies_from == 200


def test_batches_do_not_matter(reference):
    values = [filled(reference, batch=batch).losses(LOSS_FIELDS) for batch in (1, 7, 40)]
    assert values[0] == pytest.approx(values[1], rel=1e-9)
    assert values[0] == pytest.approx(values[2], rel=1e-9)
    assert values[0]["optimistic"] < values[0]["estimate"] < values[0]["pessimistic"]


def test_row_scores_of_a_prefix_are_those_of_a_smaller_metric(reference):
    metric = filled(reference, 40)
    float(metric.compute())
    for count in (40, 21, 14, 30, 2):
        expected = filled(reference, 40)
        expected.reset()
        expected.update_features(draw(40, shift=0.5)[:count])
        assert torch.allclose(metric.row_scores(count), expected.row_scores(), rtol=1e-10, atol=1e-12)
        assert float(metric.row_scores(count).mean()) == pytest.approx(float(expected.estimate()), rel=1e-10)
    assert metric.losses(["stderr"])["stderr"] == pytest.approx(float(metric.row_scores().std()) / math.sqrt(40))


@pytest.mark.parametrize("name", [name for name, (_, *form) in KERNELS.items() if form])
def test_the_truth_of_the_benchmark_is_the_truth(name):
    kind, shift, spread = KERNELS[name]
    rows = draw(30, seed=100, dim=4)
    own, near = similarity(kind, shift, spread, rows)
    kernel = OptimisticKID("none", kernel=kind, sigma=2.0).kernel
    x, y = (spread * draw(4000, seed=seed, dim=4) + shift for seed in (1, 2))
    assert float(kernel(x, y).mean()) == pytest.approx(own, rel=0.05)
    assert float((kernel(x, rows).mean(0) - near).abs().max() / near.abs().max()) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_coverage_pull_by_pull(name):
    followed = follow_kid(name, runs=200, seed=1000, samples=140)
    assert followed.missed <= 0.05 * 200
    if name in ("far", "shifted"):
        assert followed.degenerate == 0
    if name.startswith("degenerate"):
        assert followed.degenerate >= 0.95 * 200


def test_the_kept_table_of_intervals():
    rows = [line.strip("| ").split(" | ") for line in TABLE.read_text().splitlines() if line.startswith("| ")][1:]
    assert {row[1] for row in rows} == {*KERNELS, *SCORES, *LIMITED}
    # The interval of means without limits is asymptotic.
    late = [int(missed) for metric, name, missed, *_ in rows if name != VERY_SKEWED or "50 to 400" in metric]
    assert len(late) == len(rows) - 1
    assert max(late) <= 0.05 * RUNS


def test_a_reference_that_comes_later_or_grows(reference):
    expected = filled(reference).losses(LOSS_FIELDS)
    late = OptimisticKID("none")
    late.update_features(draw(40, shift=0.5))
    with pytest.raises(NotReadyError, match="Expected at least two real samples, but got 0"):
        late.compute()
    late.use_reference(reference)
    assert late.losses(LOSS_FIELDS) == pytest.approx(expected, rel=1e-9)
    streamed = OptimisticKID("none")
    streamed.update_features(draw(50, seed=100)[:30], real=True)
    streamed.update_features(draw(40, shift=0.5))
    first = float(streamed.estimate())
    streamed.update_features(draw(50, seed=100)[30:], real=True)
    assert streamed.losses(LOSS_FIELDS) == pytest.approx(expected, rel=1e-9)
    assert first != pytest.approx(float(streamed.estimate()), rel=1e-3)
    fork = streamed.fork()
    fork.reset()
    fork.update_features(draw(40, shift=0.5))
    assert fork.losses(LOSS_FIELDS) == pytest.approx(expected, rel=1e-9)
    assert streamed.fork().reference is streamed.reference
    assert missing_parts(streamed) == []


def test_another_reference_changes_the_value(reference):
    metric = filled(reference)
    before = float(metric.compute())
    metric.use_reference(ReferenceStatistics.from_features(draw(30, seed=5), keep_rows=True))
    assert float(metric.compute()) != pytest.approx(before, rel=1e-3)
    metric.use_reference(reference)
    assert float(metric.compute()) == pytest.approx(before, rel=1e-12)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: m.clone(), lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_go_on_alone(reference, duplicate):
    metric = filled(reference)
    before = float(metric.compute())
    twin = duplicate(metric)
    assert float(twin.compute()) == pytest.approx(before, rel=1e-12)
    twin.update_features(draw(10, seed=3))
    assert (metric.num_samples, twin.num_samples) == (40, 50)
    assert float(metric.losses(["optimistic"])["optimistic"]) == pytest.approx(before, rel=1e-12)


def test_states_are_saved_and_rows_of_the_reference_are_not(reference):
    metric = filled(reference)
    metric.persistent(True)
    state = metric.state_dict()
    assert set(state) == {"rows", "similarity", "real_rows", "identity"}
    loaded = OptimisticKID("none", reference)
    loaded.persistent(True)
    loaded.load_state_dict(state)
    again = OptimisticKID("none", reference)
    again.load_states(metric.metric_state)
    for twin in (metric, loaded, again):
        twin.update_features(draw(10, seed=3))
    assert loaded.losses(LOSS_FIELDS) == pytest.approx(metric.losses(LOSS_FIELDS), rel=1e-9)
    assert again.losses(LOSS_FIELDS) == pytest.approx(metric.losses(LOSS_FIELDS), rel=1e-9)
    other = filled(reference, 10, seed=4)
    other.merge_state(metric)
    assert other.num_samples == 60
    arms = [metric.fork() for _ in range(20)]
    assert {id(arm._reference_rows().values) for arm in arms} == {id(reference.rows.values)}


def test_in_a_collection():
    real = ReferenceStatistics.from_features(draw(50, seed=100), keep_rows=True)
    network = nn.Identity()
    collection = MetricCollection(
        {**both(), "kid": OptimisticKID(network, real), "rbf": OptimisticKID(network, real, "rbf")}
    )
    for part in torch.split(draw(40, shift=0.5), 10):
        collection.update(part)
    values = collection.compute()
    assert float(values["kid"]) == pytest.approx(float(filled(real).compute()), rel=1e-9)
    assert len(collection.compute_groups) == 4
    metric = OptimisticKID("none", real)
    first = metric(draw(20))
    metric(draw(20, seed=1))
    assert float(first) == pytest.approx(float(filled(real, 20, shift=0).compute()), rel=1e-9)
    assert metric.num_samples == 40


def test_one_inception_pass_for_three(tmp_path_factory, calls):  # noqa: F811
    path = random_weights_file(tmp_path_factory.getbasetemp())
    metrics = {
        "fid": OptimisticFID(2048, bound="none", feature_extractor_weights_path=path),
        "kid": OptimisticKID(2048, bound="none", feature_extractor_weights_path=path),
        "is": OptimisticIS(bound="none", feature_extractor_weights_path=path),
    }
    MetricCollection(metrics).update(random_images(2))
    assert calls == [2]
    FeatureShare(metrics).update(random_images(1, seed=1))
    assert calls == [2, 1]
    assert {metric.num_samples for metric in metrics.values()} == {3}


def share(rank, world_size, shares, streamed):
    real, rows = draw(50, seed=100), draw(42, shift=0.5)
    metric = OptimisticKID("none", None if streamed else ReferenceStatistics.from_features(real, keep_rows=True))
    start = sum(shares[:rank])
    if streamed:
        metric.update_features(real[:20] if rank == 0 else real[20:], real=True)
    if shares[rank]:
        metric.update_features(rows[start : start + shares[rank]])
    metric._update_count = max(metric._update_count, 1)  # torchmetrics warns about idle ranks
    first = metric.losses(LOSS_FIELDS)
    assert metric.losses(LOSS_FIELDS) == first
    return first, metric.num_samples


@pytest.mark.parametrize("shares", [(37, 5), (42, 0), (0, 42)])
@pytest.mark.parametrize("streamed", [False, True])
def test_ranks_together_equal_one_process(ranks, reference, shares, streamed):
    expected = filled(reference, 42).losses(LOSS_FIELDS)
    for rank, (got, count) in enumerate(ranks.run(share, shares, streamed)):
        assert count == shares[rank]
        assert got == pytest.approx(expected, rel=1e-9)


def test_the_selector_finds_the_nearest(reference):
    arms = {
        f"shift {k}": (lambda n, generator, k=k: torch.randn(n, DIM, generator=generator) + 0.5 * k) for k in range(4)
    }
    metric = OptimisticKID("none", reference)
    result = ModelSelector(metric, arms, budget=800, batch_size=20, samples="features").run(progress=False)
    assert (result.best, result.higher_is_better) == ("shift 0", False)


def test_a_reference_without_rows_is_refused():
    bare = ReferenceStatistics(torch.zeros(2), torch.eye(2))
    with pytest.raises(InputError, match=r"Expected a reference with rows.*`keep_rows=True`, or with `tm-bandit stats"):
        OptimisticKID("none", bare)
    metric = OptimisticKID("none")
    with pytest.raises(InputError, match="Expected a reference with rows"):
        metric.use_reference(bare)
    metric.update_features(draw(3))
    assert metric.num_samples == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kernel": "linear"}, "Expected `kernel` to be one of polynomial, rbf, but got 'linear'"),
        ({"degree": 0}, "`degree`"),
        ({"gamma": 0}, "`gamma`"),
        ({"sigma": -1.0}, "`sigma`"),
        ({"scale": math.inf}, "`scale`"),
        ({"bound": "witness"}, "`bound` to be one of hajek, none"),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(InputError, match=text):
        OptimisticKID("none", **options)


def test_what_is_no_kernel(reference):
    with pytest.raises(InputError, match=r"Expected a kernel, but got the class GaussianKernel; give GaussianKernel\("):
        OptimisticKID("none", reference, GaussianKernel)
    for wrong, got in ((lambda x, y: 3.0, "a float"), (lambda x, y: (x * y).sum(1), r"shape \(1,\)")):
        with pytest.raises(InputError, match=rf"kernel to return a tensor of shape \(n, m\).* but got .*{got}"):
            OptimisticKID("none", reference, wrong)
    linear = OptimisticKID("none", reference, lambda x, y: x @ y.T)
    linear.update_features(draw(40, shift=0.5))
    same = filled(reference, 40, degree=1, gamma=1.0, coef=0.0)
    assert float(linear.estimate()) == pytest.approx(float(same.estimate()), rel=1e-9)


def test_unusable_rows_change_nothing(reference):
    metric = filled(reference, 10)
    for bad in (torch.full((2, DIM), math.nan), torch.zeros(3, DIM + 1), torch.zeros(3, DIM, dtype=torch.int64)):
        with pytest.raises(InputError):
            metric.update_features(bad)
    with pytest.raises(InputError, match="Expected only generated samples"):
        metric.update_features(draw(3), real=True)
    assert metric.num_samples == 10
    with pytest.raises(NotReadyError, match="at least two generated samples, but got 1"):
        filled(reference, 1).compute()
    assert [float(end) for end in filled(reference, 9).bounds()] == [-math.inf, math.inf]


@pytest.mark.parametrize("size", [1e30, 9e44])
def test_features_whose_kernel_is_not_finite_are_refused(size):
    metric = OptimisticKID("none", ReferenceStatistics.from_features(torch.randn(20, 3), keep_rows=True))
    large = torch.full((10, 3), size, dtype=torch.float64)
    with pytest.raises(InputError, match="scale the features down"):
        metric.update(large)
    assert metric.num_samples == 0
    with pytest.raises(InputError, match="scale the features down"):
        OptimisticKID("none", ReferenceStatistics.from_features(large * torch.rand(10, 1), keep_rows=True))
    rows = torch.full((10, 3), 5e11, dtype=torch.float64)
    rows[0] = torch.tensor([6e11, 0.0, 0.0])  # the largest entry, and not the longest row
    with pytest.raises(InputError, match="scale the features down"):
        metric.update(rows)
    metric.update(torch.full((10, 3), 1e11, dtype=torch.float64))
    assert all(map(math.isfinite, (*map(float, metric.debiased()), float(metric.compute()))))


@pytest.mark.parametrize("change", [{"scale": 3.0}, {"delta": 0.3}, {"horizon": 9}, {"width": "mixture"}], ids=str)
def test_a_changed_setting_is_as_good_as_a_new_metric(reference, change):
    metric, fresh = filled(reference), filled(reference, **change)
    before = metric.losses(LOSS_FIELDS)
    for name, value in change.items():
        setattr(metric, name, value)
    assert metric.losses(LOSS_FIELDS) == fresh.losses(LOSS_FIELDS) != before
    with pytest.raises(InputError, match="Expected `scale` to be a finite number above 0, but got 0"):
        metric.scale = 0
    with pytest.raises(AttributeError):
        metric.kernel = metric.kernel  # its values are states


def test_there_are_no_more_scores_than_samples(reference):
    metric = filled(reference, 40)
    assert len(metric.row_scores(100)) == 40
    metric.update_features(draw(60, seed=5))
    assert len(metric.row_scores(100)) == 100
