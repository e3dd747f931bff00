"""AdamW and Lion against their published formulas in NumPy, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.errors import UsageError
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers.update.target import ArrayTarget
from pycaffe_dist.solvers.update.updater import Updater

RATE, DECAY, STEPS = 0.02, 0.1, 40


def adamw(weights, gradients, rate, decay, beta1=0.9, beta2=0.999, eps=1e-8):
    """Algorithm 2 of Loshchilov and Hutter (2019), as torch.optim.AdamW has it."""
    mean = np.zeros_like(weights)
    square = np.zeros_like(weights)
    for t, gradient in enumerate(gradients, 1):
        weights = weights * (1 - rate * decay)
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        corrected = mean / (1 - beta1**t), square / (1 - beta2**t)
        weights = weights - rate * corrected[0] / (np.sqrt(corrected[1]) + eps)
    return weights


def lion(weights, gradients, rate, decay, beta1=0.9, beta2=0.99):
    """Algorithm 2 of Chen et al. (2023)."""
    mean = np.zeros_like(weights)
    for gradient in gradients:
        update = np.sign(beta1 * mean + (1 - beta1) * gradient)
        weights = weights - rate * (update + decay * weights)
        mean = beta2 * mean + (1 - beta2) * gradient
    return weights


FORMULAS = {"AdamW": adamw, "Lion": lion}


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def updated(fields: str, weights, gradients, scale: float = 1.0, **multipliers) -> np.ndarray:
    """Return the weights after updates by some gradients."""
    param = text.parse(fields, caffe_pb2.SolverParameter())
    target = ArrayTarget(weights.copy(), np.zeros_like(weights), **multipliers)
    updater = Updater(param, [target])
    for iteration, gradient in enumerate(gradients):
        target.gradient[...] = gradient
        updater.update(0, RATE, iteration, scale)
    return target.weights


@pytest.mark.parametrize("method", FORMULAS)
@pytest.mark.parametrize("size", [(1,), (31, 700)])
def test_it_equals_the_published_formula(method, size):
    weights, gradients = numbers(0, *size), numbers(1, STEPS, *size)
    expected = FORMULAS[method](weights.astype(float), gradients.astype(float), RATE, DECAY)
    found = updated(f"type: '{method}' weight_decay: {DECAY}", weights, gradients)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("method", FORMULAS)
def test_multipliers_momentums_and_passes_count(method):
    weights, gradients = numbers(2, 50), numbers(3, STEPS, 50)
    fields = "momentum: 0.8 momentum2: 0.95 delta: 0.001 iter_size: 2"
    found = updated(
        f"type: '{method}' weight_decay: {DECAY} {fields}",
        weights,
        6 * gradients,
        scale=1 / 3,
        lr_mult=2.0,
        decay_mult=0.5,
    )
    more = {"eps": 0.001} if method == "AdamW" else {}
    expected = FORMULAS[method](
        weights.astype(float), gradients.astype(float), 2 * RATE, DECAY / 2, 0.8, 0.95, **more
    )
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("method", FORMULAS)
def test_decay_is_beside_the_gradient(method):
    """A gradient of 0 makes weights decay by the rate alone, whatever the history."""
    weights = np.array([2.0, -3.0, 0.0], np.float32)
    found = updated(f"type: '{method}' weight_decay: 0.5", weights, np.zeros((1, 3)))
    np.testing.assert_allclose(found, weights * (1 - RATE * 0.5), rtol=1e-6)
    fields = f"type: '{method}' weight_decay: 0.5 regularization_type: 'L1'"
    found = updated(fields, weights, np.zeros((1, 3)))
    np.testing.assert_allclose(found, weights - RATE * 0.5 * np.sign(weights), rtol=1e-6)


@pytest.mark.parametrize("method", FORMULAS)
@pytest.mark.parametrize("field", ["momentum: 1", "momentum2: -0.1", "momentum2: nan"])
def test_momentums_are_from_0_to_below_1(method, field):
    with pytest.raises(UsageError, match=f"{method} needs a {field.split(':')[0]} of at least 0"):
        updated(f"type: '{method}' {field}", numbers(0, 1), [])
