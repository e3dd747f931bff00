"""Pooling kernels against plain loops and Caffe's own outputs."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_reference import golden

from pycaffe_dist.errors import NetError
from pycaffe_dist.kernels import pooling
from pycaffe_dist.kernels.pooling import PoolingGeometry

pytestmark = pytest.mark.usefixtures("two_threads")


CASES = {
    "3x3 stride 2": ((2, 3, 13, 13), PoolingGeometry((3, 3), (2, 2))),
    "3x3 stride 2 even": ((40, 12, 24, 22), PoolingGeometry((3, 3), (2, 2))),
    "2x2": ((3, 5, 8, 24), PoolingGeometry((2, 2), (2, 2))),
    "2x2 odd": ((3, 2, 7, 9), PoolingGeometry((2, 2), (2, 2))),
    "3x3 stride 1 padded": ((2, 3, 9, 28), PoolingGeometry((3, 3), (1, 1), (1, 1))),
    "padded": ((2, 3, 8, 7), PoolingGeometry((3, 3), (2, 2), (1, 1))),
    "pad beyond half": ((2, 3, 8, 7), PoolingGeometry((3, 3), (2, 2), (2, 2))),
    "floor": ((2, 3, 8, 8), PoolingGeometry((3, 3), (2, 2), ceil=False)),
    "rectangular": ((2, 3, 9, 14), PoolingGeometry((2, 5), (3, 2), (1, 0))),
    "stride beyond kernel": ((2, 3, 11, 11), PoolingGeometry((2, 2), (3, 3))),
    "empty last window": ((2, 3, 5, 5), PoolingGeometry((1, 1), (3, 3))),
    "global": ((2, 4, 7, 6), PoolingGeometry((7, 6), (1, 1))),
    "one pixel": ((2, 4, 1, 1), PoolingGeometry((1, 1), (1, 1))),
    "stride beyond a vector": ((1, 2, 40, 40), PoolingGeometry((3, 3), (19, 19))),
    "widest window": ((1, 2, 3, 40), PoolingGeometry((1, 33), (1, 1))),
    "wide, stride 1": ((1, 2, 6, 117), PoolingGeometry((3, 3), (1, 1), (1, 1))),
    "wide, stride 2": ((1, 2, 6, 237), PoolingGeometry((3, 3), (2, 2), (1, 1))),
    "wide, stride 2, no pad": ((2, 2, 7, 235), PoolingGeometry((3, 3), (2, 2))),
    "wide row": ((1, 2, 6, 117), PoolingGeometry((5, 5), (3, 3), (2, 2))),
}


def windows(shape, geometry):
    """Yield (oy, ox, rows, columns, divisor) of every window of Caffe's definition."""
    (height, width), (oh, ow) = shape[-2:], geometry.output_shape(shape[-2:])
    (kh, kw), (sh, sw), (ph, pw) = geometry.kernel, geometry.stride, geometry.pad
    for oy in range(oh):
        for ox in range(ow):
            top, left = oy * sh - ph, ox * sw - pw
            bottom, right = min(top + kh, height + ph), min(left + kw, width + pw)
            area = max(1, bottom - top) * max(1, right - left)
            rows = slice(max(top, 0), max(min(bottom, height), top, 0))
            yield oy, ox, rows, slice(max(left, 0), max(min(right, width), left, 0)), area


def expected_maximum(x, geometry):
    y = np.full((*x.shape[:2], *geometry.output_shape(x.shape[2:])), -np.inf, x.dtype)
    mask = np.full(y.shape, -1, np.int32)
    for oy, ox, rows, columns, _ in windows(x.shape, geometry):
        part = x[:, :, rows, columns]
        if part.size == 0:
            continue
        flat = part.reshape(*x.shape[:2], -1)
        first = flat.argmax(-1)
        y[:, :, oy, ox] = flat.max(-1)
        row, column = np.divmod(first, part.shape[3])
        mask[:, :, oy, ox] = (row + rows.start) * x.shape[3] + column + columns.start
    return y, mask


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mask_dtype", [np.int32, None])
def test_maximum_and_its_gradient(name, dtype, mask_dtype):
    shape, geometry = CASES[name]
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, shape).astype(dtype)  # many equal maxima
    expected, expected_mask = expected_maximum(x, geometry)
    y, mask = np.empty_like(expected), np.empty(expected.shape, mask_dtype or dtype)
    pooling.max_pool_forward(x, y, mask, geometry)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(mask, expected_mask)
    dy, dx = rng.integers(-9, 9, y.shape).astype(dtype), np.full_like(x, np.nan)
    pooling.max_pool_backward(dy, mask, dx, geometry)
    gradient = np.zeros((shape[0] * shape[1], shape[2] * shape[3]), dtype)
    for plane, (places, values) in enumerate(
        zip(expected_mask.reshape(len(gradient), -1), dy.reshape(len(gradient), -1))
    ):
        np.add.at(gradient[plane], places[places >= 0], values[places >= 0])
    np.testing.assert_array_equal(dx, gradient.reshape(shape))


