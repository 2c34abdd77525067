"""The demo's picture shows the near tie twice, and the samples."""

import numpy as np
import pytest
import torch
from PIL import Image

from tm_bandit import ReferenceStatistics
from tm_bandit.demo import picture, truth
from tm_bandit.report.chart import PALETTE


@pytest.fixture(scope="module")
def story():
    """A race among fourteen Gaussians of which two are nearly tied, and three uniform evaluations."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(1000, 4, generator=generator)
    shifts = [0.4, 0.41, *(0.6 + 0.1 * k for k in range(12))]
    reference = ReferenceStatistics(torch.zeros(4), torch.eye(4), 100_000)
    pools = {f"step{100 * k}/20 steps": shift + noise for k, shift in enumerate(shifts)}
    arms = {name: truth.Truth(rows, truth.plain_fid(rows, reference), 1.0) for name, rows in pools.items()}
    return (
        truth.race(arms, reference, budget=1000, seed=0),
        {name: arm.fid for name, arm in arms.items()},
        (30, truth.uniform(arms, reference, each=30, repeats=3)),
    )


def test_the_picture_has_both_choices_and_the_samples(tmp_path, story):
    black, white = torch.ones(24, 1, 8, 8), torch.zeros(24, 1, 8, 8)
    draws = {}
    for name, worst in (("black.png", black), ("white.png", white), ("again.png", white)):
        picture.draw_picture(tmp_path / name, *story, {"best": black, "second": black, "worst": worst})
        draws[name] = np.asarray(Image.open(tmp_path / name).convert("RGB")).astype(int)
    assert np.array_equal(draws["white.png"], draws["again.png"])
    changed = np.argwhere(np.abs(draws["black.png"] - draws["white.png"]).max(axis=2) > 0)
    height, width, _ = draws["black.png"].shape
    assert changed.min(axis=0)[0] > height / 2, "the worst arm's samples are below"
    assert changed.min(axis=0)[1] > width / 2, "and right of the charts"
    for colour in PALETTE[:2]:
        rgb = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
        assert (np.abs(draws["black.png"] - rgb).max(axis=2) <= 2).sum() > 30, colour


def test_no_label_is_on_another(story):
    figure = picture.make_figure(*story, dict.fromkeys(("best", "second", "worst"), torch.ones(24, 1, 8, 8)))
    figure.draw_without_rendering()
    charts = figure.subfigs[0]
    texts = [*charts.texts, *charts.axes[0].get_yticklabels()]
    for axes in charts.axes:
        low, high = axes.get_xlim()  # labels beyond are not drawn
        shown = [text for at, text in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True) if low <= at <= high]
        texts += [axes.title, axes.xaxis.label, *axes.texts, *shown]
    boxes = [text.get_window_extent() for text in texts if text.get_visible() and text.get_text()]
    assert len(boxes) > 24
    assert all(box.x0 >= 0 and box.x1 <= charts.bbox.x1 for box in boxes)
    for at, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:at]), texts[at]


def test_the_heads_say_what_came_of_each_choice(story):
    race, truths, (each, scores) = story
    second = list(truths)[1]
    missed = [{**evaluation, second: -1.0} for evaluation in scores]
    figure = picture.make_figure(race, truths, (each, missed), dict.fromkeys("abc", torch.ones(24, 1, 8, 8)))
    said = [text.get_text() for axes in figure.subfigs[0].axes for text in axes.texts]
    behind = truths[second] / min(truths.values()) - 1
    assert said[0] == "plain FID, 30 samples each, 420 in all"
    assert said[1] == f"picks one that is {behind:.0%} worse"
    assert said[3] == "picks the best"


def test_the_grid_puts_images_side_by_side():
    images = torch.arange(24.0).view(24, 1, 1, 1).expand(24, 1, 2, 2)
    grid = picture._grid(images)
    assert grid.shape == (3 * 4, 8 * 4)
    assert grid[1, 1] == 0
    assert grid[1, 5] == 1
    assert grid[5, 1] == 8
    assert grid[0].sum() == 0
