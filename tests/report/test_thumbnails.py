"""Small pictures: the right pixels, the right size, nothing of what is no image."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from tests.report.results import make_result
from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics, SelectionResult
from tm_bandit.errors import InputError
from tm_bandit.report.thumbnails import MOST, data_uri, is_data_uri, thumbnails


def pixels(file):
    return np.asarray(Image.open(io.BytesIO(file)))


@pytest.mark.parametrize(
    ("images", "value"),
    [
        (torch.full((1, 3, 8, 8), 200, dtype=torch.uint8), 200),
        (torch.full((1, 1, 8, 8), 0.2), 51),
        (torch.full((1, 3, 8, 8), -0.2, dtype=torch.float16), 102),
        (torch.full((1, 3, 8, 8), torch.inf), 255),
    ],
)
def test_values_become_pixels(images, value):
    (file,) = thumbnails(images)
    assert (pixels(file) == value).all()
    assert pixels(file).shape[:2] == (8, 8)


def test_large_and_many_images_are_cut_down():
    files = thumbnails(torch.rand(40, 3, 96, 192))
    assert len(files) == MOST
    assert pixels(files[0]).shape == (32, 64, 3)


@pytest.mark.parametrize("shape", [(4, 10), (4, 3, 8), (4, 7, 8, 8), (4, 3, 1, 1), (4, 3, 8, 8, 8)])
def test_other_samples_have_no_pictures(shape):
    assert thumbnails(torch.zeros(shape)) == []


def test_only_our_own_pictures_get_on_a_page():
    assert is_data_uri(data_uri(b"any bytes"))
    for text in ("https://example.org/a.png", "data:text/html;base64,AAAA", 'data:image/png;base64,AA" onload="x', 3):
        assert not is_data_uri(text)
    result = make_result()
    result.add_pictures("arm 2", [b"one"])
    result.arms[0]["pictures"] = ["javascript:alert(1)"]
    assert result.pictures == {"arm 2": [data_uri(b"one")]}
    assert "javascript:" not in result.to_html()
    with pytest.raises(InputError, match="nobody"):
        result.add_pictures("nobody", [])


def test_a_run_over_images_keeps_the_first_samples_of_the_best_and_the_runner_up():
    def sampler(shift):
        return lambda n, generator: (torch.rand(n, 1, 6, 6, generator=generator) + shift).clamp(0, 1)

    def rows(images):
        return images.flatten(1)[:, :4]

    reference = ReferenceStatistics.from_features(rows(torch.rand(2000, 1, 6, 6)))
    metric = OptimisticFID(feature=rows, reference=reference, normalize=True)
    arms = {"far": sampler(0.5), "good": sampler(0.0), "near": sampler(0.1)}
    result = ModelSelector(metric, arms, budget=300, batch_size=20, seed=1).run(progress=False)
    assert list(result.pictures) == [row["arm"] for row in result.table()[:2]] == ["good", "near"]
    assert [len(uris) for uris in result.pictures.values()] == [MOST, MOST]
    assert SelectionResult.from_json(result.to_json()) == result
    page = result.to_html()
    assert page.count("<img") == 2 * MOST
    assert "same noise" in page
