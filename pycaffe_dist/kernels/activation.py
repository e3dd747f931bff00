"""Rectified linear units with a fixed or a learnt slope (PReLU), forward and backward."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

ELEMENTS_PER_CHUNK = 1 << 15
_STRETCH = 256  # values that are looked at together

# Select a factor, then multiply once: a choice between two stores would become masked stores, which
# are many times slower.  The in-place loops use one name for the array; with two names the compiler
# must assume that they overlap.


@jit
def _relu(begin, end, x, y, slope, one, in_place):
    x, y = x[begin:end], y[begin:end]
    if in_place:
        for i in range(y.size):
            y[i] = y[i] * (one if y[i] > 0 else slope)
    else:
        for i in range(y.size):
            y[i] = x[i] * (one if x[i] > 0 else slope)


@jit
def _relu_gradient(begin, end, sign, dy, dx, slope, one, in_place):
    sign, dy, dx = sign[begin:end], dy[begin:end], dx[begin:end]
    if in_place:
        for i in range(dx.size):
            dx[i] = dx[i] * (one if sign[i] > 0 else slope)
    else:
        for i in range(dx.size):
            dx[i] = dy[i] * (one if sign[i] > 0 else slope)


@kernel
def relu_forward(x: np.ndarray, y: np.ndarray, slope: float) -> None:
    """Set y to x where x > 0, else to slope·x; y may be x."""
    scalars = x.dtype.type(slope), x.dtype.type(1), x is y
    flat = x.reshape(-1), y.reshape(-1)
    parallel_for(_relu, x.size, *flat, *scalars, grain=ELEMENTS_PER_CHUNK)


@kernel
def relu_backward(sign: np.ndarray, dy: np.ndarray, dx: np.ndarray, slope: float) -> None:
    """Set dx to dy where sign > 0, else to slope·dy; dx may be dy, sign is x or y."""
    scalars = dx.dtype.type(slope), dx.dtype.type(1), dx is dy
    flat = sign.reshape(-1), dy.reshape(-1), dx.reshape(-1)
    parallel_for(_relu_gradient, dx.size, *flat, *scalars, grain=ELEMENTS_PER_CHUNK)


@jit
def _positive(begin, end, x, found):
    samples, _, positions = x.shape
    left = end - begin
    for n in range(samples):
        for c in range(begin, end):
            start = positions if found[c] else 0
            while start < positions:
                stop = min(start + _STRETCH, positions)
                count = 0
                for i in range(start, stop):
                    count += x[n, c, i] > 0
                start = stop
                if count > 0:
                    found[c] = True
                    left -= 1
                    break
        if left == 0:
            return


def positive_channels(x: np.ndarray) -> np.ndarray:
    """Return for each channel of x (N, C, …), on the host, whether any value is above 0."""
    found = np.zeros(x.shape[1], np.bool_)
    parallel_for(_positive, found.size, x.reshape(*x.shape[:2], -1), found)
    return found


@jit
def _clipped(value, slope, one, ceiling):
    result = value * (one if value > 0 else slope)
    return ceiling if result > ceiling else result


@jit
def _clipped_relu(begin, end, x, y, slope, one, ceiling, in_place):
    x, y = x[begin:end], y[begin:end]
    if in_place:
        for i in range(y.size):
            y[i] = _clipped(y[i], slope, one, ceiling)
    else:
        for i in range(y.size):
            y[i] = _clipped(x[i], slope, one, ceiling)


@jit
def _clipped_factor(value, slope, one, ceiling):
    return one - one if value >= ceiling else (one if value > 0 else slope)


@jit
def _clipped_relu_gradient(begin, end, value, dy, dx, slope, one, ceiling, in_place):
    value, dy, dx = value[begin:end], dy[begin:end], dx[begin:end]
    if in_place:
        for i in range(dx.size):
            dx[i] = dx[i] * _clipped_factor(value[i], slope, one, ceiling)
    else:
        for i in range(dx.size):
            dx[i] = dy[i] * _clipped_factor(value[i], slope, one, ceiling)


@kernel
def clipped_relu_forward(x: np.ndarray, y: np.ndarray, slope: float, ceiling: float) -> None:
    """Set y to x where x > 0, else to slope·x, and to ``ceiling`` at most; y may be x."""
    scalars = *map(x.dtype.type, (slope, 1, ceiling)), x is y
    flat = x.reshape(-1), y.reshape(-1)
    parallel_for(_clipped_relu, x.size, *flat, *scalars, grain=ELEMENTS_PER_CHUNK)


@kernel
def clipped_relu_backward(
    value: np.ndarray, dy: np.ndarray, dx: np.ndarray, slope: float, ceiling: float
) -> None:
    """Set dx for `clipped_relu_forward`; dx may be dy, value is x or y."""
    scalars = *map(dx.dtype.type, (slope, 1, ceiling)), dx is dy
    flat = value.reshape(-1), dy.reshape(-1), dx.reshape(-1)
    parallel_for(_clipped_relu_gradient, dx.size, *flat, *scalars, grain=ELEMENTS_PER_CHUNK)


@jit
def _prelu(begin, end, sign, x, y, slope, one):
    channels = sign.shape[1]
    for row in range(begin, end):
        n, c = row // channels, row % channels
        values, source, target = sign[n, c], x[n, c], y[n, c]
        factor = slope[c]
        for i in range(values.size):
            target[i] = source[i] * (one if values[i] > 0 else factor)


@jit(fast=True)
def _prelu_slope(begin, end, x, dy, dslope):
    zero = x.dtype.type(0)
    for c in range(begin, end):
        total = 0.0
        for n in range(x.shape[0]):
            values, gradient = x[n, c], dy[n, c]
            part = zero
            for i in range(values.size):
                part += gradient[i] * min(values[i], zero)
            total += part
        dslope[c] = total


@kernel
def prelu_forward(sign: np.ndarray, x: np.ndarray, y: np.ndarray, slope: np.ndarray) -> None:
    """Set y to x where sign > 0, else to x times its channel's slope.

    Arrays are (outer, channels, inner); y may be x.  Forward passes x as the sign; backward passes
    dy and dx as x and y.
    """
    rows = sign.shape[0] * sign.shape[1]
    grain = max(1, ELEMENTS_PER_CHUNK * rows // max(1, sign.size))
    parallel_for(_prelu, rows, sign, x, y, slope, x.dtype.type(1), grain=grain)


@kernel
def prelu_slope_gradient(x: np.ndarray, dy: np.ndarray, dslope: np.ndarray) -> None:
    """Set dslope (channels, float64) to the gradients of the slopes."""
    grain = max(1, ELEMENTS_PER_CHUNK * x.shape[1] // max(1, x.size))
    parallel_for(_prelu_slope, x.shape[1], x, dy, dslope, grain=grain)
