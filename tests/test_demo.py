"""The demo tells the truth about itself, twice the same."""

import json
from pathlib import Path

import pytest
import torch

from tm_bandit import ReferenceStatistics
from tm_bandit.demo import digits, main, truth
from tm_bandit.demo.flow import DigitFlow


@pytest.fixture(scope="module")
def data():
    return digits.load_digits()


def test_digits_are_split_without_overlap(data):
    assert data.train_images.shape == (1400, 1, 8, 8)
    assert len(data.images) == 1797
    assert 0 <= data.images.min() < data.images.max() <= 1
    again = digits.load_digits()
    assert torch.equal(again.test_images, data.test_images)
    assert not torch.equal(digits.load_digits(seed=1).test_images, data.test_images)


def test_classifier_is_a_real_one(data):
    state = torch.get_rng_state()
    net = digits.train_classifier(data)
    assert torch.equal(state, torch.get_rng_state()), "the global random state is the caller's"
    assert net.accuracy(data.test_images, data.test_labels) > 0.975
    assert net(data.images[:5]).shape == (5, digits.NUM_FEATURES)
    assert digits.Logits(net)(data.images[:5]).shape == (5, digits.NUM_CLASSES)


def test_flow_samples_images_and_repeats_itself():
    torch.manual_seed(0)
    model = DigitFlow(width=16, depth=1)
    draws = [model.sample(4, steps=2, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert draws[0].shape == (4, 1, 8, 8)
    assert 0 <= draws[0].min() <= draws[0].max() <= 1
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    guided = model.sample(4, steps=2, guidance_scale=3.0, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(guided, draws[0])


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


def test_demo_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    told = []
    for out in ("first", "second"):
        assert main(["--fast", "--out", out]) == 0
        told.append(json.loads(Path(out, "figures.json").read_text()))
    assert told[0] == told[1], "deterministic for a seed"

    said = capsys.readouterr().out
    figures = told[0]
    assert figures["arms"] == len(figures["truth"]) == 8
    assert figures["best_fid"] == min(score["fid"] for score in figures["truth"].values())
    assert figures["chosen_by_fid"] in figures["truth"]
    for name in ("demo.png", "report_fid.html", "report_is.html", "table.md", "figures.json"):
        assert Path("first", name).stat().st_size > 100
        assert str(Path("first", name)) in said
    assert f"{figures['classifier_accuracy']:.1%}" in said
    assert Path("first", "fid", figures["chosen_by_fid"].split("/")[0] + ".ckpt").exists()
