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
    AffineGradients,
    GradientTerms,
    Rectifier,
    RunningSums,
    backward_sums,
    measure,
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
    x, dy = data(shape, dtype), data(shape, dtype, 1)
    vectors = [data(channels, parameter, seed) for seed in range(3, 6)]
    vectors[2] -= parameter(6)

    def forward(shift, scale, bias, values, kept):
        affine_in_place(values, kept, shift, scale, bias, 0.5)

    results = both(on_gpu, forward, vectors, [x.copy(), np.empty_like(x)])
    assert_equal(results, dtype)
    assert count < 10 or ((results[0][1] < 0).any() and (results[0][1] > 0).any())

    def sums(x, dy, shift, scale, bias, *sums):
        rectified_gradient_sums(x, dy, shift, scale, bias, 0.5, *sums)

    pair = [np.empty(channels), np.empty(channels)]
    found = both(on_gpu, sums, [x, dy, *vectors], pair)
    assert_equal([(ours / count, theirs / count) for ours, theirs in found], dtype)

    def gradient(x, dy, shift, scale, bias, offset, slope, dx):
        normalize_gradient(x, dy, dx, shift, scale, offset, slope, bias, 0.5)

    terms = [data(channels, parameter, seed) for seed in (6, 7)]
    results = both(on_gpu, gradient, [x, dy, *vectors, *terms], [np.empty_like(x)])
    assert_equal(results, dtype)
    a, s, b, o, k = (vector[:, None].astype(np.float64) for vector in (*vectors, *terms))
    positive = (x - a) * s + b > 0
    rectified = dy * np.where(positive, 1, 0.5)
    assert_equal([(results[0][1], (rectified - o - (x - a) * k) * s)], dtype)
    totals = rectified.sum((0, 2)), (rectified * (x - a)).sum((0, 2))
    pairs = zip(found, totals)
    assert_equal([(ours / count, total / count) for (_, ours), total in pairs], dtype)


def test_the_variance_of_a_channel_far_from_zero_does_not_cancel(on_gpu):
    x = (1e4 + np.random.default_rng(0).standard_normal((2, 1, 5000))).astype(np.float32)
    mean, variance = on_gpu.zeros(1, float), on_gpu.zeros(1, float)
    statistics(on_gpu.to_device(x), mean, variance)
    np.testing.assert_allclose(on_gpu.to_host(mean), x.mean(dtype=float), rtol=1e-7)
    np.testing.assert_allclose(on_gpu.to_host(variance), x.var(dtype=float), rtol=1e-4)


def test_running_statistics_and_scales(on_gpu):
    n = 300
    mean, variance = data(n, float), data(n, float, 1) ** 2
    sums = [data(n, np.float32, 2), data(n, np.float32, 3) ** 2, np.array([2.5], np.float32)]
    factor = data(n, np.float32, 4)

    def run(function, inputs, count, *middle):
        def call(*arrays):
            function(*arrays[: len(inputs)], *middle, *arrays[len(inputs) :])

        dtype = np.float32 if middle else float
        outputs = [np.empty(n, dtype) for _ in range(count)]
        assert_equal(both(on_gpu, call, inputs, outputs), np.float32)

    run(running_statistics, sums, 2)
    run(
        lambda means, variances, *found: running_statistics(means, variances, None, *found),
        sums[:2],
        2,
    )
    run(running_statistics, [*sums[:2], np.zeros(1, np.float32)], 2)
    run(shift_and_scale, [mean, variance], 2, 1e-3)

    def with_product(mean, variance, factor, shift, scale, product):
        shift_and_scale(mean, variance, 1e-3, shift, scale, factor, product)

    outputs = [np.empty(n, np.float32) for _ in range(3)]
    assert_equal(both(on_gpu, with_product, [mean, variance, factor], outputs), np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sums", [0, 2, 3])
@pytest.mark.parametrize("has_product", [False, True])
def test_statistics_of_a_batch(shape, sums, has_product, on_gpu):
    n = shape[1]
    running = [data(n, np.float32, 2), data(n, np.float32, 3) ** 2, np.array([2.5], np.float32)]
    factor, vectors = data(n, np.float32, 4), [np.empty(n, np.float32) for _ in range(3)]

    def call(x, factor, mean, variance, shift, scale, product, *sums):
        given = (*sums, None)[:3] if sums else None
        running = RunningSums(*given, 0.9, 0.3, 1.1) if given else None
        products = (factor, product) if has_product else ()
        measure(x, mean, variance, running, 1e-3, shift, scale, *products)

    outputs = [np.empty(n), np.empty(n), *vectors, *running[:sums]]
    outputs[4] = np.zeros(n, np.float32)
    found = both(on_gpu, call, [data(shape, np.float32), factor], [each.copy() for each in outputs])
    assert_equal(found, np.float32)
    assert bool(found[4][1].any()) == has_product
    assert all((new != old).any() for (new, _), old in zip(found[5:], running))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("missing", ["nothing", "factor", "bias", "scale", "terms", "affine"])
@pytest.mark.parametrize("flag", [False, True])
def test_what_follows_from_gradient_sums(shape, missing, flag, on_gpu):
    n = shape[1]
    x, dy = data(shape, np.float32), data(shape, np.float32, 1)
    shift, inverse, added = (data(n, np.float32, seed) for seed in (3, 4, 2))
    before = [data(n, np.float32, 5), data(n, np.float32, 6)]

    def call(x, dy, shift, inverse, added, first, second, bias, scale, offset, slope):
        affine = {"factor": inverse, "bias": bias, "scale": scale}
        affine.update({missing: None} if missing in affine else {})
        given = {
            "affine": AffineGradients(**affine, bias_adds=flag, scale_adds=not flag),
            "terms": GradientTerms(inverse, flag, offset, slope),
        }
        given.update({missing: None} if missing in given else {})
        rectifier = Rectifier(inverse, added, 0.5)
        backward_sums(x, dy, shift, first, second, **given, rectifier=rectifier)

    sums, zeros = [np.zeros(n), np.zeros(n)], [np.zeros(n, np.float32), np.zeros(n, np.float32)]
    outputs = [*sums, *before, *zeros]
    inputs = [x, dy, shift, inverse, added]
    found = both(on_gpu, call, inputs, [each.copy() for each in outputs])
    count = shape[0] * shape[2]
    assert_equal(found[4:], np.float32)
    assert_equal([(one / count, other / count) for one, other in found[:4]], np.float32)
    given = [missing not in ("bias", "affine"), missing not in ("scale", "affine")]
    given += [missing != "terms", missing != "terms" and flag]
    for (_, value), old, changes in zip(found[2:], outputs[2:], given, strict=True):
        assert (value != old).any() == changes


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 49, 255, 256, 65537, 2**31 - 1])
def test_divisions_are_exact(divisor):
    factor, bits = division(divisor)
    assert factor < 2**32
    edges = [k * divisor + offset for k in (1, 2, 3, 2**31 // divisor) for offset in (-1, 0, 1)]
    numbers = [0, 1, 2**31 - 1, *np.random.default_rng(0).integers(0, 2**31, 200).tolist(), *edges]
    for n in numbers:
        if 0 <= n < 2**31:
            assert n * factor >> bits == n // divisor
