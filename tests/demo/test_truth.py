"""What the demo says about the truth, and about evaluating all arms equally."""

import pytest
import torch

from tm_bandit import ReferenceStatistics
from tm_bandit.demo import truth


@pytest.fixture
def arms():
    """Two arms whose FD to the standard normal is known: 4 * shift**2."""
    generator = torch.Generator().manual_seed(0)
    rows = {name: shift + torch.randn(4000, 4, generator=generator) for name, shift in (("near", 0.1), ("far", 1.0))}
    reference = ReferenceStatistics(torch.zeros(4), torch.eye(4), 100_000)
    return {n: truth.Truth(r, truth.plain_fid(r, reference), 0.01, 1.0) for n, r in rows.items()}, reference


def test_truth_is_the_frechet_distance(arms):
    truths, _ = arms
    assert truths["near"].fid == pytest.approx(0.04, abs=0.02)
    assert truths["far"].fid == pytest.approx(4.0, abs=0.15)


def test_uniform_need_finds_the_smallest_size_that_stays_right(arms):
    truths, reference = arms
    assert truth.right("near", truths)
    assert not truth.right("far", truths)
    assert truth.uniform_share(truths, reference, each=100, repeats=5) == 1.0
    assert truth.bandit_share(truths, reference, budget=200, batch_size=10, burn_in=20, repeats=3) == 1.0
    assert truth.uniform_need(truths, reference, share=1.0, repeats=3, sizes=[50, 100]) == 100
    assert truth.uniform_need(truths, reference, share=1.1, repeats=3, sizes=[50, 100]) is None


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
    assert 0 < result.stderr < 0.01
