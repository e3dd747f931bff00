"""Decoded color images are transformed to the same bits as planes of pixels."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels.interleaved import STREAMED_BYTES, transform_interleaved
from pycaffe_dist.kernels.transform import transform_image

# Height and width of the image and of the crop: lines shorter than a vector, with and without a
# rest; crops at the end of the image; and images that are written past the caches, also with few
# lines or lines of hardly a cache line.
SIZES = [
    ((1, 1), (1, 1)),
    ((5, 7), (5, 7)),
    ((9, 8), (4, 8)),
    ((20, 33), (13, 31)),
    ((157, 161), (150, 151)),
    ((152, 152), (152, 152)),
    ((1, 22001), (1, 22001)),
    ((3, 8003), (3, 8003)),
    ((1400, 17), (1399, 17)),
]


def _differences(pixels, crop, dtype, mean, values, offset) -> int:
    """Return how many values of several crops differ, if written ``offset`` elements off."""
    height, width, _ = pixels.shape
    settings = (np.uint64(3), True, True, mean, values, dtype.type(0.25))
    planes = pixels.transpose(2, 0, 1)
    expected = np.empty((3, *crop), dtype)
    memory = np.full(expected.size + 64, -1, dtype)
    out = memory[offset : offset + expected.size].reshape(expected.shape)
    different = 0
    for index in range(6):
        transform_image(planes, index, *settings, expected)
        transform_interleaved(pixels.reshape(-1), height, width, index, *settings, out)
        different += np.count_nonzero(out != expected)
    around = np.concatenate([memory[:offset], memory[offset + expected.size :]])
    return different + np.count_nonzero(around != -1)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.long)])
@pytest.mark.parametrize("with_image", [True, False])
@pytest.mark.parametrize(("size", "crop"), SIZES)
def test_crops_mirrors_and_means(size, crop, with_image, dtype):
    rng = np.random.default_rng(size[0])
    pixels, dtype = rng.integers(0, 256, (*size, 3), np.uint8), np.dtype(dtype)
    mean = rng.normal(120, 9, (3, *size) if with_image else (0, 0, 0)).astype(dtype)
    for offset in (0, 1, 5):
        assert not _differences(pixels, crop, dtype, mean, np.arange(3, 6, dtype=dtype), offset)


def test_the_large_images_of_these_tests_are_written_past_the_caches():
    bytes_of = [3 * height * width * 4 for _, (height, width) in SIZES]
    assert min(bytes_of) < STREAMED_BYTES < max(bytes_of)
