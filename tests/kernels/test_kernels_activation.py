"""Channels with a positive value."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels.activation import positive_channels


@pytest.mark.parametrize("shape", [(4, 70), (3, 5, 1), (2, 6, 20, 31)])
def test_positive_channels_are_numpys(shape):
    rng = np.random.default_rng(1)
    x = np.where(rng.random(shape) < 0.9, -rng.random(shape), 0).astype(np.float32)
    assert not positive_channels(x).any()
    x[-1, 1:-1:2].reshape(-1)[-1] = 1e-30
    x[0, -1] = 1
    x[0, 0] = np.nan
    others = tuple(range(2, x.ndim))
    np.testing.assert_array_equal(positive_channels(x), (x > 0).any(axis=(0, *others)))
