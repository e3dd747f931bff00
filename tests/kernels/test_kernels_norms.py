"""Norms of arrays."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels.norms import distance, norm, norm_and_copy


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(0,), (1,), (16383,), (3, 5, 7001)])
def test_norms_equal_numpys(dtype, shape):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    wide = x.astype(np.float64)
    assert norm(x) == pytest.approx(np.linalg.norm(wide), rel=1e-6)
    assert distance(x, y) == pytest.approx(np.linalg.norm(wide - y), rel=1e-6)
    assert norm_and_copy(x, y) == norm(x)
    assert (x == y).all()
    if x.size:
        y.reshape(-1)[-1] = np.nan
        assert np.isnan(norm(y)) and np.isnan(distance(x, y))
