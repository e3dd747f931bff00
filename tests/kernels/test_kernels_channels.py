"""Kernels over channels: rows of all lengths, for each vector unit."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels.channel_affine import affine, affine_in_place, normalize_gradient

pytestmark = pytest.mark.usefixtures("two_threads")

# Less than a vector, some whole ones, some and a rest; one value; more than fit a microkernel.
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
