"""Pooling, LRN, softmax and random numbers on a GPU against those on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels import lrn, pooling, softmax
from pycaffe_dist.kernels.pooling import PoolingGeometry
from pycaffe_dist.kernels.uniform import uniform

# Tolerances by the type of data; the reference is computed in float64 from the same inputs.
PRECISION = {np.float64: 1e-12, np.float32: 3e-5, np.float16: 1e-2}
# Planes, kernel, stride, pad.
WINDOWS = {
    "overlapping": ((2, 3, 9, 8), (3, 3), (2, 2), (0, 0)),
    "padded": ((2, 2, 7, 10), (3, 2), (1, 2), (1, 1)),
    "gaps": ((1, 3, 10, 11), (2, 2), (3, 5), (0, 0)),
    "beyond the border": ((1, 2, 7, 8), (1, 2), (4, 6), (0, 0)),
    "global": ((3, 2, 5, 6), (5, 6), (1, 1), (0, 0)),
    "wide": ((1, 1, 3, 300), (2, 3), (1, 1), (0, 0)),
}


def random(*shape, seed=5):
    """Numbers of few bits, the same in every type."""
    return np.round(np.random.default_rng(seed).standard_normal(shape) * 32) / 32


def compare(gpu, function, arrays, outputs, dtype, *args):
    """Compare ``arrays`` with the indices ``outputs`` after ``function`` on both devices.

    Arrays of floats have ``dtype`` on the GPU and float64 on the host.
    """
    there = [
        gpu.to_device(array.astype(dtype) if array.dtype.kind == "f" else array) for array in arrays
    ]
    here = [
        array.astype(dtype).astype(float) if array.dtype.kind == "f" else array.copy()
        for array in arrays
    ]
    function(*here, *args)
    function(*there, *args)
    for index in outputs:
        found, wanted = gpu.to_host(there[index]), here[index]
        np.testing.assert_allclose(found, wanted, rtol=PRECISION[dtype], atol=PRECISION[dtype])
    return [gpu.to_host(array) for array in there]


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("dtype", PRECISION)
def test_pooling_equals_the_cpus(name, dtype, on_gpu):
    shape, *sizes = WINDOWS[name]
    geometry = PoolingGeometry(*sizes)
    y = np.zeros((*shape[:2], *geometry.output_shape(shape[2:])))
    x, dy = random(*shape), random(*y.shape)
    mask = np.zeros(y.shape, np.int32)
    masks = compare(on_gpu, pooling.max_pool_forward, [x, y, mask], [0, 1, 2], dtype, geometry)
    compare(on_gpu, pooling.max_pool_forward, [x, y, mask * 1.0], [1, 2], dtype, geometry)
    compare(on_gpu, pooling.max_pool_backward, [dy, masks[2], x], [2], dtype, geometry)
    compare(on_gpu, pooling.average_pool_forward, [x, y], [1], dtype, geometry)
    compare(on_gpu, pooling.average_pool_backward, [dy, x], [1], dtype, geometry)
    compare(on_gpu, pooling.stochastic_pool_mean, [abs(x), y], [1], dtype, geometry)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stochastic_pooling_picks_what_the_cpu_picks(dtype, on_gpu):
    geometry = PoolingGeometry((2, 3), (2, 3))
    x, y = abs(random(2, 3, 8, 9)), np.zeros((2, 3, 4, 3))
    draws = [np.empty(y.shape, dtype), on_gpu.empty(y.shape, dtype)]
    key = np.array([2**63 + 12345], np.uint64)
    for array, bits in zip(draws, (key, on_gpu.to_device(key))):
        uniform(array, bits)
    np.testing.assert_array_equal(on_gpu.to_host(draws[1]), draws[0])
    assert draws[0].min() < 0.1 and draws[0].max() > 0.9
    arrays = [x, draws[0], y, np.zeros(y.shape, np.int32)]
    compare(on_gpu, pooling.stochastic_pool_forward, arrays, [2, 3], dtype, geometry)


def test_maxima_of_ties_and_nans(on_gpu):
    x = np.zeros((1, 1, 4, 4))
    x[0, 0, 2, 1] = np.nan
    x[0, 0, :2, 2:] = -np.inf
    y, mask = np.zeros((1, 1, 2, 2)), np.zeros((1, 1, 2, 2), np.int32)
    geometry = PoolingGeometry((2, 2), (2, 2))
    found = compare(on_gpu, pooling.max_pool_forward, [x, y, mask], [1, 2], np.float32, geometry)
    assert found[2].tolist() == [[[[0, 2], [9, 10]]]]


# The last one's channels are cut into chunks, the last of which is shorter.
@pytest.mark.parametrize("shape", [(2, 7, 3, 5), (1, 2, 4, 33), (2, 85, 2, 3)])
@pytest.mark.parametrize("size", [1, 5, 9])
@pytest.mark.parametrize("dtype", PRECISION)
def test_lrn_equals_the_cpus(shape, size, dtype, on_gpu):
    x, dy, new = random(*shape), random(*shape, seed=6), np.zeros(shape)
    options = size, 0.7, 0.75 if size > 1 else 0.6
    ways = [
        (lrn.lrn_across_forward, lrn.lrn_across_backward),
        (lrn.lrn_within_forward, lrn.lrn_within_backward),
    ]
    for forward, backward in ways:
        results = compare(on_gpu, forward, [x, new, new], [1, 2], dtype, *options)
        x, y, scale = (result.astype(float) for result in results)
        compare(on_gpu, backward, [x, y, scale, dy, new], [4], dtype, *options)


@pytest.mark.parametrize("shape", [(3, 5, 1), (4, 33, 1), (2, 300, 1), (2, 4, 70)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", PRECISION)
def test_softmax_equals_the_cpus(shape, dtype, weighted, on_gpu):
    x = random(*shape) * 4
    x[0, :2, 0] = -np.inf
    y = compare(on_gpu, softmax.softmax_forward, [x, np.zeros(shape)], [1], dtype)[1].astype(float)
    compare(on_gpu, softmax.softmax_backward, [y, random(*shape), y * 0], [2], dtype)
    label = np.random.default_rng(1).integers(0, shape[1], (shape[0], shape[2])).astype(float)
    label[1, 0] = 2
    outer = shape[0]
    loss, counts = on_gpu.empty(outer, np.float64), on_gpu.empty((2, outer), np.int64)
    expected, wanted = np.empty(outer), np.empty((2, outer), np.int64)
    label[-1, -1] = shape[1]  # none of the classes
    weights = np.linspace(0.5, 2, shape[1] * weighted)
    weights_there = on_gpu.to_device(weights)
    softmax.label_loss(y, label, weights, 2, expected, *wanted)
    there = [on_gpu.to_device(array.astype(dtype)) for array in (y, label)]
    softmax.label_loss(*there, weights_there, 2, loss, counts[0], counts[1])
    ok = wanted[1] < 0
    np.testing.assert_allclose(on_gpu.to_host(loss)[ok], expected[ok], rtol=PRECISION[dtype])
    np.testing.assert_array_equal(on_gpu.to_host(counts)[0][ok], wanted[0][ok])
    np.testing.assert_array_equal(on_gpu.to_host(counts)[1], wanted[1])
    label[-1, -1] = 0
    there = [on_gpu.to_device(array.astype(dtype)) for array in (y, label, y)]
    three = on_gpu.to_device(np.full(1, 3.0))
    softmax.label_loss_gradient(*there[:2], weights_there, 2, 0.5, three, there[2])
    gradient = np.empty_like(y)
    softmax.label_loss_gradient(y, label, weights, 2, 0.5, np.full(1, 3.0), gradient)
    np.testing.assert_allclose(on_gpu.to_host(there[2]), gradient, atol=PRECISION[dtype])
