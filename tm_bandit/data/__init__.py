"""Finite sources of samples on disk: folders of images, and arrays of images or features."""

from tm_bandit.data.arrays import ArraySource, array_names, is_statistics_file, open_array
from tm_bandit.data.images import IMAGE_SUFFIXES, ImageFolder, decode_image, list_images
from tm_bandit.data.sampler import SourceExhaustedError, SourceSampler
from tm_bandit.data.source import SampleSource, open_source

__all__ = [
    "IMAGE_SUFFIXES",
    "ArraySource",
    "ImageFolder",
    "SampleSource",
    "SourceExhaustedError",
    "SourceSampler",
    "array_names",
    "decode_image",
    "is_statistics_file",
    "list_images",
    "open_array",
    "open_source",
]
