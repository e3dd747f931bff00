"""Per-channel shifts, scales and statistics: the primitives of BatchNorm, Scale, Bias and MVN.

Data is (outer, channels, inner), and per-channel vectors have its dtype.  Sums and statistics are
float64; only the sum of one row of ``inner`` is formed in the data's dtype.
"""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.jit.channel_rows import AffineRows, GradientRows, takes_rows
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target, target
from pycaffe_dist.kernels.jit.constants import factors
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
def _rectified_sums(begin, end, x, dy, shift, scale, bias, slope, one, sum_dy, sum_dyx):
    outer, inner = dy.shape[0], dy.shape[2]
    for c in range(begin, end):
        sum_dy[c] = sum_dyx[c] = 0
    if inner == 1:
        for n in range(outer):
            for c in range(begin, end):
                centred = x[n, c, 0] - shift[c]
                result = centred * scale[c] + bias[c]
                rectified = dy[n, c, 0] * (one if result > 0 else slope)
                sum_dy[c] += rectified
                sum_dyx[c] += rectified * centred
        return
    for c in range(begin, end):
        a, s, b = shift[c], scale[c], bias[c]
        for n in range(outer):
            gradient, value = dy[n, c], x[n, c]
            part_dy = part_dyx = x.dtype.type(0)
            for i in range(inner):
                centred = value[i] - a
                result = centred * s + b
                rectified = gradient[i] * (one if result > 0 else slope)
                part_dy += rectified
                part_dyx += rectified * centred
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


@jit(fast=True)
def _rectified_gradient(
    begin, end, x, dy, dx, shift, scale, offset, slope, bias, low, one, in_place
):
    channels, inner = x.shape[1], x.shape[2]
    if inner == 1:
        for n in range(begin, end):
            for c in range(channels):
                centred = x[n, c, 0] - shift[c]
                result = centred * scale[c] + bias[c]
                rectified = dy[n, c, 0] * (one if result > 0 else low)
                dx[n, c, 0] = (rectified - offset[c] - centred * slope[c]) * scale[c]
        return
    for row in range(begin, end):
        n, c = row // channels, row % channels
        value, source, target = x[n, c], dy[n, c], dx[n, c]
        a, s, o, k, b = shift[c], scale[c], offset[c], slope[c], bias[c]
        if in_place:
            for i in range(inner):
                centred = value[i] - a
                result = centred * s + b
                target[i] = (target[i] * (one if result > 0 else low) - o - centred * k) * s
        else:
            for i in range(inner):
                centred = value[i] - a
                result = centred * s + b
                target[i] = (source[i] * (one if result > 0 else low) - o - centred * k) * s


@jit
def _channel_rows(begin, end, x, second, third, shift, scale, bias, offset, slope, low, kernel):
    """Run `AffineRows` or `GradientRows`; all rows of an image's channels in one call."""
    channels, inner = x.shape[1], x.shape[2]
    row = begin
    while row < end:
        c = row % channels
        count, at = min(end - row, channels - c), 4 * row * inner
        call(
            kernel,
            count,
            x.ctypes.data + at,
            second.ctypes.data + at,
            third.ctypes.data + at,
            shift.ctypes.data + 4 * c,
            scale.ctypes.data + 4 * c,
            bias.ctypes.data + 4 * c,
            offset.ctypes.data + 4 * c,
            slope.ctypes.data + 4 * c,
            low.ctypes.data,
        )
        row += count


def unit_for(x: np.ndarray) -> Target | None:
    """Return the unit whose microkernels take x's rows: several float32 values each."""
    unit = target() if x.dtype == np.float32 else None
    return unit if unit is not None and takes_rows(x.shape[2]) else None


def _rows(x: np.ndarray) -> int:
    """Return how many vectors the element-wise loops work through."""
    return x.shape[0] if x.shape[2] == 1 else x.shape[0] * x.shape[1]


