"""Sums of squares of arrays."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels.norms import sum_of_squares


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(0,), (1,), (16383,), (3, 5, 7001)])
def test_sums_of_squares_equal_numpys(dtype, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    wide = x.astype(np.float64)
    assert sum_of_squares(x) == pytest.approx(np.vdot(wide, wide), rel=1e-6)
    if x.size:
        x.reshape(-1)[-1] = np.nan
        assert np.isnan(sum_of_squares(x))
