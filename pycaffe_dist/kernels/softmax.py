"""Softmax over the middle axis of (outer, classes, inner), and its multinomial logistic loss."""

from __future__ import annotations

import math

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.exponential import exponential
from pycaffe_dist.threads import parallel_for

ELEMENTS_PER_CHUNK = 1 << 12
# Logarithms are taken of at least this.
SMALLEST = np.finfo(np.float32).tiny
NO_LABEL = -(2**31)  # an `ignore` that no label equals


@jit
def _softmax(begin, end, x, y):
    classes, inner = x.shape[1], x.shape[2]
    largest, total = np.empty(inner, x.dtype), np.empty(inner, x.dtype)
    for n in range(begin, end):
        for i in range(inner):
            largest[i], total[i] = x[n, 0, i], 0
        for c in range(1, classes):
            for i in range(inner):
                largest[i] = max(largest[i], x[n, c, i])
        for c in range(classes):
            for i in range(inner):
                value = exponential(x[n, c, i] - largest[i])
                y[n, c, i] = value
                total[i] += value
        for i in range(inner):
            total[i] = 1 / total[i]
        for c in range(classes):
            for i in range(inner):
                y[n, c, i] *= total[i]


@jit(fast=True)
def _scale_to_one(values):
    total = values.dtype.type(0)
    for c in range(values.size):
        total += values[c]
    factor = 1 / total
    for c in range(values.size):
        values[c] *= factor


@jit
def softmax_row(source: np.ndarray, target: np.ndarray) -> None:
    """Set target to the softmax of source, a row of scores, in another kernel's loop."""
    largest = source[0]
    for c in range(1, source.size):
        largest = max(largest, source[c])
    for c in range(source.size):
        target[c] = exponential(source[c] - largest)
    _scale_to_one(target)


@jit
def _softmax_rows(begin, end, x, y):
    """`_softmax` where the classes of a sample are neighbours."""
    for n in range(begin, end):
        softmax_row(x[n], y[n])


@jit(fast=True)
def _softmax_gradient(begin, end, y, dy, dx):
    classes, inner = y.shape[1], y.shape[2]
    dot = np.empty(inner, y.dtype)
    for n in range(begin, end):
        for i in range(inner):
            dot[i] = 0
        for c in range(classes):
            for i in range(inner):
                dot[i] += y[n, c, i] * dy[n, c, i]
        for c in range(classes):
            for i in range(inner):
                dx[n, c, i] = y[n, c, i] * (dy[n, c, i] - dot[i])


@jit
def _loss(begin, end, probability, label, weights, ignore, smallest, loss, valid, wrong):
    classes, inner = probability.shape[1], probability.shape[2]
    for n in range(begin, end):
        loss[n], valid[n], wrong[n] = 0.0, 0, -1
        for i in range(inner):
            # Labels may be floats, and are cut to integers as in C.
            k = int(label[n, i])
            if k == ignore:
                continue
            if k < 0 or k >= classes:
                wrong[n] = i
                break
            own = math.log(max(probability[n, k, i], smallest))
            loss[n] -= own * weights[k] if weights.size else own
            valid[n] += 1


@jit
def _loss_gradient(begin, end, probability, label, weights, ignore, scale, dx):
    classes, inner = probability.shape[1], probability.shape[2]
    for n in range(begin, end):
        for c in range(classes):
            for i in range(inner):
                dx[n, c, i] = probability[n, c, i] * scale
        for i in range(inner):
            k = int(label[n, i])
            if k == ignore:
                for c in range(classes):
                    dx[n, c, i] = 0
                continue
            dx[n, k, i] -= scale
            if weights.size:
                for c in range(classes):
                    dx[n, c, i] *= weights[k]


def _grain(x: np.ndarray) -> int:
    return max(1, ELEMENTS_PER_CHUNK * x.shape[0] // max(1, x.size))


@kernel
def softmax_forward(x: np.ndarray, y: np.ndarray) -> None:
    """Set y to the softmax of x; y may be x."""
    if x.shape[2] == 1:
        rows = x.shape[:2]
        parallel_for(_softmax_rows, x.shape[0], x.reshape(rows), y.reshape(rows), grain=_grain(x))
    else:
        parallel_for(_softmax, x.shape[0], x, y, grain=_grain(x))


@kernel
def softmax_backward(y: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """Set dx from the softmax y and dy; dx may be dy."""
    parallel_for(_softmax_gradient, y.shape[0], y, dy, dx, grain=_grain(y))


@jit
def _each_loss(begin, end, probability, label, ignore, smallest, losses):
    for n in range(begin, end):
        for i in range(probability.shape[2]):
            k = int(label[n, i])
            if k == ignore or k < 0 or k >= probability.shape[1]:
                losses[n, i] = 0
            else:
                losses[n, i] = -math.log(max(probability[n, k, i], smallest))


@kernel
def label_loss(
    probability: np.ndarray,
    label: np.ndarray,
    weights: np.ndarray,
    ignore: int,
    loss: np.ndarray,
    valid: np.ndarray,
    wrong: np.ndarray,
) -> None:
    """Set each sample's sum of -log(probability of the label), and its number of labels that count.

    Label is (outer, inner); labels equal to ``ignore`` do not count.  ``weights`` has a factor for
    each class, or nothing.  ``wrong`` (outer) gets the inner index of a label that is no class, or
    -1.
    """
    args = probability, label, weights, ignore, SMALLEST, loss, valid, wrong
    parallel_for(_loss, probability.shape[0], *args, grain=_grain(probability))


@kernel
def each_label_loss(
    probability: np.ndarray, label: np.ndarray, ignore: int, losses: np.ndarray
) -> None:
    """Set losses (outer, inner) to -log(probability of the label), 0 where labels do not count."""
    args = probability, label, ignore, SMALLEST, losses
    parallel_for(_each_loss, probability.shape[0], *args, grain=_grain(probability))


@kernel
def label_loss_gradient(
    probability: np.ndarray,
    label: np.ndarray,
    weights: np.ndarray,
    ignore: int,
    weight: float,
    normalizer: np.ndarray,
    dx: np.ndarray,
) -> None:
    """Set dx to weight / normalizer·(probability - [class is the label]), 0 for ignored labels.

    ``normalizer`` is (1,), float64; ``weights`` is as for `label_loss`.
    """
    args = probability, label, weights, ignore, dx.dtype.type(weight / normalizer[0]), dx
    parallel_for(_loss_gradient, dx.shape[0], *args, grain=_grain(dx))
