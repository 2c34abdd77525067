"""The networks of torch-fidelity give the features of the models that they are made of."""

import sys

import pytest
import torch
from torch import nn

from tests._inception import random_images
from tests.extractors.networks import TinyClip, save_script
from tm_bandit.errors import WeightsError
from tm_bandit.extractors import resolve


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


def test_dinov2_from_a_clone(tmp_path):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(3, 384, 14, stride=14), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = random_images(2, side=224)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    with torch.no_grad():
        plain = backbone((images / 255 - mean) / std)

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
    rows = extractor(images)
    torch.testing.assert_close(rows, plain, rtol=1e-4, atol=1e-5)
    half = resolve("dinov2-vit-s-14", weights_path=clone).to(dtype=torch.bfloat16)
    torch.testing.assert_close(half(images), rows, rtol=0.05, atol=0.05)
    with pytest.raises(WeightsError, match="weights without a network"):
        resolve("dinov2-vit-s-14", weights_path=clone / "weights.pth")


def test_float_images_for_the_other_networks(tmp_path):
    torch.manual_seed(0)
    save_script(TinyClip(), torch.zeros(1, 3, 32, 32), tmp_path / "clip.pt")
    images = random_images(2)
    rows = resolve("clip-vit-b-32", weights_path=tmp_path / "clip.pt")(images)
    floats = resolve("clip-vit-b-32", weights_path=tmp_path / "clip.pt", normalize=True)(images.double() / 255)
    torch.testing.assert_close(floats, rows, rtol=1e-2, atol=2e-2)  # (x / 255) * 255 may round down by one step
