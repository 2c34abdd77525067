"""Pictures of noise, in memory and in folders."""

import numpy as np
from PIL import Image


def pictures(seed, count, shift, size=8):
    noise = np.random.default_rng(seed).normal(120 + shift, 40, (count, size, size, 3))
    return noise.clip(0, 255).astype(np.uint8)


def save_pictures(folder, images):
    folder.mkdir(parents=True)
    for index, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{index:04d}.png")
