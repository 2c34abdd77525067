"""Weights from files, from torch's cache, from a package; and one clear error when there are none."""

import shutil

import pytest
import torch
from torch import nn

from tests._inception import random_images, random_weights_file
from tests.extractors.networks import save_script
from tm_bandit.errors import WeightsError
from tm_bandit.extractors import inception_network, resolve, weights

URL = "github.com/toshas/torch-fidelity/releases/download/v0.2.0/weights-inception-2015-12-05-6726825d.pth"
FILE = "weights-inception-2015-12-05-6726825d.pth"


@pytest.mark.parametrize(
    ("feature", "file", "source"),
    [
        ("logits_unbiased", FILE, URL),
        ("vgg16", "vgg16-397923af.pth", "download.pytorch.org"),
        ("clip-vit-l-14", "clip-vit-l-14-b8cca3fd41ae", "openaipublic.azureedge.net.*ViT-L-14.pt"),
        ("dinov2-vit-l-14", "dinov2_vitl14_pretrain.pth", "dl.fbaipublicfiles.com"),
    ],
)
def test_without_internet_the_error_names_file_and_source(offline, feature, file, source):
    with pytest.raises(
        WeightsError, match=rf"(?s){file}.*{source}.*feature_extractor_weights_path.*{offline}"
    ) as error:
        resolve(feature)
    assert "\n" not in str(error.value)


def test_inception_without_the_package_either(offline, monkeypatch):
    monkeypatch.setattr(weights, "BUNDLE_PACKAGE", "a_package_that_nobody_has")
    with pytest.raises(WeightsError, match=URL):
        resolve(2048)


def test_torchs_cache_comes_first(offline, weights_file):
    offline.mkdir(parents=True)
    shutil.copy(weights_file, offline / FILE)
    images = random_images(1)
    cached = resolve("logits_unbiased")
    assert torch.equal(cached(images), resolve("logits_unbiased", weights_path=weights_file)(images))
    assert resolve(2048).network is cached.network


@pytest.mark.parametrize("feature", [2048, "vgg16", "clip-vit-l-14", "dinov2-vit-l-14"])
def test_missing_and_broken_files(tmp_path, feature):
    with pytest.raises(WeightsError, match=r"nowhere.pth does not exist; get"):
        resolve(feature, weights_path=tmp_path / "nowhere.pth")
    broken = tmp_path / "broken.pth"
    broken.write_bytes(b"not a file of weights")
    with pytest.raises(WeightsError, match="could not load them"):
        resolve(feature, weights_path=broken)
    torch.save({"a": torch.zeros(2)}, broken)
    broken.write_bytes(broken.read_bytes().replace(b"PK\x01\x02", b"XXXX"))
    with pytest.raises(WeightsError, match="could not load them"):
        resolve(feature, weights_path=broken)
    other = tmp_path / "other.pth"
    torch.save({"a": torch.zeros(2)}, other)
    with pytest.raises(WeightsError, match="could not load them"):
        resolve(feature, weights_path=other)


class Trap:
    """Unpickled, this would create a file: what a hostile "weights" file does."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("feature", [2048, "vgg16"])
def test_hostile_pickles_are_not_run(tmp_path, feature):
    file, mark = tmp_path / "weights.pth", tmp_path / "was-run"
    torch.save({"a": Trap(mark)}, file)
    with pytest.raises(WeightsError, match=r"its pickle may run code \(Weights only load failed\)") as refused:
        resolve(feature, weights_path=file)
    assert not mark.exists()
    assert "Re-running" not in str(refused.value)  # torch says how to run it


def test_a_file_that_is_replaced_is_read_again(tmp_path, weights_file):
    path = tmp_path / "weights.pth"
    shutil.copy(weights_file, path)
    first = resolve(64, weights_path=path)
    random_weights_file(tmp_path, seed=2).replace(path)
    second = resolve(64, weights_path=path)
    images = random_images(1)
    assert not torch.equal(first(images), second(images))


def test_conversion_refuses_another_network():
    target = inception_network._blank_state()
    with pytest.raises(ValueError, match="it holds 1 convolutions, but the FID Inception network has 94"):
        weights.convert_inception({"a.weight": torch.zeros(1)}, target)
    names = [name for name in target if name.endswith(".conv.weight")]
    wrong = {f"{name}.weight": torch.zeros(1, 1, 1, 1) for name in names}
    with pytest.raises(ValueError, match="does not fit Conv2d_1a_3x3"):
        weights.convert_inception(wrong, target)


def test_torchscript_of_another_network_is_refused(tmp_path):
    save_script(nn.Conv2d(3, 3, 3), torch.zeros(1, 3, 8, 8), tmp_path / "other.pt")
    with pytest.raises(WeightsError, match="it holds 0 convolutions"):
        resolve(2048, weights_path=tmp_path / "other.pt")
