"""Per-channel shifts, scales and statistics: the primitives of BatchNorm, Scale, Bias and MVN.

Data is (outer, channels, inner), and per-channel vectors have its dtype.  Sums and statistics are
float64; only the sum of one row of ``inner`` is formed in the data's dtype.
"""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

ELEMENTS_PER_CHUNK = 1 << 15

# Vectors run along inner, or along the channels when inner is 1 (the output of an inner product).
# In-place loops use one name for the array: with two the compiler must assume an overlap.


@jit(fast=True)
def _affine(begin, end, x, y, shift, scale, bias, slope, one, in_place):
    channels, inner = x.shape[1], x.shape[2]
    if inner == 1:
        for n in range(begin, end):
            for c in range(channels):
                result = (x[n, c, 0] - shift[c]) * scale[c] + bias[c]
                y[n, c, 0] = result * (one if result > 0 else slope)
        return
    for row in range(begin, end):
        n, c = row // channels, row % channels
        source, target = x[n, c], y[n, c]
        a, s, b = shift[c], scale[c], bias[c]
        if in_place:
            for i in range(inner):
                result = (target[i] - a) * s + b
                target[i] = result * (one if result > 0 else slope)
        else:
            for i in range(inner):
                result = (source[i] - a) * s + b
                target[i] = result * (one if result > 0 else slope)


@jit(fast=True)
def _affine_in_place(begin, end, x, kept, shift, scale, bias, slope, one):
    channels, inner = x.shape[1], x.shape[2]
    if inner == 1:
        for n in range(begin, end):
            for c in range(channels):
                kept[n, c, 0] = x[n, c, 0]
                result = (x[n, c, 0] - shift[c]) * scale[c] + bias[c]
                x[n, c, 0] = result * (one if result > 0 else slope)
        return
    for row in range(begin, end):
        n, c = row // channels, row % channels
        target, copy = x[n, c], kept[n, c]
        a, s, b = shift[c], scale[c], bias[c]
        for i in range(inner):
            value = target[i]
            copy[i] = value
            result = (value - a) * s + b
            target[i] = result * (one if result > 0 else slope)


@jit(fast=True)
def _sums(begin, end, x, dy, shift, sum_dy, sum_dyx):
    outer, inner = dy.shape[0], dy.shape[2]
    for c in range(begin, end):
        sum_dy[c] = sum_dyx[c] = 0
    if inner == 1:
        for n in range(outer):
            for c in range(begin, end):
                sum_dy[c] += dy[n, c, 0]
                sum_dyx[c] += dy[n, c, 0] * (x[n, c, 0] - shift[c])
        return
    for c in range(begin, end):
        a = shift[c]
        for n in range(outer):
            gradient, value = dy[n, c], x[n, c]
            part_dy = part_dyx = x.dtype.type(0)
            for i in range(inner):
                part_dy += gradient[i]
                part_dyx += gradient[i] * (value[i] - a)
            sum_dy[c] += part_dy
            sum_dyx[c] += part_dyx


@jit(fast=True)
def _rectified_sums(begin, end, sign, x, dy, shift, slope, one, sum_dy, sum_dyx):
    outer, inner = dy.shape[0], dy.shape[2]
    for c in range(begin, end):
        sum_dy[c] = sum_dyx[c] = 0
    if inner == 1:
        for n in range(outer):
            for c in range(begin, end):
                dy[n, c, 0] *= one if sign[n, c, 0] > 0 else slope
                sum_dy[c] += dy[n, c, 0]
                sum_dyx[c] += dy[n, c, 0] * (x[n, c, 0] - shift[c])
        return
    for c in range(begin, end):
        a = shift[c]
        for n in range(outer):
            gradient, value, signs = dy[n, c], x[n, c], sign[n, c]
            part_dy = part_dyx = x.dtype.type(0)
            for i in range(inner):
                rectified = gradient[i] * (one if signs[i] > 0 else slope)
                gradient[i] = rectified
                part_dy += rectified
                part_dyx += rectified * (value[i] - a)
            sum_dy[c] += part_dy
            sum_dyx[c] += part_dyx


