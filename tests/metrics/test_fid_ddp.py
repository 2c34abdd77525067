"""OptimisticFID over two real processes: the result is that of one process that saw everything."""

from functools import partial

import pytest
import torch

from tests._ddp import RankPool
from tests._make import POWER, class_probs, power_rows, power_truth, scaled_rows
from tm_bandit import OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit.errors import NotReadyError
from tm_bandit.metrics.base import LOSS_FIELDS

DIM = 8


draw = partial(scaled_rows, dim=DIM)


def statistics():
    return ReferenceStatistics.from_features(draw(1, 40))


def values(metric):
    interval = metric.bounds()
    return {
        "compute": float(metric.compute()),
        "estimate": float(metric.estimate()),
        "lower": float(interval.lower),
        "upper": float(interval.upper),
        **metric.losses(["optimistic", "estimate"]),
    }


def observe(rank, world_size, shares, bound, reference):
    """Feed this rank's share of the rows, ask for everything twice, then go on."""
    metric = OptimisticFID("none", statistics() if reference else None, bound=bound)
    start = sum(shares[:rank])
    mine = draw(2, sum(shares))[start : start + shares[rank]]
    if not reference:
        metric.update_features(draw(1, 40)[rank::world_size], real=True)
    for batch in mine.split(3):
        metric.update_features(batch)
    # A rank without samples is told nothing at all, and compute would warn about that.
    metric._update_count = max(metric._update_count, 1)
    first, local = values(metric), metric.num_samples
    metric.update_features(draw(10 + rank, 3))
    second = values(metric)
    return first, second, local, metric.num_samples


@pytest.mark.parametrize("shares", [(4, 2), (6, 0), (0, 5), (30, 3), (3, 30), (20, 25), (40, 0)], ids=str)
@pytest.mark.parametrize("reference", [True, False], ids=["given", "fed"])
def test_two_processes_equal_one(ranks, shares, reference):
    first, second, local, after = zip(*ranks.run(observe, shares, "authors", reference), strict=True)
    alone = OptimisticFID("none", statistics() if reference else None, bound="authors")
    if not reference:
        alone.update_features(draw(1, 40), real=True)
    alone.update_features(draw(2, sum(shares)))
    expected = values(alone)
    alone.update_features(torch.cat([draw(10, 3), draw(11, 3)]))
    expected_second = values(alone)
    for rank in range(2):
        assert first[rank] == pytest.approx(expected, rel=1e-9)
        assert second[rank] == pytest.approx(expected_second, rel=1e-9)
    # The sync is undone: each rank goes on with its own samples.
    assert local == shares
    assert after == tuple(share + 3 for share in shares)


@pytest.mark.parametrize("shares", [(40, 25), (0, 30), (30, 0), (3, 2)], ids=str)
def test_the_default_bound_over_two_processes(ranks, shares):
    """Witnesses depend on the order of rows; ranks are read one after the other."""
    alone = OptimisticFID("none", statistics())
    alone.update_features(draw(2, sum(shares)))
    for first, _, local, after in ranks.run(observe, shares, "witness", True):
        assert first == pytest.approx(values(alone), rel=1e-9)
        assert after == local + 3


def observe_mixed(rank, world_size, dtypes):
    metric = OptimisticFID("none", statistics(), bound="none")
    metric.update_features(draw(2, 6)[3 * rank : 3 * rank + 3].to(dtypes[rank]))
    return float(metric.compute())


@pytest.mark.parametrize("other", [torch.float64, torch.bfloat16], ids=str)
def test_ranks_may_have_rows_of_different_precision(ranks, other):
    alone = OptimisticFID("none", statistics(), bound="none")
    alone.update_features(torch.cat([draw(2, 6)[:3].to(other).double(), draw(2, 6)[3:].half().double()]))
    assert ranks.run(observe_mixed, (other, torch.float16)) == pytest.approx([float(alone.compute())] * 2, rel=1e-9)


def observe_nothing(rank, world_size, made):
    metric = made("none", bound="none")
    metric._update_count = 1
    with pytest.raises(NotReadyError) as error:
        metric.compute()
    metric.update(torch.eye(4 + rank))
    return str(error.value), metric.num_samples


@pytest.mark.parametrize("made", [OptimisticFID, OptimisticIS])
def test_no_rank_has_samples(ranks, made):
    assert [number for _, number in ranks.run(observe_nothing, made)] == [4, 5]


def observe_local(rank, world_size):
    metric = OptimisticFID("none", statistics(), bound="authors", sync_on_compute=False)
    metric.update_features(draw(rank, 5 + rank))
    return values(metric)


def test_sync_can_be_switched_off(ranks):
    answers = ranks.run(observe_local)
    for rank, answer in enumerate(answers):
        alone = OptimisticFID("none", statistics(), bound="authors")
        alone.update_features(draw(rank, 5 + rank))
        assert answer == pytest.approx(values(alone), rel=1e-9)


