"""Statistics files of other tools, both ways: each tool itself reads what we write, and we read what it writes.

The tools get a network of a few weights in place of Inception, whose weights they would download; the code that reads
and writes files is theirs. guided-diffusion's evaluator needs TensorFlow and is on no package index: its file is built
as its documentation describes it.
"""

import numpy as np
import pytest
import torch
import torch_fidelity
from PIL import Image
from torch import nn
from torch_fidelity.feature_extractor_base import FeatureExtractorBase

from tests._pictures import pictures, save_pictures
from tm_bandit import ReferenceStatistics
from tm_bandit.errors import InputError

RNG = np.random.default_rng(0)


def small_network(images):
    """Return 64 numbers per image."""
    return nn.functional.adaptive_avg_pool2d(images.float(), 8)[:, 0].flatten(1)


@pytest.fixture
def ours():
    rows = RNG.normal(size=(200, 64))
    return ReferenceStatistics.from_features(torch.from_numpy(rows), extractor="somewhere")


@pytest.fixture
def folder(tmp_path):
    save_pictures(tmp_path / "images", pictures(0, 90, 0, size=16))
    return tmp_path / "images"


def rows_of(folder):
    pixels = np.stack([np.asarray(Image.open(file)) for file in sorted(folder.iterdir())])
    return small_network(torch.from_numpy(pixels).permute(0, 3, 1, 2))


@pytest.mark.parametrize("ending", ["npz", "pt"])
def test_our_own_files_lose_nothing(tmp_path, ours, ending):
    back = ReferenceStatistics.load(ours.save(tmp_path / f"ref.{ending}"))
    assert torch.equal(back.mean, ours.mean)
    assert torch.equal(back.covariance, ours.covariance)
    assert (back.num_samples, back.extractor) == (200, "somewhere")


def test_pytorch_fid_reads_ours(tmp_path, ours):
    from pytorch_fid import fid_score

    path = str(ours.save(tmp_path / "ref.npz"))
    mean, sigma = fid_score.compute_statistics_of_path(path, None, 50, 64, "cpu")
    np.testing.assert_array_equal(mean, ours.mean)
    np.testing.assert_array_equal(sigma, ours.covariance)


def test_we_read_those_of_pytorch_fid(tmp_path, folder, monkeypatch):
    from pytorch_fid import fid_score

    class Small(nn.Module):
        BLOCK_INDEX_BY_DIM = fid_score.InceptionV3.BLOCK_INDEX_BY_DIM

        def __init__(self, blocks):
            super().__init__()

        def forward(self, images):
            return [small_network(255 * images)[:, :, None, None]]

    monkeypatch.setattr(fid_score, "InceptionV3", Small)
    fid_score.save_fid_stats([str(folder), str(tmp_path / "theirs.npz")], 30, "cpu", 64, num_workers=0)
    _assert_statistics(ReferenceStatistics.load(tmp_path / "theirs.npz"), rows_of(folder))


def test_clean_fid_reads_ours_and_we_read_those_of_clean_fid(tmp_path, folder, ours, monkeypatch):
    import cleanfid
    from cleanfid import features, fid

    monkeypatch.setattr(cleanfid, "__file__", str(tmp_path / "__init__.py"))  # it keeps statistics beside itself
    (tmp_path / "stats").mkdir()
    ours.save(tmp_path / "stats" / "ours_clean_custom_na.npz")
    mean, sigma = features.get_reference_statistics("ours", "na", mode="clean", split="custom")
    np.testing.assert_array_equal(mean, ours.mean)
    np.testing.assert_array_equal(sigma, ours.covariance)

    monkeypatch.setattr(fid, "build_feature_extractor", lambda mode, device: small_network)
    # The mode without a resize, so that the network sees the pixels that we know.
    fid.make_custom_stats("theirs", str(folder), mode="legacy_tensorflow", device=torch.device("cpu"), verbose=False)
    _assert_statistics(
        ReferenceStatistics.load(tmp_path / "stats" / "theirs_legacy_tensorflow_custom_na.npz"), rows_of(folder)
    )


