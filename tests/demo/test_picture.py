"""The demo's picture shows the chart, the truth and the samples."""

import numpy as np
import torch
from PIL import Image

from tests.report.results import make_result
from tm_bandit.demo.picture import _grid, draw_picture
from tm_bandit.report.chart import PALETTE


def test_the_picture_has_the_lines_the_truth_and_the_samples(tmp_path):
    result = make_result(num_arms=28, pulls=400)
    truth = {row["arm"]: row["debiased"] + 0.5 for row in result.arms}
    black, white = torch.ones(48, 1, 8, 8), torch.zeros(48, 1, 8, 8)
    draws = {}
    for name, worst in (("black.png", black), ("white.png", white), ("again.png", white)):
        draw_picture(tmp_path / name, result, truth, ("ema/cfg1.5", black), ("arm 27", worst))
        draws[name] = np.asarray(Image.open(tmp_path / name).convert("RGB")).astype(int)
    assert np.array_equal(draws["white.png"], draws["again.png"])
    changed = np.argwhere(np.abs(draws["black.png"] - draws["white.png"]).max(axis=2) > 0)
    height, width, _ = draws["black.png"].shape
    assert changed.min(axis=0)[0] > height / 2, "the worst arm's samples are below"
    assert changed.min(axis=0)[1] > width / 2, "and right of the chart"
    for colour in PALETTE:
        rgb = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
        assert (np.abs(draws["black.png"] - rgb).max(axis=2) <= 2).sum() > 50, colour


def test_the_grid_puts_images_side_by_side():
    images = torch.arange(48.0).view(48, 1, 1, 1).expand(48, 1, 2, 2)
    grid = _grid(images)
    assert grid.shape == (6 * 4, 8 * 4)
    assert grid[1, 1] == 0
    assert grid[1, 5] == 1
    assert grid[5, 1] == 8
    assert grid[0].sum() == 0
