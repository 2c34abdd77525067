"""What the demo says about the truth, about the paired race, and about evaluating all arms equally."""

import pytest
import torch

from tm_bandit import ReferenceStatistics
from tm_bandit.demo import truth


@pytest.fixture(scope="module")
def arms():
    """Three arms from the same noise whose FD to the standard normal is known: 4 * shift**2."""
    noise = torch.randn(4000, 4, generator=torch.Generator().manual_seed(0))
    noise = (noise - noise.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(noise.T.cov())).T
    reference = ReferenceStatistics(torch.zeros(4), torch.eye(4), 100_000)
    pools = {name: shift + noise for name, shift in (("far", 1.0), ("near", 0.4), ("nearer", 0.38))}
    return {n: truth.Truth(r, truth.plain_fid(r, reference), 1.0) for n, r in pools.items()}, reference


def test_truth_is_the_frechet_distance(arms):
    truths, _ = arms
    for name, shift in (("far", 1.0), ("near", 0.4), ("nearer", 0.38)):
        assert truths[name].fid == pytest.approx(4 * shift**2, abs=1e-3)


def test_right_is_within_two_per_cent(arms):
    truths, _ = arms
    assert [truth.right(name, truths) for name in ("far", "near", "nearer", None)] == [False, False, True, False]
    close = truths["nearer"]._replace(fid=1.019 * truths["nearer"].fid)
    assert truth.right("close", truths | {"close": close})


def test_the_race_decides_what_uniform_evaluation_does_not(arms):
    truths, reference = arms
    race = truth.race(truths, reference, budget=1200, seed=0)
    assert (race.best, race.stopped_by) == ("nearer", "stop")
    picks = [min(scores, key=scores.get) for scores in truth.uniform(truths, reference, each=50, repeats=20)]
    assert set(picks) == {"near", "nearer"}, "a coin's toss"
    assert truth.uniform(truths, reference, each=50, repeats=2) == truth.uniform(truths, reference, 50, 2)


def test_a_pick_is_what_was_recommended_by_then(arms):
    truths, reference = arms
    race = truth.race(truths, reference, budget=300, seed=1)
    race.history["best"] = [str(at) for at in range(len(race.history["best"]))]
    assert truth.pick_within(race, 9) is None
    assert truth.pick_within(race, 10) == "0"
    assert truth.pick_within(race, 29) == "1"
    assert truth.pick_within(race, race.total_samples) == race.best
    assert truth.pick_within(race, 10_000) == race.best


def test_the_smallest_size_is_one_after_which_none_fails():
    shares = [(10, 5), (20, 3), (40, 5), (80, 6)]
    wanted = {5: 40, 3: 10, 6: 80, 7: None}
    assert {hits: truth.smallest_that_stays(shares, hits) for hits in wanted} == wanted


def test_measure_scores_what_was_drawn():
    """One-hot predictions of ten equally frequent classes have an Inception Score of ten."""
    reference = ReferenceStatistics(torch.zeros(2), torch.eye(2), 1000)
    asked = []
    result = truth.measure(
        lambda n, generator: asked.append(n) or torch.randn(n, 2, generator=generator),
        lambda images: images,
        lambda images: 100 * torch.eye(10)[torch.arange(len(images)) % 10],
        reference,
        num_samples=5000,
        seed=3,
    )
    assert len(result.features) == sum(asked) == 5000
    assert max(asked) < 1000, "more at once is slower"
    assert result.inception_score == pytest.approx(10.0)
    assert result.fid == pytest.approx(0.0, abs=0.01)