@pytest.mark.parametrize("name", CASES)
def test_maxima_are_the_same_without_a_mask(name, dtype):
    shape, geometry = CASES[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(dtype)
    x[rng.random(shape) < 0.02] = np.nan
    x[rng.random(shape) < 0.02] = -np.inf
    y = np.empty((*shape[:2], *geometry.output_shape(shape[2:])), dtype)
    masked, mask = np.empty_like(y), np.empty(y.shape, np.int32)
    pooling.max_pool_forward(x, y, None, geometry)
    pooling.max_pool_forward(x, masked, mask, geometry)
    np.testing.assert_array_equal(y, masked)


@pytest.mark.parametrize("name", CASES)
def test_average_and_its_gradient(name, dtype):
    shape, geometry = CASES[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(dtype)
    y = np.full((*shape[:2], *geometry.output_shape(shape[2:])), np.nan, dtype)
    dy, dx = rng.standard_normal(y.shape).astype(dtype), np.full_like(x, np.nan)
    expected, gradient = np.zeros(y.shape), np.zeros(shape)
    for oy, ox, rows, columns, area in windows(shape, geometry):
        expected[:, :, oy, ox] = x[:, :, rows, columns].sum((2, 3), dtype=np.float64) / area
        gradient[:, :, rows, columns] += dy[:, :, oy, ox, None, None] / area
    pooling.average_pool_forward(x, y, geometry)
    pooling.average_pool_backward(dy, dx, geometry)
    epsilon = 16 * np.finfo(dtype).eps
    np.testing.assert_allclose(y, expected, rtol=epsilon, atol=4 * epsilon)
    np.testing.assert_allclose(dx, gradient, rtol=epsilon, atol=4 * epsilon)


@pytest.mark.parametrize(
    ("name", "average", "geometry"),
    [
        ("pool_max", False, PoolingGeometry((3, 3), (2, 2))),
        ("pool_max_pad", False, PoolingGeometry((3, 3), (2, 2), (1, 1))),
        ("pool_round_floor", False, PoolingGeometry((3, 3), (2, 2), ceil=False)),
        ("pool_ave_ceil", True, PoolingGeometry((3, 3), (2, 2))),
        ("pool_ave_pad", True, PoolingGeometry((3, 3), (2, 2), (1, 1))),
        ("pool_global_ave", True, PoolingGeometry((4, 6), (1, 1))),
    ],
)
def test_pooling_matches_caffe(name, average, geometry):
    file = golden(name)
    x, dy = file["blob/x"], file["topdiff/y"]
    assert geometry.output_shape(x.shape[2:]) == dy.shape[2:]
    y, dx, mask = np.empty_like(dy), np.empty_like(x), np.empty(dy.shape, np.int32)
    if average:
        pooling.average_pool_forward(x, y, geometry)
        pooling.average_pool_backward(dy, dx, geometry)
    else:
        pooling.max_pool_forward(x, y, mask, geometry)
        pooling.max_pool_backward(dy, mask, dx, geometry)
    np.testing.assert_allclose(y, file["blob/y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, file["bottomdiff/x"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["3x3 stride 2", "2x2", "3x3 stride 1 padded", "wide row"])
def test_a_nan_reaches_every_window_that_holds_it(name, dtype):
    shape, geometry = CASES[name]
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    x[:, :, 2, 1] = np.nan
    y, mask = expected_maximum(x, geometry)
    pooling.max_pool_forward(x, y, mask, geometry)
    for oy, ox, rows, columns, _ in windows(shape, geometry):
        holds = rows.start <= 2 < rows.stop and columns.start <= 1 < columns.stop
        assert np.isnan(y[:, :, oy, ox]).all() == holds


def test_an_infinite_image_has_a_valid_mask(dtype):
    geometry = PoolingGeometry((3, 3), (2, 2), (1, 1))
    x = np.full((1, 1, 7, 20), -np.inf, dtype)
    y, mask = np.empty((1, 1, 4, 11), dtype), np.empty((1, 1, 4, 11), np.int32)
    pooling.max_pool_forward(x, y, mask, geometry)
    assert (mask >= 0).all()


def test_stochastic_pooling_draws_in_proportion_to_the_values():
    geometry = PoolingGeometry((2, 2), (2, 2))
    x = np.tile(np.array([[1.0, 0.0], [2.0, 5.0]], np.float32), (4000, 1, 1, 1))
    random = np.random.default_rng(0).random((4000, 1, 1, 1), np.float32)
    y, mask = np.empty_like(random), np.empty(random.shape, np.int32)
    pooling.stochastic_pool_forward(x, random, y, mask, geometry)
    shares = np.bincount(mask.ravel(), minlength=4) / 4000
    np.testing.assert_allclose(shares, [1 / 8, 0, 2 / 8, 5 / 8], atol=0.03)
    np.testing.assert_array_equal(y.ravel(), x[0].ravel()[mask.ravel()])
    mean = np.empty((4000, 1, 1, 1), np.float32)
    pooling.stochastic_pool_mean(x, mean, geometry)
    np.testing.assert_allclose(mean, 30 / 8)
    pooling.stochastic_pool_mean(np.zeros_like(x), mean, geometry)
    np.testing.assert_array_equal(mean, 0)


def test_a_window_beyond_the_image_is_refused():
    with pytest.raises(NetError, match="does not fit"):
        PoolingGeometry((9, 9), (2, 2)).output_shape((4, 4))
