"""Two real processes: uneven shares, a rank without samples, and ranks that disagree."""

import pytest

from tests._ddp import RankError
from tests._make import softmax_probs
from tm_bandit import OptimisticIS

SHARES = {"uneven": (37, 5), "one idle": (42, 0), "the other idle": (0, 42)}


def draw(num=42, classes=12):
    return softmax_probs(num, classes)


def values(metric):
    return {
        "compute": float(metric.compute()),
        "estimate": float(metric.estimate()),
        "upper": float(metric.bounds().upper),
        "loss": metric.losses(["optimistic"])["optimistic"],
        "num_samples": metric.num_samples,
    }


def score_share(rank, world_size, bound, shares, kwargs):
    metric = OptimisticIS(feature="none", bound=bound, log_scale=True, **kwargs)
    start = sum(shares[:rank])
    if shares[rank]:
        metric.update_probs(draw()[start : start + shares[rank]])
    metric._update_count = max(metric._update_count, 1)  # torchmetrics warns about idle ranks
    first = values(metric)
    # What was gathered must be given back: a second look, and one after more samples, would count it twice.
    assert values(metric) == first
    return first


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES.keys())
@pytest.mark.parametrize("bound", ["paper", "none"])
def test_ranks_together_equal_one_process(ranks, bound, shares):
    expected = OptimisticIS(feature="none", bound=bound, log_scale=True)
    expected.update_probs(draw())
    single = values(expected)
    for rank, got in enumerate(ranks.run(score_share, bound, shares, {})):
        assert got.pop("num_samples") == shares[rank]
        assert got == pytest.approx({name: value for name, value in single.items() if name != "num_samples"}, rel=1e-12)


def test_without_sync_each_rank_keeps_to_itself(ranks):
    answers = ranks.run(score_share, "none", (30, 12), {"sync_on_compute": False})
    parts = draw()[:30], draw()[30:]
    for got, part in zip(answers, parts, strict=True):
        alone = OptimisticIS(feature="none", bound="none", log_scale=True)
        alone.update_probs(part)
        assert got["estimate"] == pytest.approx(float(alone.estimate()), rel=1e-12)


def disagree(rank, world_size):
    metric = OptimisticIS(feature="none", bound="none")
    metric.update_probs(draw(10, classes=5 + rank))
    metric.compute()


def test_different_numbers_of_classes_are_refused_on_all_ranks(ranks):
    with pytest.raises(RankError, match=r"same number of classes on all ranks, but got \[5, 6\]") as error:
        ranks.run(disagree)
    assert str(error.value).count("InputError: Expected") == 2


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES.keys())
def test_the_witness_bound_over_ranks(ranks, shares):
    """Each rank deals its own samples to folds, so the bound is not that of a single process, but close to it."""
    single = OptimisticIS(feature="none", log_scale=True)
    single.update_probs(draw())
    first, second = ranks.run(score_share, "witness", shares, {})
    assert {first.pop("num_samples"), second.pop("num_samples")} == set(shares)
    assert first == second
    assert first["estimate"] == pytest.approx(float(single.estimate()), rel=1e-12)
    assert first["compute"] > first["estimate"]
    assert first["compute"] == pytest.approx(float(single.compute()), rel=0.1)
    if 0 in shares:
        assert first["compute"] == pytest.approx(float(single.compute()), rel=1e-9)
