"""Weights from files, from torch's cache, from a package; and one clear error when there are none."""

import shutil
import sys

import pytest
import torch
from torch import nn

from tests._inception import random_images, random_weights_file
from tm_bandit.errors import WeightsError
from tm_bandit.extractors import inception, resolve, weights

URL = "github.com/toshas/torch-fidelity/releases/download/v0.2.0/weights-inception-2015-12-05-6726825d.pth"
FILE = "weights-inception-2015-12-05-6726825d.pth"


def save_script(module, example, path):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(module.eval(), example), path)


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
    with pytest.raises(WeightsError):
        resolve(feature, weights_path=file)
    assert not mark.exists()


def test_a_file_that_is_replaced_is_read_again(tmp_path, weights_file):
    path = tmp_path / "weights.pth"
    shutil.copy(weights_file, path)
    first = resolve(64, weights_path=path)
    random_weights_file(tmp_path, seed=2).replace(path)
    second = resolve(64, weights_path=path)
    images = random_images(1)
    assert not torch.equal(first(images), second(images))


def test_conversion_refuses_another_network():
    target = inception._blank_state()
    with pytest.raises(ValueError, match="it holds 1 convolutions, where the FID Inception network has 94"):
        weights.convert_inception({"a.weight": torch.zeros(1)}, target)
    names = [name for name in target if name.endswith(".conv.weight")]
    wrong = {f"{name}.weight": torch.zeros(1, 1, 1, 1) for name in names}
    with pytest.raises(ValueError, match="does not fit Conv2d_1a_3x3"):
        weights.convert_inception(wrong, target)


def test_torchscript_of_another_network_is_refused(tmp_path):
    save_script(nn.Conv2d(3, 3, 3), torch.zeros(1, 3, 8, 8), tmp_path / "other.pt")
    with pytest.raises(WeightsError, match="it holds 0 convolutions"):
        resolve(2048, weights_path=tmp_path / "other.pt")


def test_vgg16_from_a_file(tmp_path):
    from torchvision.models import vgg16

    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in vgg16().state_dict().items()}
    # One random column per layer, spread over the others: the file stays small, and features still depend on pixels.
    state = {
        name: (torch.randn(shape[0], *(1,) * (len(shape) - 1), generator=generator) * 0.05).expand(shape)
        for name, shape in shapes.items()
    }
    torch.save(state, tmp_path / "vgg16.pth")
    extractor = resolve("vgg16", weights_path=tmp_path / "vgg16.pth")
    images = random_images(2)
    rows = extractor(images)
    assert rows.shape == (2, 4096) == (2, extractor.num_features)
    assert rows.min() >= 0
    assert rows.std() > 0
    theirs = extractor.network.module
    assert torch.equal(rows, theirs(images)[0])
    assert not any(parameter.requires_grad for parameter in theirs.parameters())


class TinyClip(nn.Module):
    """CLIP's visual tower with one layer, under the names that OpenAI's files use."""

    def __init__(self):
        super().__init__()
        from torch_fidelity.feature_extractor_clip import VisionTransformer

        self.visual = VisionTransformer(input_resolution=32, patch_size=16, width=64, layers=1, heads=1, output_dim=24)
        self.text_projection = nn.Parameter(torch.zeros(8, 24))

    def forward(self, x):
        return self.visual(x) + self.text_projection.sum()


def test_clip_from_a_file(tmp_path):
    torch.manual_seed(0)
    clip = TinyClip()
    save_script(clip, torch.zeros(1, 3, 32, 32), tmp_path / "clip.pt")
    extractor = resolve("clip-vit-b-32", weights_path=tmp_path / "clip.pt")
    images = random_images(3)
    rows = extractor(images)
    assert extractor.num_features == 24
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)
    with torch.no_grad():
        plain = clip.visual((images / 255 - mean) / std)
    # torch-fidelity rounds CLIP's weights to half precision, in which OpenAI published them.
    torch.testing.assert_close(rows, plain, rtol=2e-3, atol=2e-3)
    assert resolve("clip-vit-b-32", weights_path=tmp_path / "clip.pt").network is extractor.network
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        torch.testing.assert_close(extractor.to(dtype=dtype)(images), rows, rtol=0.05, atol=0.05)


def test_dinov2_from_torchscript_and_from_a_clone(tmp_path):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(3, 384, 14, stride=14), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    save_script(backbone, torch.zeros(1, 3, 224, 224), tmp_path / "dinov2.pt")
    images = random_images(2, side=224)
    rows = resolve("dinov2-vit-s-14", weights_path=tmp_path / "dinov2.pt")(images)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    with torch.no_grad():
        plain = backbone((images / 255 - mean) / std)
    torch.testing.assert_close(rows, plain, rtol=1e-4, atol=1e-5)
    half = resolve("dinov2-vit-s-14", weights_path=tmp_path / "dinov2.pt").to(dtype=torch.bfloat16)
    torch.testing.assert_close(half(images), rows, rtol=0.05, atol=0.05)

    clone = tmp_path / "dinov2"
    clone.mkdir()
    torch.save(backbone.state_dict(), clone / "weights.pth")
    (clone / "hubconf.py").write_text(
        "import os, torch\n"
        "from torch import nn\n"
        "def dinov2_vits14():\n"
        "    net = nn.Sequential(nn.Conv2d(3, 384, 14, stride=14), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
        "    net.load_state_dict(torch.load(os.path.join(os.path.dirname(__file__), 'weights.pth')))\n"
        "    return net\n"
    )
    before = list(sys.path)
    extractor = resolve("dinov2-vit-s-14", weights_path=clone)
    assert sys.path == before
    torch.testing.assert_close(extractor(images), rows)
    with pytest.raises(WeightsError, match="weights without a network"):
        resolve("dinov2-vit-s-14", weights_path=clone / "weights.pth")


def test_float_images_for_the_other_networks(tmp_path):
    torch.manual_seed(0)
    save_script(TinyClip(), torch.zeros(1, 3, 32, 32), tmp_path / "clip.pt")
    images = random_images(2)
    rows = resolve("clip-vit-b-32", weights_path=tmp_path / "clip.pt")(images)
    floats = resolve("clip-vit-b-32", weights_path=tmp_path / "clip.pt", normalize=True)(images.double() / 255)
    torch.testing.assert_close(floats, rows, rtol=1e-2, atol=2e-2)  # (x / 255) * 255 may round down by one step
