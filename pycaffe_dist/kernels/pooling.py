"""Pooling of the two last axes: maximum, average and stochastic, with Caffe's border rules.

Every kernel works row by row: first the rows of a window are combined, which are contiguous, then
the columns, so that both steps run in vector registers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycaffe_dist.device import parallel_for
from pycaffe_dist.errors import NetError
from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.im2col import valid_range
from pycaffe_dist.kernels.jit.calling import call
from pycaffe_dist.kernels.jit.objects import address_of
from pycaffe_dist.kernels.jit.planes import (
    MOST_TAPS,
    STRIDES,
    FilterKernel,
    Row,
    SpreadKernel,
)
from pycaffe_dist.kernels.jit.target import Target, target
from pycaffe_dist.kernels.jit.windows import NOWHERE, AverageKernel, MaximumKernel

# A chunk of planes should be worth a thread's waking up.
ELEMENTS_PER_CHUNK = 1 << 14
# Window columns are unrolled in machine code.
WIDEST_WINDOW = 32


@dataclass(frozen=True)
class PoolingGeometry:
    """Kernel, stride and pad as (height, width); ``ceil`` rounds the output size up, as Caffe."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int] = (0, 0)
    ceil: bool = True

    def output_shape(self, spatial: tuple[int, int]) -> tuple[int, int]:
        """Return the pooled (height, width); raises NetError when it would be empty."""
        shape = tuple(map(self._output_size, spatial, self.kernel, self.stride, self.pad))
        if min(shape) < 1:
            raise NetError(
                f"pooling window {self.kernel} with pad {self.pad} does not fit {spatial}"
            )
        return shape

    def _output_size(self, size: int, kernel: int, stride: int, pad: int) -> int:
        room = size + 2 * pad - kernel
        pooled = (-(-room // stride) if self.ceil else room // stride) + 1
        # As in Caffe, with padding the last window must start inside the image.
        if (self.pad[0] or self.pad[1]) and (pooled - 1) * stride >= size + pad:
            pooled -= 1
        return pooled

    def table(self) -> np.ndarray:
        """Return (kernel h, w, stride h, w, pad h, w) for the compiled loops."""
        return np.array([*self.kernel, *self.stride, *self.pad], np.int64)


def _planes(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-2], x.shape[-1])


def _over_planes(loop, arrays, geometry: PoolingGeometry, *extra: Any) -> None:
    planes = [_planes(array) for array in arrays]
    largest = max(plane.shape[1] * plane.shape[2] for plane in planes)
    grain = -(-ELEMENTS_PER_CHUNK // largest)
    parallel_for(loop, len(planes[0]), *planes, geometry.table(), *extra, grain=grain)


# Rows of a window that are unrolled in machine code.
MOST_UNROLLED = 8


@jit
def _column_maxima(plane, top, bottom, best, where):
    """best[x] = max of plane[top:bottom, x], where[x] = flat index of the first such element."""
    width = plane.shape[1]
    first = plane[top]
    for x in range(width):
        best[x] = first[x]
        where[x] = np.int32(top * width + x)
    for h in range(top + 1, bottom):
        row, base = plane[h], np.int32(h * width)
        for x in range(width):
            # A NaN is taken, so that it reaches the output.
            take = (row[x] > best[x]) | (row[x] != row[x])
            best[x] = row[x] if take else best[x]
            where[x] = base + np.int32(x) if take else where[x]


@jit
def _max_pool(begin, end, x, y, mask, geometry):
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = geometry
    height, width = x.shape[1], x.shape[2]
    best, where = np.empty(width, x.dtype), np.empty(width, np.int32)
    for i in range(begin, end):
        for oy in range(y.shape[1]):
            out, index = y[i, oy], mask[i, oy]
            out[:] = -np.inf
            index[:] = -1
            top = max(0, oy * stride_h - pad_h)
            bottom = min(height, oy * stride_h - pad_h + kernel_h)
            if bottom <= top:
                continue
            _column_maxima(x[i], top, bottom, best, where)
            for k in range(kernel_w):
                low, high = valid_range(k - pad_w, stride_w, width, out.size)
                for o in range(low, high):
                    column = o * stride_w + k - pad_w
                    value, place = best[column], where[column]
                    old, old_place = out[o], index[o]
                    # Of equal maxima the first in row-major order counts, as in Caffe.
                    take = (
                        (value > old)
                        | (value != value)
                        | ((value == old) & ((place < old_place) | (old_place < 0)))
                    )
                    out[o] = value if take else old
                    index[o] = place if take else old_place


@jit
def _max_pool_rows(begin, end, x, y, mask, geometry, kernel, margin):
    """`_max_pool` on `MaximumKernel`; ``margin`` floats of padding surround a scratch row."""
    kernel_h, _, stride_h, stride_w, pad_h, pad_w = geometry
    height, width, count = x.shape[1], x.shape[2], y.shape[2]
    best = np.full(width + 2 * margin, -np.inf, np.float32)
    where = np.full(width + 2 * margin, NOWHERE, np.int32)
    plane_x, plane_y = 4 * height * width, 4 * y.shape[1] * count
    # Windows that start beyond the image, which only a stride larger than the kernel brings about.
    inside = min(count, (width + pad_w + stride_w - 1) // stride_w)
    for i in range(begin, end):
        for oy in range(y.shape[1]):
            top = max(0, oy * stride_h - pad_h)
            bottom = min(height, oy * stride_h - pad_h + kernel_h)
            if bottom <= top:
                y[i, oy] = -np.inf
                mask[i, oy] = -1
                continue
            call(
                kernel,
                x.ctypes.data + i * plane_x + 4 * top * width,
                4 * width,
                bottom - top,
                width,
                top * width,
                best.ctypes.data + 4 * margin,
                where.ctypes.data + 4 * margin,
                y.ctypes.data + i * plane_y + 4 * oy * count,
                mask.ctypes.data + i * plane_y + 4 * oy * count,
                count,
            )
            if inside < count:
                y[i, oy, inside:] = -np.inf
                mask[i, oy, inside:] = -1


def _microkernel(
    kind: Any, x: np.ndarray, geometry: PoolingGeometry, *more: int
) -> tuple[int, int] | None:
    """Return (address, margin) of the machine code for float32 pooling, or None."""
    unit = target() if x.dtype == np.float32 else None
    columns, stride, pad = geometry.kernel[1], geometry.stride[1], geometry.pad[1]
    if unit is None or columns > WIDEST_WINDOW:
        return None
    # Vectors of windows reach this far beyond the last window.
    margin = pad + columns + (stride + 1) * (unit.lanes + 2)
    return address_of(kind(columns, stride, pad, *more), unit), margin


@kernel
def max_pool_forward(
    x: np.ndarray, y: np.ndarray, mask: np.ndarray, geometry: PoolingGeometry
) -> None:
    """Set y (…, OH, OW) to the maximum of each window of x (…, H, W), mask to its flat index.

    The index counts within the plane; mask is int32, or floating for a mask top.  The first of
    equal maxima wins, a NaN beats everything, an empty window (stride > kernel at the border)
    gives -inf and -1.
    """
    special = _microkernel(MaximumKernel, x, geometry, min(geometry.kernel[0], MOST_UNROLLED))
    if special is None:
        _over_planes(_max_pool, (x, y, mask), geometry)
        return
    places = mask if mask.dtype == np.int32 else np.empty(mask.shape, np.int32)
    _over_planes(_max_pool_rows, (x, y, places), geometry, *special)
    if places is not mask:
        mask[...] = places


@jit
def _scatter_by_mask(begin, end, dy, mask, dx, geometry):
    count, size = dy.shape[1] * dy.shape[2], dx.shape[1] * dx.shape[2]
    values, places, target = dy.reshape(-1), mask.reshape(-1), dx.reshape(-1)
    for i in range(begin, end):
        target[i * size : (i + 1) * size] = 0
        for o in range(i * count, (i + 1) * count):
            place = np.int64(places[o])
            if place >= 0:
                # Unsigned, because a signed index is checked for counting from the end.
                target[np.uint64(i * size + place)] += values[np.uint64(o)]


@kernel
def max_pool_backward(
    dy: np.ndarray, mask: np.ndarray, dx: np.ndarray, geometry: PoolingGeometry
) -> None:
    """Set dx to dy, each value at the element of dx that its mask names; zero elsewhere."""
    _over_planes(_scatter_by_mask, (dy, mask, dx), geometry)


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
def _average_pool(begin, end, x, y, geometry):
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
            top = max(0, oy * stride_h - pad_h)
            bottom = min(height, oy * stride_h - pad_h + kernel_h)
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
def _average_pool_rows(begin, end, x, y, geometry, kernel, margin):
    """`_average_pool` on `AverageKernel`; ``margin`` zeros surround a scratch row."""
    kernel_h, _, stride_h, _, pad_h, _ = geometry
    height, width, count = x.shape[1], x.shape[2], y.shape[2]
    sums = np.zeros(width + 2 * margin, np.float32)
    shares = np.zeros((y.shape[1], count + margin), np.float32)
    shares[:, :count] = _shares(geometry, height, width, y.shape[1], count).reshape((-1, count))
    plane_x, plane_y = 4 * height * width, 4 * y.shape[1] * count
    for i in range(begin, end):
        for oy in range(y.shape[1]):
            top = max(0, oy * stride_h - pad_h)
            bottom = min(height, oy * stride_h - pad_h + kernel_h)
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


@kernel
def average_pool_forward(x: np.ndarray, y: np.ndarray, geometry: PoolingGeometry) -> None:
    """Set y (…, OH, OW) to the mean of each window of x (…, H, W).

    As in Caffe, the divisor is the window's area inside the padded image.
    """
    unit = target() if x.dtype == np.float32 else None
    filtering = unit and _filtering(unit, geometry, x.shape[-2:], y.shape[-2:], False)
    special = None if filtering else _microkernel(AverageKernel, x, geometry)
    if filtering:
        _over_planes(_average_pool_filter, (x, y), geometry, *filtering)
    elif special:
        _over_planes(_average_pool_rows, (x, y), geometry, *special)
    else:
        _over_planes(_average_pool, (x, y), geometry)


@jit(fast=True)
def _average_pool_backward(begin, end, dy, dx, geometry):
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = geometry
    height, width = dx.shape[1], dx.shape[2]
    spread = np.empty(width, dx.dtype)
    heights, widths = np.empty(dy.shape[1], dx.dtype), np.empty(dy.shape[2], dx.dtype)
    _window_extents(dy.shape[1], height, kernel_h, stride_h, pad_h, heights)
    _window_extents(dy.shape[2], width, kernel_w, stride_w, pad_w, widths)
    share = np.empty(dy.shape[2], dx.dtype)
    if dy.shape[1] * dy.shape[2] == 1 and height <= kernel_h - pad_h and width <= kernel_w - pad_w:
        # One window over the whole plane, as global pooling has it.
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
                    # Unsigned, because a signed index is checked for counting from the end.
                    spread[np.uint64(column)] += share[np.uint64(o)]
                    column += stride_w
            top = max(0, oy * stride_h - pad_h)
            bottom = min(height, oy * stride_h - pad_h + kernel_h)
            for h in range(top, bottom):
                out = plane[h]
                for j in range(width):
                    out[j] += spread[j]


@jit(fast=True)
def _average_pool_spread(begin, end, dy, dx, geometry, kernel, rows, ones):
    """`_average_pool_backward` on `SpreadKernel`, all of whose weights are 1."""
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
def _average_pool_filter(begin, end, x, y, geometry, kernel, rows, ones):
    """`_average_pool` on `FilterKernel`, all of whose weights are 1."""
    height, width, count = x.shape[1], x.shape[2], y.shape[1] * y.shape[2]
    shares = _shares(geometry, height, width, y.shape[1], y.shape[2])
    zeros, flat = np.zeros(max(width, y.shape[2]), np.float32), y.reshape(-1)
    for i in range(begin, end):
        call(
            kernel,
            x.ctypes.data + 4 * i * height * width,
            rows.ctypes.data,
            y.shape[1],
            zeros.ctypes.data,
            ones.ctypes.data,
            zeros.ctypes.data,
            ones.ctypes.data,
            y.ctypes.data + 4 * i * count,
        )
        values = flat[i * count : (i + 1) * count]
        for o in range(count):
            values[o] *= shares[o]


Pooled = tuple[int, int]


@functools.lru_cache(maxsize=64)
def _filtering(
    unit: Target, geometry: PoolingGeometry, spatial: Pooled, pooled: Pooled, backward: bool
) -> tuple[int, np.ndarray, np.ndarray] | None:
    """Return the machine code of `_average_pool_filter`, its table of rows, and ones, or None.

    If ``backward``, return those of `_average_pool_spread`.
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
        tops = np.arange(pooled[0])[:, None] * step - pad_h + np.arange(kernel_h)
        rows = np.where((tops < 0) | (tops >= spatial[0]), -1, 4 * spatial[1] * tops)
        return address_of(FilterKernel(row, kernel_h), unit), rows, ones
    windows = [
        [oy for oy in range(pooled[0]) if 0 <= h + pad_h - oy * step < kernel_h]
        for h in range(spatial[0])
    ]
    lines = max(1, *map(len, windows))
    rows = np.full((spatial[0], lines, 2), (-1, 0), np.int64)
    for h, found in enumerate(windows):
        rows[h, : len(found), 0] = [4 * oy * pooled[1] for oy in found]
    return address_of(SpreadKernel(row, lines), unit), rows, ones


@kernel
def average_pool_backward(dy: np.ndarray, dx: np.ndarray, geometry: PoolingGeometry) -> None:
    """Set dx to the gradient of `average_pool_forward`."""
    unit = target() if dx.dtype == np.float32 else None
    special = unit and _filtering(unit, geometry, dx.shape[-2:], dy.shape[-2:], True)
    if special:
        _over_planes(_average_pool_spread, (dy, dx), geometry, *special)
    else:
        _over_planes(_average_pool_backward, (dy, dx), geometry)


@jit
def _stochastic_pool(begin, end, x, random, y, mask, geometry):
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = geometry
    height, width = x.shape[1], x.shape[2]
    for i in range(begin, end):
        for oy in range(y.shape[1]):
            top = max(0, oy * stride_h - pad_h)
            bottom = min(height, oy * stride_h - pad_h + kernel_h)
            for ox in range(y.shape[2]):
                left = max(0, ox * stride_w - pad_w)
                right = min(width, ox * stride_w - pad_w + kernel_w)
                total = x.dtype.type(0)
                for h in range(top, bottom):
                    for w in range(left, right):
                        total += x[i, h, w]
                threshold = random[i, oy, ox] * total
                running, value, place = x.dtype.type(0), x.dtype.type(0), -1
                found = False
                for h in range(top, bottom):
                    for w in range(left, right):
                        if not found:
                            running += x[i, h, w]
                            value, place = x[i, h, w], h * width + w
                            found = running >= threshold
                y[i, oy, ox], mask[i, oy, ox] = value, place


@kernel
def stochastic_pool_forward(
    x: np.ndarray, random: np.ndarray, y: np.ndarray, mask: np.ndarray, geometry: PoolingGeometry
) -> None:
    """Training: pick from each window of x >= 0 an element with probability proportional to it.

    ``random`` has y's shape and holds uniform numbers in [0, 1).  mask gets the flat index, for
    `max_pool_backward`.  (Zeiler and Fergus, Stochastic Pooling, 2013.)
    """
    _over_planes(_stochastic_pool, (x, random, y, mask), geometry)


@jit
def _stochastic_mean(begin, end, x, y, geometry):
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = geometry
    for i in range(begin, end):
        for oy in range(y.shape[1]):
            top = max(0, oy * stride_h - pad_h)
            bottom = min(x.shape[1], oy * stride_h - pad_h + kernel_h)
            for ox in range(y.shape[2]):
                left = max(0, ox * stride_w - pad_w)
                right = min(x.shape[2], ox * stride_w - pad_w + kernel_w)
                total, squares = x.dtype.type(0), x.dtype.type(0)
                for h in range(top, bottom):
                    for w in range(left, right):
                        total += x[i, h, w]
                        squares += x[i, h, w] * x[i, h, w]
                y[i, oy, ox] = squares / total if total != 0 else total


@kernel
def stochastic_pool_mean(x: np.ndarray, y: np.ndarray, geometry: PoolingGeometry) -> None:
    """Testing: set y to the expectation of `stochastic_pool_forward`, Σx² / Σx of each window."""
    _over_planes(_stochastic_mean, (x, y), geometry)
