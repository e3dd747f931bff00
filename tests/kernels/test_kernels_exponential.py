from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.exponential import exponential, sigmoid, tanh
from pycaffe_dist.kernels.softmax import softmax_forward


@jit
def exponentials(x, y):
    for i in range(x.size):
        y[i] = exponential(x[i])


def exp(x):
    y = np.empty_like(x)
    exponentials(x, y)
    return y


def test_float32_exponentials_are_right_to_the_last_places():
    x = np.linspace(-87, 88.7, 200001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(exp(x) - exact) / exact) < 2**-22


def test_exponentials_at_the_ends_of_their_range():
    x = np.array([0, -0.0, 88.72, 88.8, 1e9, np.inf, -103, -104, -1e9, -np.inf], np.float32)
    with np.errstate(over="ignore"):
        expected = np.exp(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(exp(x), expected, rtol=3e-7, atol=1.5e-45)
    assert np.isnan(exp(np.array([np.nan], np.float32)))[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sigmoid(dtype):
    x = np.concatenate([np.linspace(-110, 110, 40001), [np.inf, -np.inf, np.nan]]).astype(dtype)
    with np.errstate(over="ignore"):
        expected = 1 / (1 + np.exp(-x.astype(np.float64)))
    y = np.empty_like(x)
    sigmoid(x, y)
    np.testing.assert_allclose(y, expected, rtol=5e-7 if dtype == np.float32 else 1e-14, atol=1e-37)
    sigmoid(x, x)
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tanh_is_right_relative_to_its_size(dtype):
    x = np.concatenate(
        [np.linspace(-80, 80, 40001), np.geomspace(1e-30, 1, 999), -np.geomspace(1e-30, 1, 999)]
    )
    x = np.concatenate([x, [0, np.inf, -np.inf, np.nan]]).astype(dtype)
    expected = np.tanh(x.astype(np.float64))
    y = np.empty_like(x)
    tanh(x, y)
    np.testing.assert_allclose(y, expected, rtol=5e-7 if dtype == np.float32 else 1e-14)
    tanh(x, x)
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(7, 10, 1), (3, 1001, 1), (2, 5, 33), (4, 1, 1)])
def test_softmax(shape, dtype):
    x = (30 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)
    wide = x.astype(np.float64)
    expected = np.exp(wide - wide.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    y = np.empty_like(x)
    softmax_forward(x, y)
    np.testing.assert_allclose(y, expected, rtol=4e-6 if dtype == np.float32 else 1e-13, atol=1e-37)
    softmax_forward(x, x)
    np.testing.assert_array_equal(x, y)


def test_softmax_shows_a_nan_and_an_infinity():
    x = np.zeros((3, 4, 1), np.float32)
    x[0, 2], x[1, 1], x[2, 3] = np.nan, np.inf, -np.inf
    y = np.empty_like(x)
    softmax_forward(x, y)
    assert np.isnan(y[0]).any() and np.isnan(y[1]).any()
    np.testing.assert_allclose(y[2, :, 0], [1 / 3, 1 / 3, 1 / 3, 0])
