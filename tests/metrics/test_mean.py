"""OptimisticMean: the numbers, the interval, what torchmetrics expects, and bad input."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection, MetricTracker
from torchmetrics.image import PeakSignalNoiseRatio, TotalVariation
from torchmetrics.regression import MeanSquaredError

from benchmarks.intervals import LIMITED, RUNS, SCORES, VERY_SKEWED, follow_limited, follow_mean
from tests.metrics.test_collections import both, rows
from tm_bandit import ModelSelector, OptimisticMean
from tm_bandit.errors import InputError, NotReadyError
from tm_bandit.extractors import Score
from tm_bandit.functional import betting_lower_bound
from tm_bandit.metrics.base import LOSS_FIELDS, missing_parts


def scores(count, seed=0):
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(count=60, seed=0, batch=7, **kwargs):
    metric = OptimisticMean(**kwargs)
    for part in scores(count, seed).split(batch):
        metric.update_scores(part)
    return metric


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("bounded", [None, (0.0, 1.0), (-3, 5)])
def test_numbers(higher, bounded):
    metric, values = filled(higher_is_better=higher, bounded=bounded), scores(60)
    mean, error = float(values.mean()), float(values.std()) / math.sqrt(60)
    assert float(metric.estimate()) == pytest.approx(mean, rel=1e-14)
    assert [float(x) for x in metric.debiased()] == pytest.approx([mean, error], rel=1e-14)
    lower, upper = (float(end) for end in metric.bounds())
    assert lower < mean < upper
    assert float(metric.compute()) == (upper if higher else lower)
    losses = metric.losses(LOSS_FIELDS)
    assert losses["witness"] == losses["estimate"] == pytest.approx(-mean if higher else mean)
    assert losses["optimistic"] < losses["estimate"] < losses["pessimistic"]
    assert missing_parts(metric) == []
    assert metric.traits.higher_is_better is metric.higher_is_better is higher


def test_row_scores_are_losses_in_order():
    metric = filled(higher_is_better=True)
    assert torch.equal(metric.row_scores(), -scores(60))
    assert torch.equal(metric.row_scores(13), -scores(60)[:13])
    assert torch.equal(filled(higher_is_better=False).row_scores(60), scores(60))
    assert OptimisticMean().row_scores().shape == (0,)


def test_the_interval_turns_with_the_direction():
    up, down = filled(bounded=(0, 1)), filled(bounded=(0, 1), higher_is_better=False)
    assert [float(end) for end in up.bounds()] == pytest.approx([float(end) for end in down.bounds()], rel=1e-12)


def test_limits_of_another_unit_change_the_unit_alone():
    percent = OptimisticMean(bounded=(0, 100))
    percent.update_scores(100 * scores(60))
    assert [float(x) for x in percent.bounds()] == pytest.approx(
        [100 * float(x) for x in filled(bounded=(0, 1)).bounds()]
    )


@pytest.mark.parametrize("kind", SCORES)
def test_coverage_without_limits(kind):
    of, truth = SCORES[kind]
    values = of(torch.randn(6, RUNS, 400, generator=torch.Generator().manual_seed(5), dtype=torch.float64))
    # Asymptotic: with few of them, very skewed scores miss more often.
    assert follow_mean(values, truth, 50 if kind == VERY_SKEWED else 10).missed <= 0.05 * RUNS


@pytest.mark.parametrize("kind", LIMITED)
def test_coverage_within_limits_from_two_scores_on(kind):
    of, truth = LIMITED[kind]
    values = of(torch.rand(RUNS, 300, generator=torch.Generator().manual_seed(6), dtype=torch.float64))
    assert follow_limited(values, truth).missed <= 0.05 * RUNS
    for count in (2, 20, 300):  # these are the ends of the metric
        metric = OptimisticMean(bounded=(0, 1))
        metric.update_scores(values[0, :count])
        lower, upper = (float(betting_lower_bound(part[0, :count], 0.025)) for part in (values, 1 - values))
        assert [float(end) for end in metric.bounds()] == pytest.approx([lower, 1 - upper], abs=1e-9)


def test_few_or_equal_scores_say_nothing_without_limits():
    metric = filled(9)
    assert [float(end) for end in metric.bounds()] == [-math.inf, math.inf]
    assert not metric.burn_in_met
    metric = OptimisticMean()
    metric.update_scores(torch.ones(50))
    assert [float(end) for end in metric.bounds()] == [-math.inf, math.inf]
    assert float(metric.estimate()) == 1.0


def test_copies_states_and_merges_go_on():
    metric = filled(40, bounded=(0, 1))
    metric.persistent(True)
    loaded = OptimisticMean(bounded=(0, 1))
    loaded.persistent(True)
    loaded.load_state_dict(metric.state_dict())
    fork = metric.fork(delta=0.01)
    assert (fork.delta, fork.num_samples, fork.needs_conditions) == (0.01, 40, False)
    again = OptimisticMean(bounded=(0, 1))
    again.load_states(metric.metric_state)
    for twin in (loaded, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.clone(), again):
        twin.update_scores(scores(20, seed=1))
        assert twin.num_samples == 60
        assert float(twin.estimate()) == pytest.approx(float(torch.cat([scores(40), scores(20, 1)]).mean()), rel=1e-14)
    assert metric.num_samples == 40
    other = filled(20, seed=1, bounded=(0, 1))
    other.merge_state(metric)
    assert other.num_samples == 60
    metric.reset()
    assert metric.num_samples == 0


def test_settings_are_taken_at_once():
    metric = filled(50)
    wide = float(metric.compute())
    metric.bounded = (0, 1)
    tight = float(metric.compute())
    metric.delta = 0.5
    assert len({wide, tight, float(metric.compute())}) == 3
    metric.horizon = 10
    assert float(metric.compute()) == pytest.approx(tight)  # 0.5 / 10 is 0.05 again


def test_in_collections_and_trackers():
    brightness = lambda batch: batch.mean(1)  # noqa: E731
    collection = MetricCollection({**both(), "mean": OptimisticMean(brightness)})
    for seed in range(3):
        collection.update(rows(seed=seed))
    expected = torch.cat([rows(seed=seed) for seed in range(3)]).mean()
    assert float(collection["mean"].estimate()) == pytest.approx(float(expected), rel=1e-6)
    assert set(collection.compute()) == {"fid", "is", "mean"}
    tracker = MetricTracker(OptimisticMean(higher_is_better=False, bounded=(0, 1)))
    for factor in (1.0, 0.2, 0.5):
        tracker.increment()
        tracker.update(factor * scores(50))
    assert tracker.best_metric(return_step=True)[1] == 1


def test_forward_scores_one_batch():
    metric = OptimisticMean(bounded=(0, 1))
    first = metric(scores(30))
    assert float(first) == pytest.approx(float(filled(30, bounded=(0, 1)).compute()), rel=1e-12)
    metric(scores(30, seed=1))
    assert metric.num_samples == 60


def test_a_module_is_shared_and_not_saved():
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    metric = OptimisticMean(network)
    metric.update(torch.rand(5, 2, 2))
    metric.persistent(True)
    assert not list(metric.parameters())
    assert set(metric.state_dict()) == {"scores", "identity"}
    assert metric.clone()._score_of is metric._score_of


def share(rank, world_size, shares):
    metric = OptimisticMean(bounded=(0, 1))
    start = sum(shares[:rank])
    if shares[rank]:
        metric.update_scores(scores(42)[start : start + shares[rank]])
    metric._update_count = max(metric._update_count, 1)  # torchmetrics warns about idle ranks
    first = [float(metric.compute()), float(metric.estimate()), metric.losses(["pessimistic"])["pessimistic"]]
    assert first[0] == float(metric.compute())
    return first, metric.num_samples


@pytest.mark.parametrize("shares", [(37, 5), (42, 0), (0, 42)])
def test_ranks_together_equal_one_process(ranks, shares):
    single = filled(42, bounded=(0, 1))
    expected = [float(single.compute()), float(single.estimate()), single.losses(["pessimistic"])["pessimistic"]]
    for rank, (got, count) in enumerate(ranks.run(share, shares)):
        assert count == shares[rank]
        assert got == pytest.approx(expected, rel=1e-12)


def test_the_selector_finds_the_best_and_certifies_it():
    metric = OptimisticMean(lambda x: x.mean(1), bounded=(0, 1))
    arms = {f"p{k}": (lambda n, generator, k=k: (torch.rand(n, 2, generator=generator) + k) / 3) for k in range(3)}
    result = ModelSelector(metric, arms, stop="certified", budget=3000).run(progress=False)
    assert (result.best, result.status, result.higher_is_better) == ("p2", "won", True)


@pytest.mark.parametrize("higher", [True, False])
def test_within_limits_a_certificate_is_a_bet_on_the_differences(higher):
    pair = [filled(80, seed, higher_is_better=higher, bounded=(-1.0, 3.0), delta=0.1) for seed in (1, 2)]
    difference = (scores(50, 1) - scores(50, 2)) * (-1.0 if higher else 1.0)
    expected = 8.0 * float(betting_lower_bound(0.5 + difference / 8.0, 0.1)) - 4.0
    assert pair[0].certificate(pair[1], 50) == pytest.approx(expected)


def test_within_limits_no_certificate_overlooks_a_rare_score():
    """The better arm is better only in one sample of twenty; until one is seen, it looks worse in every single draw."""

    def better(count, generator):
        return (0.5 + 0.5 * (torch.rand(count, 1, generator=generator) < 0.05)).double()

    def worse(count, generator):
        return 0.51 + 0.001 * torch.rand(count, 1, generator=generator, dtype=torch.float64)

    for seed in range(10):
        metric = OptimisticMean(bounded=(0.0, 1.0))
        options = {"samples": "features", "stop": "certified", "budget": 400, "seed": seed}
        result = ModelSelector(metric, {"better": better, "worse": worse}, **options).run(progress=False)
        assert (result.status, result.best) != ("won", "worse")


@pytest.mark.parametrize("bounded", [None, (0.0, 1.0)])
def test_arms_that_passed_and_failed_alike_so_far_are_not_tied(bounded):
    """With the same noise, one arm passes in 19 of 20 draws and the other in 17: the first twenty are often equal."""

    def passes(share):
        return lambda count, generator: (torch.rand(count, 1, generator=generator) < share).double()

    for seed in range(10):
        selector = ModelSelector(
            OptimisticMean(bounded=bounded), {"a": passes(0.85), "b": passes(0.95)}, samples="features", seed=seed
        )
        result = selector.run(progress=False)
        assert result.best == "b"
        assert result.status in ("likely", "won")
        assert selector.twins() == {}


def test_the_direction_is_that_of_a_metric_that_says_so():
    assert OptimisticMean(PeakSignalNoiseRatio(data_range=1.0)).higher_is_better
    assert not OptimisticMean(MeanSquaredError()).higher_is_better
    assert not OptimisticMean(Score(TotalVariation())).traits.higher_is_better
    assert OptimisticMean(TotalVariation(), higher_is_better=True).higher_is_better
    assert OptimisticMean(lambda x: x).higher_is_better
    assert OptimisticMean().higher_is_better


def test_the_selector_hands_conditions_to_the_score():
    seen = []

    def score(samples, labels):
        seen.append(list(labels))
        return samples[:, 0] - torch.tensor([float(label) for label in labels])

    def arm(gain):
        return lambda n, generator, conditions: gain * torch.tensor([[float(c), 0.0] for c in conditions])

    arms = {"exact": arm(1.0), "too large": arm(1.5), "too small": arm(0.5)}
    metric = OptimisticMean(score, higher_is_better=False)
    with pytest.raises(InputError, match="Expected conditions=, which the score of OptimisticMean takes"):
        ModelSelector(metric, arms)
    selector = ModelSelector(metric, arms, conditions=[1, 2, 3], budget=60, batch_size=6)
    selector.run(progress=False)
    means = {name: float(arm.metric.estimate()) for name, arm in selector._arms.items()}
    assert means == pytest.approx({"exact": 0.0, "too large": 1.0, "too small": -1.0})
    assert sorted(seen[0]) == [1, 1, 2, 2, 3, 3]


def test_bad_scores_change_nothing():
    metric = filled(20, bounded=(0, 1))
    before = float(metric.compute())
    for bad, text in [
        (torch.tensor([0.5, math.nan]), "1 of 2 that are NaN or infinite"),
        (torch.tensor([0.5, 1.5]), r"between 0 and 1 because of `bounded`, but got some from 0.5 to 1.5"),
        (torch.rand(4, 2), r"shape \(n,\), but got \(4, 2\)"),
        (torch.rand(()), r"shape \(n,\), but got \(\)"),
    ]:
        with pytest.raises(InputError, match=text):
            metric.update_scores(bad)
    assert (metric.num_samples, float(metric.compute())) == (20, before)
    metric.update_scores([0.25, 0.75])
    assert metric.num_samples == 22


def test_a_score_without_its_conditions_is_refused():
    metric = OptimisticMean(lambda images, prompts: images.flatten(1).mean(1))
    assert metric.needs_conditions
    with pytest.raises(InputError, match="Expected `conditions`"):
        metric.update(torch.rand(2, 3, 4, 4))
    metric.update(torch.rand(2, 3, 4, 4), ["a cat", "a dog"])
    assert metric.num_samples == 2


@pytest.mark.parametrize("limits", [(1, 0), (0, 0), 3, (0, math.inf), (0, 1, 2), "ab"])
def test_wrong_limits(limits):
    with pytest.raises(InputError, match="Expected `bounded`"):
        OptimisticMean(bounded=limits)


def test_too_few_samples():
    with pytest.raises(NotReadyError, match="Expected at least two samples, but got 1; add more"):
        filled(1).estimate()
    with pytest.raises(InputError, match="Expected fields among"):
        filled(5).losses(["score"])


def test_limits_hold_the_scores_so_far():
    metric = OptimisticMean()
    metric.update_scores([5.0, 6.0])
    with pytest.raises(InputError, match="bounded"):
        metric.bounded = (0.0, 1.0)
    assert metric.bounded is None
    metric.bounded = (0.0, 6.0)
    metric.reset()
    metric.bounded = (0.0, 1.0)
    with pytest.raises(InputError, match="between 0 and 1"):
        metric.update_scores([5.0])
