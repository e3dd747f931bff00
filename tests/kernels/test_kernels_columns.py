"""Copies of columns, of any shape, on several threads."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels.columns import put_columns, take_columns
from pycaffe_dist.threads import set_threads, thread_count


@pytest.mark.parametrize("shape", [(16, 9000), (1, 200001), (3, 70000), (70000, 3), (0, 5), (4, 0)])
def test_columns_are_put_and_taken(shape):
    before = thread_count()
    set_threads(2)
    part = np.random.default_rng(0).standard_normal(shape, np.float32)
    whole = np.full((shape[0], shape[1] + 7), -1, np.float32)
    put_columns(part, whole, 5)
    back = np.empty_like(part)
    take_columns(whole, 5, back)
    set_threads(before)
    np.testing.assert_array_equal(whole[:, 5:-2], part)
    np.testing.assert_array_equal(back, part)
    assert (whole[:, :5] == -1).all() and (whole[:, -2:] == -1).all()
