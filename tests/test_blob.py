"""Blobs: shared and adopted memory."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.blob import Blob
from pycaffe_dist.storage import aligned_zeros

FLOAT = np.dtype(np.float32)


def test_adopted_values_are_not_copied_and_are_shared():
    blob, split = Blob((2, 3)), Blob((2, 3))
    blob.data[...] = 1
    split.share_data(blob)
    values = aligned_zeros(6, FLOAT).reshape(2, 3)
    values[...] = 7
    blob.adopt(values)
    assert np.shares_memory(blob.data, values) and np.shares_memory(split.data, values)
    split.data[0, 0] = 8
    assert values[0, 0] == 8 and blob.shares_data_with(split)


def test_adopting_takes_the_shape_and_leaves_the_old_memory_alone():
    blob = Blob((2, 3))
    first, second = aligned_zeros(6, FLOAT), aligned_zeros(32, FLOAT)
    blob.adopt(first)
    blob.adopt(second.reshape(4, 8))
    blob.data[...] = 5
    assert blob.shape == (4, 8) and not first.any()
    blob.reshape(5, 8)  # more than was adopted
    blob.data[...] = 6
    assert (second == 5).all()


@pytest.mark.parametrize("offset", [0, 3, 16])
def test_adopted_memory_is_aligned(offset):
    blob = Blob()
    values = aligned_zeros(40, FLOAT)[offset : offset + 16]
    values[...] = np.arange(16)
    blob.adopt(values)
    np.testing.assert_array_equal(blob.data, np.arange(16))
    assert blob.data.ctypes.data % 64 == 0
    assert np.shares_memory(blob.data, values) == (offset % 16 == 0)
