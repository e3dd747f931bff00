"""The loops of average pooling, for `pycaffe_dist.kernels.pooling`.

``geometry`` is the table of `PoolingGeometry.table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.kernels import dry_run
from pycaffe_dist.kernels.compiling import copy_values, jit
from pycaffe_dist.kernels.im2col import valid_range, window_range
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.convolution.planes import (
    MOST_TAPS,
    STRIDES,
    FilterKernel,
    Row,
    SpreadKernel,
)
from pycaffe_dist.kernels.jit.convolution.tables import shared_reads, step_table, window_rows
from pycaffe_dist.kernels.jit.gemm import dots

if TYPE_CHECKING:
    from pycaffe_dist.kernels.pooling import PoolingGeometry

_Size = tuple[int, int]


@jit
def _window_extents(count, size, kernel, stride, pad, extents):
    """extents[o] = size of window o clipped to the padded image: Caffe's divisor on one axis."""
    for o in range(count):
        start = o * stride - pad
        extents[o] = max(1, min(start + kernel, size + pad) - start)


@jit
def _shares(geometry, height, width, pooled_height, pooled_width):
    """Return 1 / the divisor of every window, row by row."""
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = geometry
    heights, widths = np.empty(pooled_height, np.float32), np.empty(pooled_width, np.float32)
    _window_extents(pooled_height, height, kernel_h, stride_h, pad_h, heights)
    _window_extents(pooled_width, width, kernel_w, stride_w, pad_w, widths)
    shares = np.empty(pooled_height * pooled_width, np.float32)
    for o in range(shares.size):
        shares[o] = np.float32(1) / (heights[o // pooled_width] * widths[o % pooled_width])
    return shares


@jit(fast=True)
def average(begin, end, x, y, geometry) -> None:
    """Set planes of y to the means of the windows of x."""
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = geometry
    height, width = x.shape[1], x.shape[2]
    sums = np.empty(width, x.dtype)
    heights, widths = np.empty(y.shape[1], x.dtype), np.empty(y.shape[2], x.dtype)
    _window_extents(y.shape[1], height, kernel_h, stride_h, pad_h, heights)
    _window_extents(y.shape[2], width, kernel_w, stride_w, pad_w, widths)
    for i in range(begin, end):
        for oy in range(y.shape[1]):
            out = y[i, oy]
            out[:] = 0
            top, bottom = window_range(oy, kernel_h, stride_h, pad_h, height)
            if bottom <= top:
                continue
            for j in range(width):
                sums[j] = x[i, top, j]
            for h in range(top + 1, bottom):
                row = x[i, h]
                for j in range(width):
                    sums[j] += row[j]
            for k in range(kernel_w):
                low, high = valid_range(k - pad_w, stride_w, width, out.size)
                values = sums[low * stride_w + k - pad_w :]
                for o in range(high - low):
                    out[low + o] += values[o * stride_w]
            for o in range(out.size):
                out[o] /= heights[oy] * widths[o]


@jit
def average_rows(begin, end, x, y, geometry, kernel, margin) -> None:
    """`average` on `AverageKernel`; ``margin`` zeros surround a scratch row."""
    kernel_h, _, stride_h, _, pad_h, _ = geometry
    height, width, count = x.shape[1], x.shape[2], y.shape[2]
    sums = np.zeros(width + 2 * margin, np.float32)
    shares = np.zeros((y.shape[1], count + margin), np.float32)
    found = _shares(geometry, height, width, y.shape[1], count)
    for oy in range(y.shape[1]):
        copy_values(found[oy * count : (oy + 1) * count], shares[oy])
    plane_x, plane_y = 4 * height * width, 4 * y.shape[1] * count
    for i in range(begin, end):
        for oy in range(y.shape[1]):
            top, bottom = window_range(oy, kernel_h, stride_h, pad_h, height)
            if bottom <= top:
                y[i, oy] = 0
                continue
            call(
                kernel,
                x.ctypes.data + i * plane_x + 4 * top * width,
                4 * width,
                bottom - top,
                width,
                sums.ctypes.data + 4 * margin,
                shares.ctypes.data + 4 * oy * shares.shape[1],
                y.ctypes.data + i * plane_y + 4 * oy * count,
                count,
            )


@jit(fast=True)
def average_backward(begin, end, dy, dx, geometry) -> None:
    """Set planes of dx to the gradient of `average`."""
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = geometry
    height, width = dx.shape[1], dx.shape[2]
    spread = np.empty(width, dx.dtype)
    heights, widths = np.empty(dy.shape[1], dx.dtype), np.empty(dy.shape[2], dx.dtype)
    _window_extents(dy.shape[1], height, kernel_h, stride_h, pad_h, heights)
    _window_extents(dy.shape[2], width, kernel_w, stride_w, pad_w, widths)
    share = np.empty(dy.shape[2], dx.dtype)
    if dy.shape[1] * dy.shape[2] == 1 and height <= kernel_h - pad_h and width <= kernel_w - pad_w:
        # One window covers the whole plane: global pooling.
        size, flat, values = height * width, dx.reshape(-1), dy.reshape(-1)
        for i in range(begin, end):
            value = values[i] / (heights[0] * widths[0])
            for p in range(i * size, (i + 1) * size):
                flat[p] = value
        return
    for o in range(dy.shape[2]):
        widths[o] = dx.dtype.type(1) / widths[o]
    for i in range(begin, end):
        plane = dx[i]
        plane[:] = 0
        for oy in range(dy.shape[1]):
            row, factor = dy[i, oy], dx.dtype.type(1) / heights[oy]
            for o in range(row.size):
                share[o] = row[o] * (factor * widths[o])
            spread[:] = 0
            for k in range(kernel_w):
                low, high = valid_range(k - pad_w, stride_w, width, row.size)
                column = low * stride_w + k - pad_w
                for o in range(low, high):
                    # Unsigned, because Numba tests a signed index for being negative.
                    spread[np.uint64(column)] += share[np.uint64(o)]
                    column += stride_w
            top, bottom = window_range(oy, kernel_h, stride_h, pad_h, height)
            for h in range(top, bottom):
                out = plane[h]
                for j in range(width):
                    out[j] += spread[j]


@jit(fast=True)
def average_spread(begin, end, dy, dx, geometry, kernel, rows, ones) -> None:
    """`average_backward` on `SpreadKernel`, all of whose weights are 1."""
    height, width, count = dx.shape[1], dx.shape[2], dy.shape[1] * dy.shape[2]
    shares = _shares(geometry, height, width, dy.shape[1], dy.shape[2])
    zeros, flat = np.zeros(max(width, dy.shape[2]), np.float32), dy.reshape(-1)
    shared = np.empty(count, np.float32)
    for i in range(begin, end):
        values = flat[i * count : (i + 1) * count]
        for o in range(count):
            shared[o] = values[o] * shares[o]
        call(
            kernel,
            shared.ctypes.data,
            rows.ctypes.data,
            height,
            zeros.ctypes.data,
            ones.ctypes.data,
            dx.ctypes.data + 4 * i * height * width,
        )


@jit(fast=True)
def average_filter(begin, end, x, y, geometry, kernel, rows, ones) -> None:
    """`average` on `FilterKernel`, all of whose weights are 1."""
    height, width, count = x.shape[1], x.shape[2], y.shape[1] * y.shape[2]
    shares = _shares(geometry, height, width, y.shape[1], y.shape[2])
    zeros, flat = np.zeros(max(width, y.shape[2]), np.float32), y.reshape(-1)
    for i in range(begin, end):
        call(
            kernel,
            x.ctypes.data + 4 * i * height * width,
            rows.ctypes.data,
            len(rows),
            zeros.ctypes.data,
            ones.ctypes.data,
            zeros.ctypes.data,
            ones.ctypes.data,
            y.ctypes.data + 4 * i * count,
        )
        values = flat[i * count : (i + 1) * count]
        for o in range(count):
            values[o] *= shares[o]


@dry_run.cached(maxsize=64)
def plane_averages(unit: Target, planes: int, size: int) -> tuple[dots.DotProduct, np.ndarray]:
    """Return the product of the shares of a plane's pixels, which it takes, with planes."""
    shares = np.full((1, size), 1 / size, np.float32)
    return dots.DotProduct(unit, 1, planes, size), shares


@dry_run.cached(maxsize=64)
def filtering_code(
    unit: Target, geometry: PoolingGeometry, spatial: _Size, pooled: _Size, backward: bool
) -> tuple[int, np.ndarray, np.ndarray] | None:
    """Return the machine code of `average_filter`, its table of rows, and ones, or None.

    With ``backward``, they are for `average_spread`.
    """
    (kernel_h, columns), (step, stride), (pad_h, pad) = (
        geometry.kernel,
        geometry.stride,
        geometry.pad,
    )
    row = Row(columns, stride, pad, 1, spatial[1], pooled[1])
    if stride not in STRIDES or kernel_h * columns > MOST_TAPS or pooled == (1, 1):
        return None
    ones = np.ones(kernel_h * columns, np.float32)
    if not backward:
        rows = window_rows(*spatial, pooled[0], kernel_h, step, pad_h)
        reads = shared_reads(unit, kernel_h, step, 1, pooled[0])
        table = step_table(rows, reads, 4 * pooled[1])
        return address_of(FilterKernel(row, reads), unit), table, ones
    windows = [
        [oy for oy in range(pooled[0]) if 0 <= h + pad_h - oy * step < kernel_h]
        for h in range(spatial[0])
    ]
    lines = max(1, *map(len, windows))
    rows = np.full((spatial[0], lines, 2), (-1, 0), np.int64)
    for h, found in enumerate(windows):
        rows[h, : len(found), 0] = [4 * oy * pooled[1] for oy in found]
    return address_of(SpreadKernel(row, lines), unit), rows, ones
