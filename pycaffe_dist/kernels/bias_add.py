"""The bias of convolutions and inner products: one value per channel."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.activation import relu_backward
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.filling import clear
from pycaffe_dist.threads import parallel_for

# A chunk of an element-wise loop must be worth waking a thread.
ELEMENTS_PER_CHUNK = 1 << 15


@jit(fast=True)
def _add_bias(begin, end, y, b):
    channels, pixels = y.shape[1], y.shape[2]
    if pixels == 1:
        for n in range(begin, end):
            row = y[n, :, 0]
            for m in range(channels):
                row[m] += b[m]
        return
    for n in range(begin, end):
        for m in range(channels):
            row, value = y[n, m], b[m]
            for p in range(pixels):
                row[p] += value


@kernel
def add_bias(y: np.ndarray, b: np.ndarray) -> None:
    """Add b (M elements) to every pixel of y (N, M, *spatial)."""
    planes = y.reshape(y.shape[0], y.shape[1], -1)
    grain = max(1, ELEMENTS_PER_CHUNK * y.shape[0] // max(1, y.size))
    parallel_for(_add_bias, y.shape[0], planes, b.reshape(-1), grain=grain)


@jit(fast=True)
def _bias_gradient(begin, end, dy, db):
    images, _, pixels = dy.shape
    if pixels == 1:
        for n in range(images):
            row = dy[n, :, 0]
            for m in range(begin, end):
                db[m] += row[m]
        return
    for m in range(begin, end):
        total = db.dtype.type(0)
        for n in range(images):
            row = dy[n, m]
            part = db.dtype.type(0)
            for p in range(pixels):
                part += row[p]
            total += part
        db[m] += total


@kernel
def bias_gradient(dy: np.ndarray, db: np.ndarray, add: bool = True) -> None:
    """Add the sums of dy (N, M, *spatial) over images and pixels to db (M elements), or set it."""
    if not add:
        clear(db)
    planes = dy.reshape(dy.shape[0], dy.shape[1], -1)
    grain = max(1, ELEMENTS_PER_CHUNK * dy.shape[1] // max(1, dy.size))
    parallel_for(_bias_gradient, dy.shape[1], planes, db.reshape(-1), grain=grain)


@kernel
def rectified_bias_gradient(
    sign: np.ndarray, dy: np.ndarray, db: np.ndarray, slope: float, add: bool = True
) -> None:
    """Multiply dy by ``slope`` where sign is not positive; then as `bias_gradient`."""
    relu_backward(sign, dy, dy, slope)
    bias_gradient(dy, db, add)