@jit(fast=True)
def _statistics(begin, end, x, mean, variance):
    outer, inner = x.shape[0], x.shape[2]
    if inner == 1:
        for c in range(begin, end):
            mean[c] = variance[c] = 0
        for n in range(outer):
            for c in range(begin, end):
                mean[c] += x[n, c, 0] / outer
        for n in range(outer):
            for c in range(begin, end):
                variance[c] += (x[n, c, 0] - mean[c]) ** 2 / outer
        return
    for c in range(begin, end):
        # A row is summed, and then, while it is in the cache, compared with its own mean.  Chan's
        # formula combines the rows. So memory is read once, and no digits are lost to cancellation.
        total_mean = total_squares = 0.0
        for n in range(outer):
            row = x[n, c]
            part = squares = x.dtype.type(0)
            for i in range(inner):
                part += row[i]
            centre = x.dtype.type(part / inner)
            for i in range(inner):
                squares += (row[i] - centre) * (row[i] - centre)
            rest = part / inner - centre
            delta = centre + rest - total_mean
            total_mean += delta / (n + 1)
            total_squares += squares + delta * delta * inner * n / (n + 1)
        mean[c] = total_mean
        variance[c] = total_squares / (outer * inner)


@jit(fast=True)
def _normalize_gradient(begin, end, x, dy, dx, shift, scale, offset, slope, in_place):
    channels, inner = x.shape[1], x.shape[2]
    if inner == 1:
        for n in range(begin, end):
            for c in range(channels):
                centred = x[n, c, 0] - shift[c]
                dx[n, c, 0] = (dy[n, c, 0] - offset[c] - centred * slope[c]) * scale[c]
        return
    for row in range(begin, end):
        n, c = row // channels, row % channels
        value, source, target = x[n, c], dy[n, c], dx[n, c]
        a, s, o, k = shift[c], scale[c], offset[c], slope[c]
        if in_place:
            for i in range(inner):
                target[i] = (target[i] - o - (value[i] - a) * k) * s
        else:
            for i in range(inner):
                target[i] = (source[i] - o - (value[i] - a) * k) * s


def _rows(x: np.ndarray) -> int:
    """Return how many vectors the element-wise loops work through."""
    return x.shape[0] if x.shape[2] == 1 else x.shape[0] * x.shape[1]


def _factors(slope: float | None, dtype: np.dtype) -> tuple[np.floating, np.floating]:
    """Return the factors of values that are not positive, and of positive ones."""
    return dtype.type(1 if slope is None else slope), dtype.type(1)


def _grain(x: np.ndarray, units: int) -> int:
    return max(1, ELEMENTS_PER_CHUNK * units // max(1, x.size))


@kernel
def affine(
    x: np.ndarray,
    y: np.ndarray,
    shift: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray,
    slope: float | None = None,
) -> None:
    """Set y to (x - shift)·scale + bias, per channel; y may be x.

    With a ``slope``, multiply results that are not positive by it.
    """
    args = x, y, shift, scale, bias, *_factors(slope, x.dtype), x is y
    rows = _rows(x)
    parallel_for(_affine, rows, *args, grain=_grain(x, rows))


@kernel
def affine_in_place(
    x: np.ndarray,
    kept: np.ndarray,
    shift: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray,
    slope: float | None = None,
) -> None:
    """Set kept to x, and x to the result of `affine`."""
    rows = _rows(x)
    args = x, kept, shift, scale, bias, *_factors(slope, x.dtype)
    parallel_for(_affine_in_place, rows, *args, grain=_grain(x, rows))


@kernel
def gradient_sums(
    x: np.ndarray, dy: np.ndarray, shift: np.ndarray, sum_dy: np.ndarray, sum_dyx: np.ndarray
) -> None:
    """Set the channels' sums of dy and of dy·(x - shift)."""
    parallel_for(_sums, x.shape[1], x, dy, shift, sum_dy, sum_dyx, grain=_grain(x, x.shape[1]))


@kernel
def rectified_gradient_sums(
    sign: np.ndarray,
    x: np.ndarray,
    dy: np.ndarray,
    shift: np.ndarray,
    slope: float,
    sum_dy: np.ndarray,
    sum_dyx: np.ndarray,
) -> None:
    """Multiply dy by ``slope`` where sign is not positive; then compute `gradient_sums`."""
    args = sign, x, dy, shift, *_factors(slope, x.dtype), sum_dy, sum_dyx
    parallel_for(_rectified_sums, x.shape[1], *args, grain=_grain(x, x.shape[1]))


@kernel
def statistics(x: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> None:
    """Set the channels' means and (biased) variances."""
    parallel_for(_statistics, x.shape[1], x, mean, variance, grain=_grain(x, x.shape[1]))


@kernel
def normalize_gradient(
    x: np.ndarray,
    dy: np.ndarray,
    dx: np.ndarray,
    shift: np.ndarray,
    scale: np.ndarray,
    offset: np.ndarray,
    slope: np.ndarray,
) -> None:
    """Set dx to (dy - offset - (x - shift)·slope)·scale, per channel; dx may be dy."""
    args = x, dy, dx, shift, scale, offset, slope, dx is dy
    rows = _rows(x)
    parallel_for(_normalize_gradient, rows, *args, grain=_grain(x, rows))
