"""From a draw's seed to rows in this process."""

from itertools import product

import pytest
import torch
from torch import nn

from tests.selection.toy import MeanMetric
from tm_bandit import OptimisticFID, OptimisticMean, Pull
from tm_bandit.errors import ArmError, NotReadyError, WeightsError
from tm_bandit.execution import carry_out, takes_generator
from tm_bandit.execution.draw import DrawPlan, stable_seed

PULL = Pull("a", draw=0, size=4, seed=11)


def with_generator(num_samples, generator):
    return torch.randn(num_samples, 1, generator=generator)


def without_generator(num_samples):
    return torch.randn(num_samples, 1)


@pytest.mark.parametrize("sampler", [with_generator, without_generator])
def test_a_pull_can_be_repeated(sampler):
    state = torch.get_rng_state()
    one, two = (carry_out(PULL, sampler, MeanMetric(), samples="features") for _ in range(2))
    assert torch.equal(one, two)
    assert one.shape == (4, 1)
    assert torch.equal(torch.get_rng_state(), state)
    other = carry_out(Pull("a", 1, 4, 12), sampler, MeanMetric(), samples="features")
    assert not torch.equal(one, other)


def test_samples_become_rows():
    images = torch.arange(4 * 12.0).reshape(4, 3, 2, 2)
    rows = carry_out(PULL, lambda n: images[:n], MeanMetric())
    assert torch.equal(rows, images.flatten(1).mean(1, keepdim=True))


def test_whether_a_generator_is_taken_can_be_said():
    assert takes_generator(with_generator)
    assert not takes_generator(without_generator)
    assert not takes_generator(3)
    seen = []
    carry_out(PULL, lambda n, **kwargs: seen.append(kwargs) or torch.zeros(n, 1), MeanMetric(), with_generator=True)
    assert list(seen[0]) == ["generator"]


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (lambda n: 1 / 0, "the sampler raised ZeroDivisionError"),
        (lambda n: [0.0] * n, "return a tensor, but got list"),
        (lambda n: torch.zeros(n), r"shape \(4,\)"),
        (lambda n: torch.zeros(n + 1, 1), "Expected 4 samples, but got 5"),
        (lambda n: torch.zeros(n, 1).to_sparse(), "dense tensor"),
        (lambda n: torch.zeros(n, 1, device="meta"), "meta device"),
    ],
)
def test_an_arm_that_fails_is_told_from_the_rest(sampler, message):
    with pytest.raises(ArmError, match=message):
        carry_out(PULL, sampler, MeanMetric(), samples="features")


@pytest.mark.parametrize("metric", [OptimisticFID(nn.Linear(3, 2)), OptimisticMean(nn.Linear(3, 1))])
def test_samples_that_cannot_be_scored_are_the_arms_fault(metric):
    with pytest.raises(ArmError, match=rf"^{type(metric).__name__} cannot score the samples: RuntimeError"):
        carry_out(PULL, lambda n: torch.zeros(n, 5), metric)


@pytest.mark.parametrize("error", [NotReadyError, WeightsError])
def test_a_metric_that_cannot_be_used_is_no_arms_fault(error):
    class Broken(MeanMetric):
        def extract(self, inputs):
            raise error("no weights")

    with pytest.raises(error):
        carry_out(PULL, lambda n: torch.zeros(n, 3), Broken())


def test_seeds_are_the_same_in_every_version():
    assert stable_seed(0, "ema", 3, 0) == stable_seed(0, "ema", 3, 0)
    assert len({stable_seed(*parts) for parts in ((0, "a", 1), (0, "a", 2), (1, "a", 1), (0, "b", 1))}) == 4
    assert all(0 <= stable_seed(n) < 2**63 for n in range(100))


def test_with_common_pairing_draw_k_of_every_arm_has_the_same_seed():
    plan = DrawPlan(7, "common")
    seeds = {
        (arm, draw, chunk): plan.seed_for(arm, draw, chunk) for arm, draw, chunk in product("ab", range(9), (0, 1))
    }
    assert all(seeds["a", draw, chunk] == seeds["b", draw, chunk] for draw in range(9) for chunk in (0, 1))
    assert len(set(seeds.values())) == 18
    assert plan.seed_for("a", 3, 1) == stable_seed(7, 3, 1) != DrawPlan(8, "common").seed_for("a", 3, 1)


def test_independent_seeds_are_those_of_version_0_1():
    plan = DrawPlan(0, "independent")
    assert plan.seed_for("a0", 0) == 5795947228095011287 == stable_seed(0, "a0", 0, 0)
    assert len({plan.seed_for(arm, draw, chunk) for arm in "ab" for draw in range(50) for chunk in range(3)}) == 300


@pytest.mark.parametrize("pairing", ["common", "independent"])
def test_a_pull_has_the_seed_of_its_draw(pairing):
    plan = DrawPlan(3, pairing)
    pull = plan.pull("ema", 4, 5)
    assert (pull.arm, pull.draw, pull.size, pull.seed) == ("ema", 4, 5, plan.seed_for("ema", 4))
