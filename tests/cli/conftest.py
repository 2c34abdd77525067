"""A folder with everything a user might have lying around: pictures, arrays, a network and samplers."""

import shutil
import textwrap

import numpy as np
import pytest

from tests._pictures import pictures, save_pictures
from tests.cli.parts import Outcome, pooled
from tm_bandit.cli import main

MODULE = """
import lightning.pytorch as pl
import torch
from torch import nn

embedded = []

def pool(images):
    embedded.append(len(images))
    return nn.functional.adaptive_avg_pool2d(images.double() / 255, 2).flatten(1)

class Pool(nn.Module):
    num_features = 12
    def forward(self, images):
        return pool(images)

class NeedsArguments(nn.Module):
    def __init__(self, size):
        super().__init__()

def classes(images):
    return 3 * pool(images)

def good(num_samples, generator):
    noise = torch.randn(num_samples, 3, 8, 8, generator=generator)
    return (125 + 40 * noise).clamp(0, 255).byte()

def bad(num_samples):
    return (190 + 40 * torch.randn(num_samples, 3, 8, 8)).clamp(0, 255).byte()

noise = torch.Generator().manual_seed(7)

def own(num_samples):
    return good(num_samples, noise)

def features(num_samples, generator):
    return pool(good(num_samples, generator))

def failing(num_samples):
    raise OSError("the disk is gone")

class Painter(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.tensor(0.0))
    def sample(self, num_samples, generator):
        noise = torch.randn(num_samples, 3, 8, 8, generator=generator)
        return (self.level + 40 * noise).clamp(0, 255).byte()

class Shifted(Painter):
    def sample(self, num_samples, generator, shift=0.0):
        return (super().sample(num_samples, generator).float() + shift).clamp(0, 255).byte()

class Stranger(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(2, 2)

def interrupted(num_samples):
    raise KeyboardInterrupt

number = 3
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The read-only part: made once."""
    root = tmp_path_factory.mktemp("library")
    save_pictures(root / "real", pictures(0, 300, 0))
    for seed, (name, shift) in enumerate({"near": 4, "mid": 25, "far": 60}.items(), start=1):
        images = pictures(seed, 150, shift)
        save_pictures(root / name, images)
        np.savez(root / f"{name}.npz", images)
        np.save(root / f"{name}.npy", pooled(images))
    save_pictures(root / "few", pictures(9, 30, 25))
    np.save(root / "real.npy", pooled(pictures(0, 300, 0)))
    np.savez(root / "real_images.npz", pictures(0, 300, 0))
    (root / "cli_parts.py").write_text(textwrap.dedent(MODULE))
    return root


@pytest.fixture
def here(library, tmp_path, monkeypatch):
    """An empty working directory in which the library is at hand."""
    for entry in library.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path


@pytest.fixture
def run(here, capsys):
    """Run a command in this process."""

    def call(*words):
        try:
            code = main([str(word) for text in words for word in (text.split() if isinstance(text, str) else [text])])
        except SystemExit as leave:
            code = leave.code
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def references(library, tmp_path_factory):
    """Reference files of the function and of the module, made once."""
    folder = tmp_path_factory.mktemp("references")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(library)
        for name, network in (("ref.npz", "pool"), ("other.npz", "Pool")):
            words = ["stats", "real", "-o", str(folder / name), "--feature", f"cli_parts:{network}", "--workers", "0"]
            assert main(words) == 0
    return folder


@pytest.fixture
def reference(references, here):
    """A reference file that fits the network, and one of another network beside it."""
    for path in references.iterdir():
        shutil.copy(path, here)
    return "ref.npz"
