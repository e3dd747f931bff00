"""Losses of scores at the limits: many classes, scores far apart, NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pycaffe_dist.kernels import multibox


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [1, 21, 2500])
def test_logistic_losses(classes, dtype):
    rng = np.random.default_rng(classes)
    scores = rng.standard_normal((300, classes)).astype(dtype)
    scores[0] = 0
    scores[1] *= 400
    targets = (rng.random(scores.shape) < 0.1).astype(dtype)
    losses = np.empty(300, dtype)
    multibox.logistic_losses(scores, targets, losses)
    exact = scores.astype(float)
    expected = (np.logaddexp(0, exact) - exact * targets).sum(1)
    np.testing.assert_allclose(losses, expected, rtol=1e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 700])
def test_softmax_losses(rows, dtype):
    rng = np.random.default_rng(rows)
    scores = (rng.standard_normal((rows, 7)) * 5).astype(dtype)
    classes = rng.integers(0, 7, rows).astype(np.int32)
    losses = np.empty(rows, dtype)
    multibox.softmax_losses(scores, classes, losses)
    exact = scores.astype(float)
    expected = np.log(np.exp(exact).sum(1)) - exact[np.arange(rows), classes]
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-6)


def test_softmax_losses_have_a_largest_value_and_keep_nan():
    scores = np.array([[0, 500], [0, math.nan]], np.float32)
    losses = np.empty(2, np.float32)
    multibox.softmax_losses(scores, np.zeros(2, np.int32), losses)
    assert losses[0] == pytest.approx(-math.log(np.finfo(np.float32).tiny))
    assert math.isnan(losses[1])