def observe_failure(rank, world_size):
    """Ask too early; what was collected must survive the error, and no rank may stay synced."""
    metric = OptimisticFID("none", statistics(), bound="authors")
    if rank == 0:
        metric.update_features(draw(3, 1))
    metric._update_count = 1
    with pytest.raises(NotReadyError) as first:
        metric.compute()
    with pytest.raises(NotReadyError) as second:
        metric.estimate()
    errors = [str(first.value), str(second.value)]
    before = metric.num_samples
    metric.update_features(draw(4 + rank, 4))
    return errors, before, float(metric.compute())


def test_an_early_question_leaves_the_states_alone(ranks):
    (errors, mine, value), (_, theirs, other) = ranks.run(observe_failure)
    assert (mine, theirs) == (1, 0)
    assert len(errors) == 2
    assert all("but got 1" in error for error in errors)
    alone = OptimisticFID("none", statistics(), bound="authors")
    alone.update_features(torch.cat([draw(3, 1), draw(4, 4), draw(5, 4)]))
    assert [value, other] == pytest.approx([float(alone.compute())] * 2, rel=1e-9)


def observe_step(rank, world_size):
    metric = OptimisticFID("none", statistics(), bound="none", dist_sync_on_step=True)
    step = float(metric(draw(rank, 5)))
    return step, metric.num_samples, float(metric.compute())


def test_forward_can_sync_each_step(ranks):
    alone = OptimisticFID("none", statistics(), bound="none")
    alone.update_features(torch.cat([draw(0, 5), draw(1, 5)]))
    expected = float(alone.compute())
    for step, count, final in ranks.run(observe_step):
        assert (step, count, final) == (pytest.approx(expected, rel=1e-9), 5, pytest.approx(expected, rel=1e-9))


def _share(rank, world_size, shares, options):
    """What one rank of several returns for its share of the rows."""
    metric = OptimisticFID("none", POWER, **options)
    rows = power_rows(sum(shares))
    start = sum(shares[:rank])
    if shares[rank]:
        metric.update_features(rows[start : start + shares[rank]])
    scores = OptimisticIS(feature="none", log_scale=True)
    probs = class_probs(sum(shares), 15, 4.0)
    if shares[rank]:
        scores.update_probs(probs[start : start + shares[rank]])
    found = [*metric.bounds(), *metric.debiased(), *scores.bounds(), *scores.debiased()]
    return [float(value) for value in found], metric.num_samples


@pytest.mark.parametrize(("shares", "options"), [([150, 250], {}), ([400, 0], {}), ([250, 150], {"max_rows": 60})])
def test_two_processes(ranks, shares, options):
    """Bit-equal on both ranks, within the width of one process, and a rank without samples takes part."""
    answers = ranks.run(_share, shares, options)
    assert answers[0][0] == answers[1][0]
    assert [answer[1] for answer in answers] == shares
    (alone, _) = _share(0, 1, [400], options)
    assert answers[0][0] == pytest.approx(alone, rel=0.25)
    lower, upper = answers[0][0][:2]
    assert lower < power_truth() < upper


def test_four_processes():
    pool = RankPool(4)
    try:
        answers = pool.run(_share, [100, 150, 0, 150], {})
    finally:
        pool.close()
    assert all(answer[0] == answers[0][0] for answer in answers)
    assert answers[0][0] == pytest.approx(_share(0, 1, [400], {})[0], rel=0.25)


def save_while_synced(rank, world_size, shares, options):
    """Save what all ranks have together, load it into a fresh metric, and go on with it."""
    metric, scores = OptimisticFID("none", statistics(), **options), OptimisticIS("none", log_scale=True)
    rows, probs = draw(2, sum(shares)), class_probs(sum(shares))
    start = sum(shares[:rank])
    answers = []
    for made, samples in ((metric, rows), (scores, probs)):
        mine = samples[start : start + shares[rank]]
        for batch in mine.split(3):
            made.update_rows(batch)
        made.persistent(True)
        with made.sync_context():
            state = made.state_dict()
            together = list(made.losses(LOSS_FIELDS).values())
        kind = made.clone()
        kind.reset()
        kind.sync_on_compute = kind._to_sync = False
        kind.persistent(True)
        kind.load_state_dict(state)
        loaded = list(kind.losses(LOSS_FIELDS).values())
        count = kind.num_samples
        kind.update_rows(samples[:3])
        kind.losses(LOSS_FIELDS)
        answers.append((together, loaded, count, kind.num_samples, made.num_samples))
    return answers


@pytest.mark.parametrize("shares", [(3, 1), (30, 12), (0, 25)], ids=str)
@pytest.mark.parametrize("options", [{}, {"bound": "authors"}, {"max_rows": 20}], ids=str)
def test_a_state_that_was_saved_while_synced_holds_all_samples(ranks, shares, options):
    for rank, answers in enumerate(ranks.run(save_while_synced, shares, options)):
        for together, loaded, count, after, local in answers:
            assert count == sum(shares)
            assert after == count + 3
            assert local == shares[rank]
            assert loaded == pytest.approx(together, rel=1e-9, nan_ok=True)
