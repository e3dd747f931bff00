"""Local response normalisation against its formula and Caffe's own outputs."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_reference import golden

from pycaffe_dist.kernels import lrn

pytestmark = pytest.mark.usefixtures("two_threads")


def windows(values, size, axes):
    """Return the sums of ``values`` over windows of ``size`` on each of ``axes``."""
    for axis in axes:
        half = size // 2
        length = values.shape[axis]
        values = np.stack(
            [
                values.take(range(max(0, i - half), min(length, i + half + 1)), axis).sum(axis)
                for i in range(length)
            ],
            axis,
        )
    return values


def expected(x, dy, size, factor, beta, k, axes):
    """Return (y, dx) of y = x·(k + factor·window(x²))^-beta in float64."""
    x, dy = x.astype(np.float64), dy.astype(np.float64)
    scale = k + factor * windows(x * x, size, axes)
    y = x * scale**-beta
    dx = dy * scale**-beta - 2 * factor * beta * x * windows(dy * y / scale, size, axes)
    return y, dx


@pytest.mark.parametrize("shape", [(2, 9, 4, 5), (3, 2, 7, 1), (1, 40, 27, 27), (2, 1, 3, 3)])
@pytest.mark.parametrize(("size", "beta"), [(5, 0.75), (3, 0.5), (1, 0.75)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_across_channels(shape, size, beta, dtype):
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    y, scale, dx = (np.full_like(x, np.nan) for _ in range(3))
    lrn.lrn_across_forward(x, y, scale, size, 0.3, beta, 2.0)
    lrn.lrn_across_backward(x, y, scale, dy, dx, size, 0.3, beta)
    expected_y, expected_dx = expected(x, dy, size, 0.3 / size, beta, 2.0, (1,))
    tolerance = 32 * np.finfo(dtype).eps
    np.testing.assert_allclose(y, expected_y, rtol=0, atol=tolerance)
    np.testing.assert_allclose(dx, expected_dx, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", [(2, 4, 7, 6), (1, 3, 2, 2), (2, 5, 30, 33)])
@pytest.mark.parametrize(("size", "beta"), [(3, 0.75), (5, 0.6)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_within_a_channel(shape, size, beta, dtype):
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    y, scale, dx = (np.full_like(x, np.nan) for _ in range(3))
    lrn.lrn_within_forward(x, y, scale, size, 0.3, beta)
    lrn.lrn_within_backward(x, y, scale, dy, dx, size, 0.3, beta)
    expected_y, expected_dx = expected(x, dy, size, 0.3 / size**2, beta, 1.0, (2, 3))
    tolerance = 32 * np.finfo(dtype).eps
    np.testing.assert_allclose(y, expected_y, rtol=0, atol=tolerance)
    np.testing.assert_allclose(dx, expected_dx, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["lrn_across", "lrn_within"])
def test_lrn_matches_caffe(name):
    file = golden(name)
    x, dy = file["blob/x"], file["topdiff/y"]
    y, scale, dx = (np.empty_like(x) for _ in range(3))
    if name == "lrn_across":
        lrn.lrn_across_forward(x, y, scale, 5, 0.01, 0.75)
        lrn.lrn_across_backward(x, y, scale, dy, dx, 5, 0.01, 0.75)
    else:
        lrn.lrn_within_forward(x, y, scale, 3, 0.2, 0.75)
        lrn.lrn_within_backward(x, y, scale, dy, dx, 3, 0.2, 0.75)
    np.testing.assert_allclose(y, file["blob/y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, file["bottomdiff/x"], rtol=1e-4, atol=1e-5)


def test_a_nan_reaches_its_neighbours():
    x = np.ones((1, 9, 2, 2), np.float32)
    x[0, 4, 1, 1] = np.nan
    y, scale = np.empty_like(x), np.empty_like(x)
    lrn.lrn_across_forward(x, y, scale, 3, 0.1, 0.75)
    assert np.isnan(y[0, 3:6, 1, 1]).all()
    assert np.isfinite(y[0, :, 0, 0]).all()
