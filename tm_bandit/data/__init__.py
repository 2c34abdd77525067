"""Finite sources of samples on disk: folders of images, and arrays of images or features."""

from tm_bandit.data.arrays import ArraySource, is_statistics_file
from tm_bandit.data.images import ImageFolder
from tm_bandit.data.sampler import SourceExhaustedError, SourceSampler
from tm_bandit.data.source import SampleSource, open_source

__all__ = [
    "ArraySource",
    "ImageFolder",
    "SampleSource",
    "SourceExhaustedError",
    "SourceSampler",
    "is_statistics_file",
    "open_source",
]
