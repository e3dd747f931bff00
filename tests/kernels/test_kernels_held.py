"""Weights that are held: convolutions for these images alone, against plain loops in float64."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels.convolution import Convolution, ConvolutionGeometry
from pycaffe_dist.kernels.inner_product import InnerProduct
from pycaffe_dist.kernels.pooling import PoolingGeometry, max_pool_forward
from pycaffe_dist.storage import aligned_zeros

pytestmark = pytest.mark.usefixtures("two_threads")

# Images, channels, height, width, outputs, kernel, stride, pad, group.
CONVOLUTIONS = [
    (1, 64, 14, 14, 128, 1, 1, 0, 1),
    (2, 512, 7, 7, 96, 1, 1, 0, 1),
    (2, 1030, 7, 7, 70, 1, 1, 0, 1),
    (3, 33, 2, 3, 5, 1, 1, 0, 1),
    (1, 130, 30, 29, 40, 1, 1, 0, 1),
    (1, 600, 6, 6, 33, 1, 1, 0, 3),
    (1, 64, 14, 14, 40, 1, 2, 0, 1),
    (1, 64, 15, 15, 64, 1, 2, 0, 2),
    (1, 96, 28, 28, 128, 3, 1, 1, 1),
    (1, 192, 14, 14, 320, 3, 1, 1, 1),
    (1, 3, 65, 65, 96, 11, 4, 0, 1),
    (1, 3, 64, 64, 64, 7, 2, 3, 1),
    (1, 32, 13, 13, 32, 3, 1, 1, 32),
    (2, 64, 27, 27, 64, 5, 1, 2, 2),
    (1, 64, 6, 6, 50, 6, 1, 0, 1),
    (1, 16, 20, 20, 33, 3, 2, 1, 1),
]


def random(rng, *shape):
    """Return random numbers in memory like a blob's."""
    array = aligned_zeros(int(np.prod(shape)), np.dtype(np.float32)).reshape(shape)
    array[...] = rng.standard_normal(shape)
    return array


def assert_close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("sizes", CONVOLUTIONS)
def test_a_convolution_that_holds_its_weights(sizes):
    n, c, h, w, m, k, s, p, group = sizes
    rng = np.random.default_rng(0)
    geometry = ConvolutionGeometry((k, k), (s, s), (p, p), (1, 1), group)
    x, weights, bias = random(rng, n, c, h, w), random(rng, m, c // group, k, k), random(rng, m)
    exact = Convolution(x.shape, weights.shape, geometry, np.float64)
    wanted = np.zeros(exact.y_shape)
    exact.forward(x.astype(np.float64), weights.astype(np.float64), None, wanted)
    wanted += bias[:, None, None]
    plan, y = Convolution(x.shape, weights.shape, geometry, alone=True), random(rng, *exact.y_shape)
    plan.hold(weights)
    for _ in range(2):
        plan.forward(x, None, bias, y)
        assert_close(y, wanted)
    plan.forward(x, None, bias, y, 0.5)
    assert_close(y, np.where(wanted < 0, 0.5 * wanted, wanted))
    plan.hold(2 * weights)
    plan.forward(x, None, 2 * bias, y)
    assert_close(y, 2 * wanted)
    if plan.can_add:
        plan = Convolution(x.shape, weights.shape, geometry, alone=True, adds=True)
        plan.hold(weights)
        wanted += y
        plan.forward(x, None, bias, y, 0.0)
        assert_close(y, np.maximum(wanted, 0))


def test_which_convolutions_can_add():
    def can_add(kernel, pad, dtype=np.float32):
        geometry = ConvolutionGeometry((kernel,) * 2, (1, 1), (pad,) * 2, (1, 1), 1)
        return Convolution((1, 4, 8, 8), (6, 4, kernel, kernel), geometry, dtype).can_add

    assert can_add(1, 0)
    assert not can_add(1, 1)
    assert not can_add(3, 1)
    assert not can_add(1, 0, np.float64)


@pytest.mark.parametrize("m", [1, 2, 4, 5])
@pytest.mark.parametrize(("n", "k"), [(1, 16), (7, 33), (130, 1000), (12, 3)])
def test_an_inner_product_of_few_samples(m, n, k):
    rng = np.random.default_rng(0)
    x, w, bias, y = (random(rng, *shape) for shape in ((m, k), (n, k), (n,), (m, n)))
    wanted = x.astype(np.float64) @ w.T + bias
    plan = InnerProduct(m, n, k, alone=True)
    plan.forward(x, w, bias, y)
    assert_close(y, wanted)
    plan.forward(x, w, bias, y, 0.25)
    assert_close(y, np.where(wanted < 0, 0.25 * wanted, wanted))
    plan.forward(x, w, None, y)
    assert_close(y, wanted - bias)


@pytest.mark.parametrize(
    ("shape", "geometry"),
    [
        ((1, 5, 33, 37), PoolingGeometry((3, 3), (2, 2))),
        ((1, 8, 14, 14), PoolingGeometry((3, 3), (1, 1), (1, 1))),
        ((2, 3, 7, 9), PoolingGeometry((2, 3), (3, 4))),
        ((1, 2, 3, 3), PoolingGeometry((2, 2), (2, 2), (1, 1))),
        ((1, 4, 30, 5), PoolingGeometry((9, 2), (1, 2))),
        ((1, 2, 40, 40), PoolingGeometry((35, 35), (1, 1))),
    ],
)
def test_maxima_without_their_places(shape, geometry):
    x = random(np.random.default_rng(0), *shape)
    x[0, 0, 0, :2] = np.nan, -np.inf
    y = np.zeros((*shape[:2], *geometry.output_shape(shape[2:])), np.float32)
    alone, mask = np.ones_like(y), np.zeros(y.shape, np.int32)
    max_pool_forward(x, y, mask, geometry)
    max_pool_forward(x, alone, None, geometry)
    np.testing.assert_array_equal(alone, y)
