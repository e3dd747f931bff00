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
    Affine,
    AffineGradients,
    GradientTerms,
    Rectifier,
    RunningSums,
    Statistics,
    backward_sums,
    normalize,
    normalize_backward,
    recall,
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


def nothing_yet(n):
    """Return statistics of n channels to be set, as arrays."""
    return [np.zeros(n), np.zeros(n), *(np.zeros(n, np.float32) for _ in range(3))]


@pytest.mark.parametrize("weight", [None, 2.5, 0.0])
@pytest.mark.parametrize("has_factor", [False, True])
def test_running_statistics(weight, has_factor, on_gpu):
    n = 300
    sums = [data(n, np.float32, 2), data(n, np.float32, 3) ** 2, data(n, np.float32, 4)]
    sums += [] if weight is None else [np.array([weight], np.float32)]

    def call(means, variances, factor, *others):
        given = others[0] if weight is not None else None
        result = Statistics(*others[-5:])
        recall(means, variances, given, 1e-3, result, factor if has_factor else None)

    found = both(on_gpu, call, sums, nothing_yet(n))
    assert_equal(found, np.float32)
    mean, variance, _, scale, product = (values for values, _ in found)
    total = {None: 1, 2.5: 2.5, 0.0: np.inf}[weight]
    np.testing.assert_allclose(mean, sums[0] / total, 1e-6)
    np.testing.assert_allclose(scale, (variance + 1e-3) ** -0.5, 1e-6)
    np.testing.assert_allclose(product, scale * (sums[2] if has_factor else 1), 1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sums", [0, 2, 3])
@pytest.mark.parametrize(("has_factor", "slope"), [(False, None), (True, 0.5)])
@pytest.mark.parametrize("keeps", [False, True])
def test_normalized_batches(shape, sums, has_factor, slope, keeps, on_gpu):
    n, x = shape[1], data(shape, np.float32)
    running = [data(n, np.float32, 2), data(n, np.float32, 3) ** 2, np.array([2.5], np.float32)]
    vectors = [data(n, np.float32, 4), data(n, np.float32, 5)]

    def call(factor, bias, y, kept, *others):
        given = (*others[5:], None)[:3] if sums else None
        running = RunningSums(*given, 0.9, 0.3, 1.1) if given else None
        following = Affine(factor if has_factor else None, bias, slope)
        copy = kept if keeps else None
        normalize(y, y, copy, Statistics(*others[:5]), running, 1e-3, following)

    outputs = [x, np.zeros_like(x), *nothing_yet(n), *running[:sums]]
    found = both(on_gpu, call, vectors, [each.copy() for each in outputs])
    # One value has a variance of 0, and its rounding error is multiplied by a large scale.
    assert_equal(found if shape[0] * shape[2] > 1 else found[1:], np.float32)
    assert (found[1][0] == (x if keeps else 0)).all()
    assert all((new != old).any() for (new, _), old in zip(found[7:], running))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("slope", [None, 0.5])
def test_gradients_of_normalized_batches(shape, slope, on_gpu):
    n, count = shape[1], shape[0] * shape[2]
    x, dy = data(shape, np.float32), data(shape, np.float32, 1)
    mean, variance = x.mean((0, 2), dtype=float), x.var((0, 2), dtype=float) + 1
    vectors = [mean, variance, mean, variance**-0.5, 2 * variance**-0.5, data(n, float, 3)]
    vectors[2:] = (vector.astype(np.float32) for vector in vectors[2:])

    def call(x, *others):
        result, bias = Statistics(*others[:5]), others[5]
        dx, factor_diff, bias_diff, first, second, offset, slopes = others[6:]
        gradients = AffineGradients(result.scale, bias_diff, factor_diff)
        terms = GradientTerms(result.scale, True, offset, slopes)
        following = Affine(None, bias, slope)
        normalize_backward(x, dx, dx, result, (first, second), gradients, terms, following)

    zeros = [np.zeros(n, np.float32), np.zeros(n, np.float32)]
    outputs = [dy, *zeros, np.zeros(n), np.zeros(n), *zeros]
    found = both(on_gpu, call, [x, *vectors], [each.copy() for each in outputs])
    assert_equal(found[:1], np.float32)
    assert_equal([(one / count, other / count) for one, other in found[1:3]], np.float32)


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
