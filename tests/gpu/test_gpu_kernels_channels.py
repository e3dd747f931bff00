"""Per-channel kernels against the CPU's: sizes that fill no block, sums in many parts, float16."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels.channel_affine import (
    affine,
    affine_in_place,
    gradient_sums,
    normalize_gradient,
    rectified_gradient_sums,
    statistics,
)
from pycaffe_dist.kernels.cuda.division import division
from pycaffe_dist.kernels.normalization import (
    add_affine_gradients,
    add_to_running_sums,
    gradient_terms,
    running_statistics,
    shift_and_scale,
)

# One block of a channel's elements; many; some rows of neighbouring channels; a few odd ones.
SHAPES = [(2, 3, 41), (3, 2, 4099), (600, 35, 1), (5, 1, 1), (1, 40, 3)]
TYPES = [(np.float32, np.float32), (np.float64, np.float64), (np.float16, np.float32)]


def both(gpu, function, inputs, outputs, *rest):
    """Run a primitive on both devices; return the pairs of outputs, the GPU's first.

    The CPU computes in the parameters' type if the GPU has float16.
    """
    here = [a.astype(np.float32) if a.dtype == np.float16 else a for a in (*inputs, *outputs)]
    there = [gpu.to_device(a) for a in (*inputs, *outputs)]
    function(*there[: len(inputs)], *there[len(inputs) :], *rest)
    function(*here[: len(inputs)], *here[len(inputs) :], *rest)
    return [
        (gpu.to_host(found).astype(np.float64), expected)
        for found, expected in zip(there[len(inputs) :], here[len(inputs) :])
    ]


def assert_equal(pairs, dtype):
    tolerance = {np.float16: 2e-3, np.float32: 2e-5, np.float64: 1e-12}[dtype]
    for found, expected in pairs:
        scale = max(1, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)


def data(shape, dtype, seed=0):
    return (3 + 2 * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "parameter"), TYPES, ids=lambda t: t.__name__)
def test_channels_on_a_gpu(shape, dtype, parameter, on_gpu):
    channels = shape[1]
    x, dy = data(shape, dtype), data(shape, dtype, 1)
    vectors = [data(channels, parameter, seed) for seed in range(2, 6)]
    pair = [np.empty(channels), np.empty(channels)]
    assert_equal(both(on_gpu, statistics, [x], pair), dtype)
    # A sum's error is relative to its terms, not to the sum.
    sums = both(on_gpu, gradient_sums, [x, dy, vectors[0]], pair)
    count = shape[0] * shape[2]
    assert_equal([(found / count, expected / count) for found, expected in sums], dtype)

    shift, scale, bias, _ = (on_gpu.to_device(vector) for vector in vectors)
    out = on_gpu.to_device(np.empty_like(x))
    affine(on_gpu.to_device(x), out, shift, scale, bias)
    as_column = [vector[:, None].astype(np.float64) for vector in vectors]
    a, s, o, k = as_column
    assert_equal([(on_gpu.to_host(out), (x - a) * s + o)], dtype)
    normalize_gradient(
        on_gpu.to_device(x), on_gpu.to_device(dy), out, *map(on_gpu.to_device, vectors)
    )
    assert_equal([(on_gpu.to_host(out), (dy - o - (x - a) * k) * s)], dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "parameter"), TYPES, ids=lambda t: t.__name__)
def test_rectified_channels_on_a_gpu(shape, dtype, parameter, on_gpu):
    channels, count = shape[1], shape[0] * shape[2]
    x, dy, sign = data(shape, dtype), data(shape, dtype, 1), data(shape, dtype, 2) - dtype(3)
    vectors = [data(channels, parameter, seed) for seed in range(3, 6)]
    vectors[2] -= parameter(6)

    def forward(shift, scale, bias, values, kept):
        affine_in_place(values, kept, shift, scale, bias, 0.5)

    results = both(on_gpu, forward, vectors, [x.copy(), np.empty_like(x)])
    assert_equal(results, dtype)
    assert count < 10 or ((results[0][1] < 0).any() and (results[0][1] > 0).any())

    def backward(sign, x, shift, gradient, *sums):
        rectified_gradient_sums(sign, x, gradient, shift, 0.5, *sums)

    pair = [np.empty(channels), np.empty(channels)]
    rectified, *sums = both(on_gpu, backward, [sign, x, vectors[0]], [dy.copy(), *pair])
    assert_equal([rectified, (rectified[1], dy * np.where(sign > 0, 1, 0.5))], dtype)
    assert_equal([(found / count, expected / count) for found, expected in sums], dtype)


def test_the_variance_of_a_channel_far_from_zero_does_not_cancel(on_gpu):
    x = (1e4 + np.random.default_rng(0).standard_normal((2, 1, 5000))).astype(np.float32)
    mean, variance = on_gpu.zeros(1, float), on_gpu.zeros(1, float)
    statistics(on_gpu.to_device(x), mean, variance)
    np.testing.assert_allclose(on_gpu.to_host(mean), x.mean(dtype=float), rtol=1e-7)
    np.testing.assert_allclose(on_gpu.to_host(variance), x.var(dtype=float), rtol=1e-4)


def test_batch_norms_work_on_its_statistics(on_gpu):
    n = 300
    mean, variance = data(n, float), data(n, float, 1) ** 2
    sums = [data(n, np.float32, 2), data(n, np.float32, 3) ** 2, np.array([2.5], np.float32)]
    vectors = [np.empty(n, np.float32), np.empty(n, np.float32)]

    def run(function, inputs, outputs, *middle):
        def call(*arrays):
            function(*arrays[: len(inputs)], *middle, *arrays[len(inputs) :])

        assert_equal(both(on_gpu, call, inputs, outputs), np.float32)

    run(add_to_running_sums, [mean, variance], [each.copy() for each in sums], 0.9, 0.3, 1.1)
    run(
        lambda *arrays: add_to_running_sums(*arrays, None),
        [mean, variance],
        [each.copy() for each in sums[:2]],
        *(0.9, 0.1, 1.0),
    )
    run(running_statistics, sums, [np.empty(n), np.empty(n)])
    run(
        lambda means, variances, *found: running_statistics(means, variances, None, *found),
        sums[:2],
        [np.empty(n), np.empty(n)],
    )
    run(running_statistics, [*sums[:2], np.zeros(1, np.float32)], [np.empty(n), np.empty(n)])
    run(shift_and_scale, [mean, variance], vectors, 1e-3)
    for spread in (True, False):
        scale, offset, slope = (on_gpu.to_device(v) for v in (sums[0], *vectors))
        given = on_gpu.to_device(mean), on_gpu.to_device(variance)
        gradient_terms(*given, 7, scale, spread, offset, slope)
        assert_equal([(on_gpu.to_host(offset), mean / 7)], np.float32)
        expected = variance / 7 * sums[0].astype(float) ** 2 * spread
        assert_equal([(on_gpu.to_host(slope), expected)], np.float32)


@pytest.mark.parametrize("left_out", [(), (2,), (3,), (4,), (2, 3), (3, 4)], ids=str)
def test_gradients_of_bias_and_scale(left_out, on_gpu):
    sums = [data(70, float), data(70, float, 1)]
    arrays = [*sums, *(data(70, np.float32, seed) for seed in (2, 3, 4))]
    here = [None if k in left_out else array.copy() for k, array in enumerate(arrays)]
    there = [None if array is None else on_gpu.to_device(array) for array in here]
    add_affine_gradients(*here)
    add_affine_gradients(*there)
    for expected, found, before in zip(here[3:], there[3:], arrays[3:]):
        if found is not None:
            assert (expected != before).all()
            np.testing.assert_allclose(on_gpu.to_host(found), expected, rtol=1e-6)


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 49, 255, 256, 65537, 2**31 - 1])
def test_divisions_are_exact(divisor):
    factor, bits = division(divisor)
    assert factor < 2**32
    edges = [k * divisor + offset for k in (1, 2, 3, 2**31 // divisor) for offset in (-1, 0, 1)]
    numbers = [0, 1, 2**31 - 1, *np.random.default_rng(0).integers(0, 2**31, 200).tolist(), *edges]
    for n in numbers:
        if 0 <= n < 2**31:
            assert n * factor >> bits == n // divisor
