"""Local response normalisation, across channels and within a channel (Krizhevsky et al., 2012)."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

# So many pixels pass through all channels together: their running sums fit the first-level cache.
BLOCK = 512
ELEMENTS_PER_CHUNK = 1 << 14


@jit(fast=True)
def _power(scale, beta, out):
    """out = scale^-beta; the usual exponent needs square roots only."""
    if beta == 0.75:
        for i in range(out.size):
            root = np.sqrt(scale[i])
            out[i] = scale.dtype.type(1) / (root * np.sqrt(root))
    else:
        for i in range(out.size):
            out[i] = scale[i] ** -beta


@jit(fast=True)
def _add_squares(total, x, factor):
    for i in range(total.size):
        total[i] += factor * x[i] * x[i]


@jit(fast=True)
def _across_forward(begin, end, x, y, scale, half, factor, beta, k):
    channels, pixels = x.shape[1], x.shape[2]
    blocks = (pixels + BLOCK - 1) // BLOCK
    running, power = np.empty(BLOCK, x.dtype), np.empty(BLOCK, x.dtype)
    for unit in range(begin, end):
        n, start = unit // blocks, unit % blocks * BLOCK
        stop = min(pixels, start + BLOCK)
        total, factors = running[: stop - start], power[: stop - start]
        total[:] = k
        for c in range(min(half, channels)):
            _add_squares(total, x[n, c, start:stop], factor)
        for c in range(channels):
            if c + half < channels:
                _add_squares(total, x[n, c + half, start:stop], factor)
            if c - half - 1 >= 0:
                _add_squares(total, x[n, c - half - 1, start:stop], -factor)
            _power(total, beta, factors)
            row, out = x[n, c, start:stop], y[n, c, start:stop]
            kept = scale[n, c, start:stop]
            for i in range(total.size):
                kept[i] = total[i]
                out[i] = row[i] * factors[i]


@jit(fast=True)
def _across_backward(begin, end, x, y, scale, dy, dx, half, factor, beta):
    channels, pixels = x.shape[1], x.shape[2]
    blocks = (pixels + BLOCK - 1) // BLOCK
    window = 2 * half + 1
    # ratio[c % window] keeps dy·y/scale of the channels that the running sum covers.
    ratio = np.empty((window, BLOCK), x.dtype)
    running, power = np.empty(BLOCK, x.dtype), np.empty(BLOCK, x.dtype)
    for unit in range(begin, end):
        n, start = unit // blocks, unit % blocks * BLOCK
        stop = min(pixels, start + BLOCK)
        total, factors = running[: stop - start], power[: stop - start]
        total[:] = 0
        for newest in range(channels + half):
            slot = ratio[newest % window, : stop - start]
            if newest >= window:
                for i in range(total.size):
                    total[i] -= slot[i]
            if newest < channels:
                out, top = y[n, newest, start:stop], dy[n, newest, start:stop]
                s = scale[n, newest, start:stop]
                for i in range(total.size):
                    slot[i] = top[i] * out[i] / s[i]
                    total[i] += slot[i]
            else:
                slot[:] = 0
            c = newest - half
            if c < 0:
                continue
            row, top = x[n, c, start:stop], dy[n, c, start:stop]
            target = dx[n, c, start:stop]
            _power(scale[n, c, start:stop], beta, factors)
            for i in range(total.size):
                target[i] = top[i] * factors[i] - factor * row[i] * total[i]


def _over_blocks(loop, arrays, *scalars) -> None:
    rows = [array.reshape(array.shape[0], array.shape[1], -1) for array in arrays]
    images, channels, pixels = rows[0].shape
    grain = -(-ELEMENTS_PER_CHUNK // max(1, channels * min(BLOCK, pixels)))
    parallel_for(loop, images * -(-pixels // BLOCK), *rows, *scalars, grain=grain)


@kernel
def lrn_across_forward(
    x: np.ndarray,
    y: np.ndarray,
    scale: np.ndarray,
    size: int,
    alpha: float,
    beta: float,
    k: float = 1.0,
) -> None:
    """Set scale = k + alpha/size · Σ x² over ``size`` neighbouring channels, y = x·scale^-beta.

    x, y and scale are (N, C, *spatial); ``size`` is odd; backward needs scale.
    """
    real = x.dtype.type
    _over_blocks(_across_forward, (x, y, scale), size // 2, real(alpha / size), real(beta), real(k))


@kernel
def lrn_across_backward(
    x: np.ndarray,
    y: np.ndarray,
    scale: np.ndarray,
    dy: np.ndarray,
    dx: np.ndarray,
    size: int,
    alpha: float,
    beta: float,
) -> None:
    """Set dx to the gradient of `lrn_across_forward`."""
    real = x.dtype.type
    factor = real(2 * alpha * beta / size)
    _over_blocks(_across_backward, (x, y, scale, dy, dx), size // 2, factor, real(beta))


@jit(fast=True)
def _box_sums(values, framed, rows, shape, half):
    """framed[y, x] = Σ of values over the square window around (y, x), clipped to the plane.

    All are flat; ``framed`` and ``rows`` have room for ``half`` more rows and columns on each side.
    """
    height, width = shape
    pitch, window = width + 2 * half, 2 * half + 1
    framed[:] = 0
    for r in range(height):
        inner = framed[(r + half) * pitch + half : (r + half) * pitch + half + width]
        row = values[r * width : (r + 1) * width]
        for p in range(width):
            inner[p] = row[p]
    # First along the rows, then down the columns.  Values past a row's end come from the next row's
    # zeros, and are not used.  Each pass reads only ahead of what it writes, so it needs no copy.
    count = rows.size
    for i in range(count):
        rows[i] = framed[i]
    for k in range(1, window):
        ahead = framed[k:]
        for i in range(count - window):
            rows[i] += ahead[i]
    count -= pitch * (window - 1)
    for i in range(count):
        framed[i] = rows[i]
    for k in range(1, window):
        below = rows[k * pitch :]
        for i in range(count):
            framed[i] += below[i]


@jit(fast=True)
def _within_forward(begin, end, x, y, scale, half, factor, beta):
    height, width = x.shape[1], x.shape[2]
    pitch = width + 2 * half
    framed = np.zeros((height + 2 * half) * pitch, x.dtype)
    rows, power = np.zeros(framed.size, x.dtype), np.empty(height * width, x.dtype)
    for i in range(begin, end):
        plane, out, s = x[i].reshape(-1), y[i].reshape(-1), scale[i].reshape(-1)
        for p in range(plane.size):
            power[p] = plane[p] * plane[p]
        _box_sums(power, framed, rows, x.shape[1:], half)
        for r in range(height):
            inner, row = framed[r * pitch : r * pitch + width], s[r * width : (r + 1) * width]
            for p in range(width):
                row[p] = 1 + factor * inner[p]
        _power(s, beta, power)
        for p in range(plane.size):
            out[p] = plane[p] * power[p]


@jit(fast=True)
def _within_backward(begin, end, x, y, scale, dy, dx, half, factor, beta):
    height, width = x.shape[1], x.shape[2]
    pitch = width + 2 * half
    framed = np.zeros((height + 2 * half) * pitch, x.dtype)
    rows, power = np.zeros(framed.size, x.dtype), np.empty(height * width, x.dtype)
    for i in range(begin, end):
        plane, out, s = x[i].reshape(-1), y[i].reshape(-1), scale[i].reshape(-1)
        top, target = dy[i].reshape(-1), dx[i].reshape(-1)
        for p in range(plane.size):
            power[p] = top[p] * out[p] / s[p]
        _box_sums(power, framed, rows, x.shape[1:], half)
        _power(s, beta, power)
        for r in range(height):
            inner, first = framed[r * pitch : r * pitch + width], r * width
            for p in range(width):
                q = first + p
                target[q] = top[q] * power[q] - factor * plane[q] * inner[p]


def _over_planes(loop, arrays, *scalars) -> None:
    planes = [array.reshape(-1, array.shape[-2], array.shape[-1]) for array in arrays]
    grain = -(-ELEMENTS_PER_CHUNK // max(1, planes[0].shape[1] * planes[0].shape[2]))
    parallel_for(loop, len(planes[0]), *planes, *scalars, grain=grain)


@kernel
def lrn_within_forward(
    x: np.ndarray, y: np.ndarray, scale: np.ndarray, size: int, alpha: float, beta: float
) -> None:
    """Set scale = 1 + alpha · the mean of x² over a size×size window, y = x·scale^-beta.

    x, y and scale are (N, C, H, W); as in Caffe the mean divides by size² at the border too, and
    the constant is 1 whatever ``k`` says.
    """
    real = x.dtype.type
    factor = real(alpha / (size * size))
    _over_planes(_within_forward, (x, y, scale), size // 2, factor, real(beta))


@kernel
def lrn_within_backward(
    x: np.ndarray,
    y: np.ndarray,
    scale: np.ndarray,
    dy: np.ndarray,
    dx: np.ndarray,
    size: int,
    alpha: float,
    beta: float,
) -> None:
    """Set dx to the gradient of `lrn_within_forward`."""
    real = x.dtype.type
    factor = real(2 * alpha * beta / (size * size))
    _over_planes(_within_backward, (x, y, scale, dy, dx), size // 2, factor, real(beta))
