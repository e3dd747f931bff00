"""Norms and checksums of arrays."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels.checksum import crc32c
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


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # The examples of RFC 3720, B.4.
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_crc32c(data, expected):
    assert crc32c(np.frombuffer(data, np.uint8)) == expected