class SmallExtractor(FeatureExtractorBase):
    """torch-fidelity's way to bring a network of one's own."""

    def __init__(self, name, features_list, **kwargs):
        super().__init__(name, features_list)

    @staticmethod
    def get_provided_features_list():
        return ("64",)

    @staticmethod
    def get_default_feature_layer_for_metric(metric):
        return "64"

    @staticmethod
    def can_be_compiled():
        return False

    def forward(self, images):
        return (small_network(images),)


def test_torch_fidelity_reads_ours_and_we_read_those_of_torch_fidelity(tmp_path, folder, monkeypatch):
    monkeypatch.setitem(torch_fidelity.registry.FEATURE_EXTRACTORS_REGISTRY, "small-64", SmallExtractor)
    cache = tmp_path / "cache"
    cache.mkdir()
    rows = rows_of(folder)
    ours = ReferenceStatistics.from_features(rows + 3.0)
    ours.save(cache / "ours-small-64-stat-fid-64.pt")
    found = torch_fidelity.calculate_metrics(
        input1=str(folder),
        input2=str(folder),  # never opened: the cache has it under this name
        input1_cache_name="theirs",
        input2_cache_name="ours",
        feature_extractor="small-64",
        fid=True,
        cache_root=str(cache),
        cuda=False,
        verbose=False,
        samples_find_deep=False,
        save_cpu_ram=True,
    )
    assert found["frechet_inception_distance"] == pytest.approx(64 * 3.0**2, rel=1e-4)
    _assert_statistics(ReferenceStatistics.load(cache / "theirs-small-64-stat-fid-64.pt"), rows)


def test_guided_diffusion_both_ways(tmp_path, ours):
    rows = RNG.normal(size=(50, 64))
    np.savez(
        tmp_path / "theirs.npz",
        arr_0=RNG.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8),
        mu=rows.mean(axis=0),
        sigma=np.cov(rows, rowvar=False),
        mu_s=np.zeros(3),
        mean=np.zeros(3),  # an array of somebody's own must not be mistaken for the mean
        sigma_s=np.eye(3),
    )
    _assert_statistics(ReferenceStatistics.load(tmp_path / "theirs.npz"), torch.from_numpy(rows))
    stored = np.load(ours.save(tmp_path / "ours.npz"))
    assert "mu" in list(stored.keys())
    np.testing.assert_array_equal(stored["sigma"], ours.covariance)
    stored.close()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npz", {"arr_0": np.ones((2, 2))}, "arr_0"),
        ("a.npz", {"mu": np.ones(2), "sigma": np.ones(3)}, "shape"),
        ("a.npz", {"mu": np.ones(2), "sigma": -np.eye(2)}, "semi-definite"),
        ("a.pt", {"features": torch.ones(2, 2)}, "features"),
        ("a.pt", [1, 2], "mu"),
        ("a.pt", {"mu": nn.Identity(), "sigma": 1}, "could not read"),
        ("a.npz", b"PK\x03\x04 cut off", "could not read"),
        ("a.pt", b"nonsense", "could not read"),
        ("a.npz", None, "there is none"),
    ],
)
def test_files_without_statistics_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif name.endswith(".pt"):
        torch.save(content, path)
    elif content is not None:
        np.savez(path, **content)
    with pytest.raises(InputError, match=message) as caught:
        ReferenceStatistics.load(path)
    assert str(path) in str(caught.value)


def _assert_statistics(loaded, rows):
    rows = rows.double().numpy()
    np.testing.assert_allclose(loaded.mean, rows.mean(axis=0), rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(loaded.covariance, np.cov(rows, rowvar=False), rtol=1e-4, atol=1e-6 * rows.var())
    assert loaded.num_samples is None
    assert loaded.extractor is None
