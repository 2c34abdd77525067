"""Finite sources of samples on disk: folders of images, and arrays of images or features."""

from tm_bandit.data.arrays import ArraySource, is_statistics_file, open_arrays
from tm_bandit.data.images import IMAGE_SUFFIXES, ImageFolder, decode_image, list_images
from tm_bandit.data.sampler import SourceSampler
from tm_bandit.data.source import SampleSource, open_source

__all__ = [
    "IMAGE_SUFFIXES",
    "ArraySource",
    "ImageFolder",
    "SampleSource",
    "SourceSampler",
    "decode_image",
    "is_statistics_file",
    "list_images",
    "open_arrays",
    "open_source",
]
