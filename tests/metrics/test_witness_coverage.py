"""A reduced coverage study, with the assertions of the full one: how often is the truth ever outside the interval?"""

import math

import pytest
import torch

from benchmarks._generators import frechet_scenarios, marginal_scenarios
from benchmarks._paths import frechet_coverage, frechet_scores, marginal_coverage
from tests._make import Streamed
from tm_bandit.functional import FrechetBasis
from tm_bandit.functional.confidence import ScoreMoments

RUNS = 100
DELTA = 0.05
#: Two standard errors of a share of DELTA among so many runs.
TOLERANCE = 2 * math.sqrt(DELTA * (1 - DELTA) / RUNS)
LOOKS = [*range(20, 100, 5), *range(100, 1001, 25)]

SCENARIOS = {scenario.name: scenario for scenario in frechet_scenarios(8, size=400_000)}
PREDICTIONS = {name: (sampler, truth) for name, sampler, truth in marginal_scenarios(10, size=100_000)}


@pytest.mark.parametrize("name", SCENARIOS)
def test_frechet_interval(name):
    scenario = SCENARIOS[name]
    crossings = frechet_coverage(scenario, RUNS, LOOKS, DELTA, seed=1)
    assert crossings.lower <= DELTA + TOLERANCE
    assert crossings.either <= DELTA + TOLERANCE
    # Valid is easy if useless: the interval must also close in on the truth.
    first, last = crossings.ends[LOOKS[0]], crossings.ends[LOOKS[-1]]
    assert last[1] - last[0] < 0.5 * (first[1] - first[0])


@pytest.mark.parametrize("name", PREDICTIONS)
def test_inception_interval(name):
    sampler, truth = PREDICTIONS[name]
    crossings = marginal_coverage(sampler, truth, RUNS, LOOKS[::2], DELTA, seed=1)
    assert crossings.lower <= DELTA + TOLERANCE
    assert crossings.either <= DELTA + TOLERANCE
    first, last = crossings.ends[LOOKS[0]], crossings.ends[LOOKS[-1]]
    assert last[1] - last[0] < 0.5 * (first[1] - first[0])


def test_the_study_follows_what_the_metrics_do():
    """The vectorised paths and the stream behind the metrics give the same scores."""
    scenario = SCENARIOS["relu, apart"]
    rows = scenario.sampler(2, 700, torch.Generator().manual_seed(3))
    basis = FrechetBasis.from_eigen(torch.zeros(8), scenario.eigenvalues, torch.eye(8))
    looks = [10, 23, 130, 499, 500, 700]
    paths = frechet_scores(rows, scenario.eigenvalues, looks, 0.025, "mixture")
    found = {look: (scores, damping) for look, scores, damping in paths}
    for look in looks:
        stream = Streamed(basis, alpha=0.025)
        stream.extend(rows[1, :look])
        assert torch.allclose(stream.scores(), found[look][0][1], rtol=1e-8, atol=1e-10)
        assert stream.summary().damping == pytest.approx(float(found[look][1][1]))


def test_a_plain_interval_would_fail():
    """Two standard errors below the mean, looked at just as often, exceed zero far too often when g equals r."""
    scenario = SCENARIOS["gaussian, equal to the reference"]
    rows = scenario.sampler(RUNS, LOOKS[-1], torch.Generator().manual_seed(1))
    basis = FrechetBasis.from_eigen(torch.zeros(8), scenario.eigenvalues, torch.eye(8))
    crossed = 0
    for run in rows[:30]:
        stream, ever, done = Streamed(basis, alpha=DELTA / 2), False, 0
        for look in LOOKS:
            stream.extend(run[done:look])
            done = look
            scores: ScoreMoments = stream.summary().scores
            ever |= scores.mean - 1.645 * scores.stderr > 1e-9
        crossed += ever
    assert crossed / 30 > DELTA + TOLERANCE
