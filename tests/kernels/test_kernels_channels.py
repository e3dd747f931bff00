"""Kernels over channels: rows of all lengths, for each vector unit."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels.channel_affine import affine, affine_in_place, normalize_gradient
from pycaffe_dist.kernels.normalization import (
    Affine,
    AffineGradients,
    GradientTerms,
    RunningSums,
    Statistics,
    normalize,
    normalize_backward,
)

pytestmark = pytest.mark.usefixtures("two_threads")

# Less than a vector, some whole ones, some and a rest; one value; a loop of vectors and a rest.
SHAPES = [(3, 5, 7), (2, 4, 2), (4, 9, 16), (8, 20, 49), (2, 33, 196), (5, 3, 1), (2, 3, 1000)]


def operands(shape, dtype, vectors):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for _ in range(2)]
    return *arrays, [(rng.random(shape[1]) - 0.2).astype(dtype) for _ in range(vectors)]


def assert_close(found, expected):
    tolerance = 1e-12 if found.dtype == np.float64 else 1e-5
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("slope", [None, 0.0, 0.3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_affine(shape, slope, dtype):
    x, _, vectors = operands(shape, dtype, 3)
    shift, scale, bias = (vector[:, None].astype(np.float64) for vector in vectors)
    expected = (x - shift) * scale + bias
    expected = np.where(expected > 0, expected, expected * (1 if slope is None else slope))
    y, here, kept = np.full_like(x, np.nan), x.copy(), np.full_like(x, np.nan)
    affine(x, y, *vectors, slope)
    assert_close(y, expected)
    affine_in_place(here, kept, *vectors, slope)
    np.testing.assert_array_equal(kept, x)
    np.testing.assert_array_equal(here, y)
    affine(kept, kept, *vectors, slope)
    np.testing.assert_array_equal(kept, y)


@pytest.mark.parametrize("slope", [None, 0.0, 0.3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_normalize_gradient(shape, slope, dtype):
    x, dy, vectors = operands(shape, dtype, 5)
    shift, scale, offset, term, bias = (vector[:, None].astype(np.float64) for vector in vectors)
    rectifier = () if slope is None else (vectors[4], slope)
    positive = (x - shift) * scale + bias > 0
    rectified = dy if slope is None else np.where(positive, dy, dy * slope)
    dx = np.full_like(x, np.nan)
    normalize_gradient(x, dy, dx, *vectors[:4], *rectifier)
    assert_close(dx, (rectified - offset - (x - shift) * term) * scale)
    normalize_gradient(x, dy, dy, *vectors[:4], *rectifier)
    np.testing.assert_array_equal(dy, dx)


def statistics_of(x, dtype):
    """Return mean, variance and the normalized values in float64, and statistics to be set."""
    n = x.shape[1]
    mean, variance = x.mean((0, 2), dtype=float), x.var((0, 2), dtype=float)
    normal = (x - mean[:, None]) / np.sqrt(variance + 1e-5)[:, None]
    unset = Statistics(np.zeros(n), np.zeros(n), *(np.zeros(n, dtype) for _ in range(3)))
    return mean, variance, normal, unset


@pytest.mark.parametrize("slope", [None, 0.3])
@pytest.mark.parametrize("shape", [*SHAPES, (1, 4, 300), (2, 70, 2000)], ids=str)
def test_normalize_and_its_gradients(shape, slope, dtype):
    x, dy, vectors = operands(shape, dtype, 4)
    x += 3
    count, channels = shape[0] * shape[2], shape[1]
    means, variances, factor, bias = vectors
    weight, old = np.array([2.0], dtype), [means.copy(), variances.copy()]
    mean, variance, normal, found = statistics_of(x, dtype)
    running = RunningSums(means, variances, weight, 0.9, 1.0, 1.1)
    y, here, kept = np.full_like(x, np.nan), x.copy(), np.full_like(x, np.nan)
    normalize(x, y, None, found, running, 1e-5, Affine(factor, bias, slope))
    expected = normal * factor[:, None] + bias[:, None]
    passed = np.where(expected > 0, 1, 1 if slope is None else slope)
    close = {np.float64: 1e-10}.get(dtype, 3e-4)
    np.testing.assert_allclose(y, expected * passed, close, close)
    np.testing.assert_allclose(found.mean, mean, close / 10)
    np.testing.assert_allclose(found.variance, variance, close / 10, close / 100)
    np.testing.assert_allclose(means, old[0] * 0.9 + mean, close / 10)
    np.testing.assert_allclose(variances, old[1] * 0.9 + variance * 1.1, close / 10)
    np.testing.assert_allclose(weight, 2.8, 1e-6)
    normalize(here, here, kept, found, None, 1e-5, Affine(factor, bias, slope))
    np.testing.assert_array_equal(kept, x)
    np.testing.assert_array_equal(here, y)

    bias_diff, factor_diff = (np.ones(channels, dtype) for _ in range(2))
    terms = GradientTerms(found.scale, True, *(np.zeros(channels, dtype) for _ in range(2)))
    given = AffineGradients(found.scale, bias_diff, factor_diff, True, False)
    others = found, (np.zeros(channels), np.zeros(channels)), given, terms
    dx = np.full_like(x, np.nan)
    normalize_backward(x, dy, dx, *others, Affine(factor, bias, slope))
    own = dy * passed
    sums = own.sum((0, 2)), (own * normal).sum((0, 2))
    np.testing.assert_allclose(bias_diff, 1 + sums[0], close, close * count**0.5)
    np.testing.assert_allclose(factor_diff, sums[1], close, close * count**0.5)
    rest = own - sums[0][:, None] / count - normal * sums[1][:, None] / count
    product = factor / np.sqrt(variance + 1e-5)
    np.testing.assert_allclose(dx, rest * product[:, None], 10 * close, 10 * close)
    normalize_backward(x, dy, dy, *others, Affine(factor, bias, slope))
    np.testing.assert_array_equal(dy, dx)


def test_the_variance_of_a_channel_far_from_zero_does_not_cancel(dtype):
    x = (1e4 + np.random.default_rng(0).standard_normal((2, 3, 5000))).astype(dtype)
    mean, variance, _, found = statistics_of(x, dtype)
    y = np.empty_like(x)
    normalize(x, y, None, found, None, 1e-5, Affine(None, np.zeros(3, dtype), None))
    np.testing.assert_allclose(found.mean, mean, 1e-7)
    np.testing.assert_allclose(found.variance, variance, 1e-4)