def _factors(slope: float | None, dtype: np.dtype) -> tuple[np.floating, np.floating]:
    """Return the factors of values that are not positive, and of positive ones."""
    return dtype.type(1 if slope is None else slope), dtype.type(1)


def grain_of(x: np.ndarray, units: int) -> int:
    """Return how many of ``units`` parts of x are worth a chunk of a loop."""
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
    _set_affine(x, y, None, (shift, scale, bias), slope)


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
    _set_affine(x, x, kept, (shift, scale, bias), slope)


def _set_affine(
    x: np.ndarray,
    y: np.ndarray,
    kept: np.ndarray | None,
    vectors: tuple[np.ndarray, np.ndarray, np.ndarray],
    slope: float | None,
) -> None:
    rows, unit = _rows(x), unit_for(x)
    low, one = _factors(slope, x.dtype)
    if unit is not None:
        kernel = address_of(AffineRows(x.shape[2], kept is not None), unit)
        arrays, unused = (x, y, x if kept is None else kept), vectors[:2]
        args = *arrays, *vectors, *unused, factors(float(low)), kernel
        parallel_for(_channel_rows, rows, *args, grain=grain_of(x, rows))
    elif kept is None:
        parallel_for(_affine, rows, x, y, *vectors, low, one, x is y, grain=grain_of(x, rows))
    else:
        parallel_for(_affine_in_place, rows, x, kept, *vectors, low, one, grain=grain_of(x, rows))


@kernel
def gradient_sums(
    x: np.ndarray, dy: np.ndarray, shift: np.ndarray, sum_dy: np.ndarray, sum_dyx: np.ndarray
) -> None:
    """Set the channels' sums of dy and of dy·(x - shift)."""
    parallel_for(_sums, x.shape[1], x, dy, shift, sum_dy, sum_dyx, grain=grain_of(x, x.shape[1]))


@kernel
def rectified_gradient_sums(
    x: np.ndarray,
    dy: np.ndarray,
    shift: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray,
    slope: float,
    sum_dy: np.ndarray,
    sum_dyx: np.ndarray,
) -> None:
    """Compute `gradient_sums` of dy times ``slope`` where the result of `affine` is not positive.

    The results are computed again: reading them from memory would take longer.
    """
    args = x, dy, shift, scale, bias, *_factors(slope, x.dtype), sum_dy, sum_dyx
    parallel_for(_rectified_sums, x.shape[1], *args, grain=grain_of(x, x.shape[1]))


@kernel
def statistics(x: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> None:
    """Set the channels' means and (biased) variances."""
    parallel_for(_statistics, x.shape[1], x, mean, variance, grain=grain_of(x, x.shape[1]))


@kernel
def normalize_gradient(
    x: np.ndarray,
    dy: np.ndarray,
    dx: np.ndarray,
    shift: np.ndarray,
    scale: np.ndarray,
    offset: np.ndarray,
    slope: np.ndarray,
    bias: np.ndarray | None = None,
    rectifier_slope: float | None = None,
) -> None:
    """Set dx to (dy - offset - (x - shift)·slope)·scale, per channel; dx may be dy.

    With a ``rectifier_slope``, dy is first multiplied by it where the result of `affine` with
    ``scale`` and ``bias`` is not positive.
    """
    rows, unit = _rows(x), unit_for(x)
    args = x, dy, dx, shift, scale, offset, slope
    low, one = _factors(rectifier_slope, x.dtype)
    if unit is not None:
        kernel = address_of(GradientRows(x.shape[2], rectifier_slope is not None), unit)
        added = offset if bias is None else bias
        vectors = shift, scale, added, offset, slope, factors(float(low))
        parallel_for(_channel_rows, rows, x, dy, dx, *vectors, kernel, grain=grain_of(x, rows))
    elif rectifier_slope is None:
        parallel_for(_normalize_gradient, rows, *args, dx is dy, grain=grain_of(x, rows))
    else:
        args += bias, low, one, dx is dy
        parallel_for(_rectified_gradient, rows, *args, grain=grain_of(x, rows))
