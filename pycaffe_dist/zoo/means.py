"""The mean of ImageNet's images, for nets whose mean file is not there."""

from __future__ import annotations

import os

from pycaffe_dist.errors import UsageError
from pycaffe_dist.log import logger

# Caffe's: blue, green, red.
_IMAGENET = (104.0, 117.0, 123.0)
_IMAGENET_FILE = "imagenet_mean.binaryproto"


def mean_instead(file: str, place: str) -> tuple[float, ...]:
    """Return the mean per channel that stands for a missing file; raises UsageError for others."""
    if os.path.basename(file) != _IMAGENET_FILE:
        raise UsageError(f"{place}: there is no mean file '{file}'")
    values = ", ".join(f"{value:g}" for value in _IMAGENET)
    logger.info("%s is not there: the mean is ImageNet's, %s", file, values)
    return _IMAGENET
