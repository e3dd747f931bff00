"""Lstm against its steps, written out, and its errors."""

from __future__ import annotations

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist.errors import LayerError


def harness_of(x, cont=None, options="num_output: 3", parameters=()):
    bottoms = {"x": x} if cont is None else {"x": x, "c": cont}
    names = "".join(f' bottom: "{name}"' for name in bottoms)
    text = f'type: "Lstm"{names} top: "y" lstm_param {{ {options} }}'
    return LayerHarness(text, bottoms, parameters=parameters)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_steps(x, cont, w_x, w_h, b, dy, limit):
    """Return the output, and the gradients of x, W_x, W_h and b."""
    steps, streams, hidden = len(x), x.shape[1], w_h.shape[1]
    h, c, kept = np.zeros((streams, hidden)), np.zeros((streams, hidden)), []
    y = np.zeros((steps, streams, hidden))
    for t in range(steps):
        before, old = h * cont[t][:, None], c * cont[t][:, None]
        i, f, o, g = np.split(x[t] @ w_x.T + before @ w_h.T + b, 4, axis=1)
        i, f, o, g = sigmoid(i), sigmoid(f), sigmoid(o), np.tanh(g)
        c = f * old + i * g
        h = y[t] = o * np.tanh(c)
        kept.append((before, old, i, f, o, g, c))
    dx, dw_x, dw_h, db = np.zeros_like(x), np.zeros_like(w_x), np.zeros_like(w_h), np.zeros_like(b)
    dh, dc = np.zeros((streams, hidden)), np.zeros((streams, hidden))
    for t in reversed(range(steps)):
        before, old, i, f, o, g, c = kept[t]
        dh = dh + dy[t]
        dc = dc + dh * o * (1 - np.tanh(c) ** 2)
        parts = dc * g * i * (1 - i), dc * old * f * (1 - f), dh * np.tanh(c) * o * (1 - o)
        gates = np.hstack([*parts, dc * i * (1 - g**2)])
        gates = gates.clip(-limit, limit)
        dx[t], dw_x, dw_h = gates @ w_x, dw_x + gates.T @ x[t], dw_h + gates.T @ before
        db, dh = db + gates.sum(axis=0), (gates @ w_h) * cont[t][:, None]
        dc = dc * f * cont[t][:, None]
    return y, dx, dw_x, dw_h, db


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("limit", [0, 0.05])
def test_lstm_is_its_steps(limit, marked):
    rng = np.random.default_rng(1)
    x, dy = rng.standard_normal((5, 2, 4)), rng.standard_normal((5, 2, 3))
    shapes = (12, 4), (12, 3), (12,)
    parameters = [rng.standard_normal(shape) for shape in shapes]
    cont = np.ones((5, 2))
    cont[0], cont[3, 1] = 0, 0 if marked else 1
    options = f"num_output: 3 clipping_threshold: {limit}"
    given = cont.reshape(10, 1, 1, 1) if marked else None
    harness = harness_of(x, given, options, parameters)
    expected = by_steps(x, cont, *parameters, dy, limit or np.inf)
    np.testing.assert_allclose(harness.forward()[0], expected[0], rtol=1e-6, atol=1e-7)
    harness.top[0].diff[...] = dy
    harness.backward()
    found = [harness.bottom[0].diff, *(blob.diff for blob in harness.layer.blobs)]
    for one, other in zip(found, expected[1:]):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def test_a_batch_without_marks_forgets_the_last_one():
    harness = harness_of(np.ones((2, 1, 4)), options='num_output: 3 weight_filler { type: "msra" }')
    np.testing.assert_array_equal(harness.forward()[0], harness.forward()[0])


@pytest.mark.parametrize(
    ("x", "cont", "options", "message"),
    [
        ((2, 3, 4), None, "", "num_output of at least 1"),
        ((5,), None, "num_output: 2", r"needs \(steps, streams, …\)"),
        ((2, 3, 4), (2, 2), "num_output: 2", "a mark for each of 2 steps and 3 streams"),
        ((0, 3, 4), None, "num_output: 2", "needs a time step"),
    ],
)
def test_wrong_bottoms(x, cont, options, message):
    marks = None if cont is None else np.ones(cont)
    with pytest.raises(LayerError, match=message):
        harness_of(np.ones(x), marks, options)
