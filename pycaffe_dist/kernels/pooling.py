"""Pooling of the two last axes: maximum, average and stochastic, with Caffe's border rules.

Every kernel first combines the rows of a window, which are contiguous, then its columns; so both
steps run in vector registers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycaffe_dist.errors import NetError
from pycaffe_dist.kernels import dry_run, kernel
from pycaffe_dist.kernels.average_pooling import (
    average,
    average_backward,
    average_filter,
    average_rows,
    average_spread,
    filtering_code,
    plane_averages,
)
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.im2col import valid_range, window_range
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target, target
from pycaffe_dist.kernels.jit.convolution.planes import (
    MOST_TAPS,
    STRIDES,
    PlaneMaximumKernel,
    Row,
)
from pycaffe_dist.kernels.jit.convolution.tables import window_rows
from pycaffe_dist.kernels.jit.gemm import dots
from pycaffe_dist.kernels.jit.pooling_windows import (
    NOWHERE,
    AverageKernel,
    LargestKernel,
    MaximumKernel,
)
from pycaffe_dist.threads import parallel_for

_Size = tuple[int, int]
# A chunk of planes must be worth waking a thread.
ELEMENTS_PER_CHUNK = 1 << 14
# Window columns are unrolled in machine code.
WIDEST_WINDOW = 32


@dataclass(frozen=True)
class PoolingGeometry:
    """Kernel, stride and pad as (height, width); ``ceil`` rounds the output up, as in Caffe."""

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

    @functools.cached_property
    def table(self) -> np.ndarray:
        """Return (kernel h, w, stride h, w, pad h, w) for the compiled loops."""
        return np.array([*self.kernel, *self.stride, *self.pad], np.int64)


def _planes(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-2], x.shape[-1])


def _over_planes(loop, arrays, geometry: PoolingGeometry, *extra: Any) -> None:
    planes = [_planes(array) for array in arrays]
    largest = max(plane.shape[1] * plane.shape[2] for plane in planes)
    grain = -(-ELEMENTS_PER_CHUNK // largest)
    parallel_for(loop, len(planes[0]), *planes, geometry.table, *extra, grain=grain)


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
            # A NaN wins, so that it reaches the output.
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
            top, bottom = window_range(oy, kernel_h, stride_h, pad_h, height)
            if bottom <= top:
                continue
            _column_maxima(x[i], top, bottom, best, where)
            for k in range(kernel_w):
                low, high = valid_range(k - pad_w, stride_w, width, out.size)
                for o in range(low, high):
                    column = o * stride_w + k - pad_w
                    value, place = best[column], where[column]
                    old, old_place = out[o], index[o]
                    # Of equal maxima the first in row-major order wins, as in Caffe.
                    take = (
                        (value > old)
                        | (value != value)
                        | ((value == old) & ((place < old_place) | (old_place < 0)))
                    )
                    out[o] = value if take else old
                    index[o] = place if take else old_place


@jit
def _max_pool_rows(begin, end, x, y, geometry, mask, kernel, margin):
    """`_max_pool` on `MaximumKernel`, or on `LargestKernel` if the mask is None.

    ``margin`` floats of padding surround a scratch row.
    """
    kernel_h, _, stride_h, stride_w, pad_h, pad_w = geometry
    height, width, count = x.shape[1], x.shape[2], y.shape[2]
    best = np.full(width + 2 * margin, -np.inf, np.float32)
    where = np.full(width + 2 * margin, NOWHERE, np.int32)
    plane_x, plane_y = 4 * height * width, 4 * y.shape[1] * count
    at_x, at_y, at_mask = x.ctypes.data, y.ctypes.data, 0
    if mask is not None:
        at_mask = mask.ctypes.data
    # Windows that start beyond the image; they occur only if the stride is larger than the kernel.
    inside = min(count, (width + pad_w + stride_w - 1) // stride_w)
    for i in range(begin, end):
        for oy in range(y.shape[1]):
            top, bottom = window_range(oy, kernel_h, stride_h, pad_h, height)
            if top < bottom:
                call(
                    kernel,
                    at_x + i * plane_x + 4 * top * width,
                    4 * width,
                    bottom - top,
                    width,
                    top * width,
                    best.ctypes.data + 4 * margin,
                    where.ctypes.data + 4 * margin,
                    at_y + i * plane_y + 4 * oy * count,
                    at_mask + i * plane_y + 4 * oy * count,
                    count,
                )
            first_empty = inside if top < bottom else 0
            if first_empty < count:
                y[i, oy, first_empty:] = -np.inf
                if mask is not None:
                    mask[i, oy, first_empty:] = -1


@jit
def _max_pool_planes(begin, end, x, y, geometry, kernel, rows):
    """`_max_pool` on `PlaneMaximumKernel`, without a mask."""
    size_x, size_y = x.shape[1] * x.shape[2], y.shape[1] * y.shape[2]
    lowest = np.full(x.shape[2], -np.inf, np.float32)
    for i in range(begin, end):
        call(
            kernel,
            x.ctypes.data + 4 * i * size_x,
            rows.ctypes.data,
            len(rows),
            lowest.ctypes.data,
            y.ctypes.data + 4 * i * size_y,
        )


@dry_run.cached(maxsize=64)
def _plane_code(
    unit: Target, geometry: PoolingGeometry, spatial: _Size, pooled: _Size
) -> tuple[int, np.ndarray] | None:
    """Return the machine code of `_max_pool_planes` and its table of rows, or None."""
    (height, columns), (step, stride), (top, left) = (
        geometry.kernel,
        geometry.stride,
        geometry.pad,
    )
    if stride not in STRIDES or height * columns > MOST_TAPS or columns > unit.lanes:
        return None
    row = Row(columns, stride, left, 1, spatial[1], pooled[1])
    rows = window_rows(*spatial, pooled[0], height, step, top)
    return address_of(PlaneMaximumKernel(row, height, min(step, height)), unit), rows


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
    return _code(unit, kind, columns, stride, pad, *more), margin


@dry_run.cached(maxsize=256)
def _code(unit: Target, kind: Any, *options: int) -> int:
    # Looking it up here is faster: a specification is hashed field by field.
    return address_of(kind(*options), unit)


@kernel
def max_pool_forward(
    x: np.ndarray, y: np.ndarray, mask: np.ndarray | None, geometry: PoolingGeometry
) -> None:
    """Set y (…, OH, OW) to the maximum of each window of x (…, H, W), mask to its flat index.

    The index counts within the plane; mask is int32, or floating for a mask top.  The first of
    equal maxima wins, a NaN beats everything, an empty window (stride > kernel at the border)
    gives -inf and -1.  Without a mask only y is set.
    """
    unit = target() if x.dtype == np.float32 and mask is None else None
    planes = unit and _plane_code(unit, geometry, x.shape[-2:], y.shape[-2:])
    if planes:
        _over_planes(_max_pool_planes, (x, y), geometry, *planes)
        return
    if mask is None:
        special = _microkernel(LargestKernel, x, geometry)
    else:
        special = _microkernel(MaximumKernel, x, geometry, min(geometry.kernel[0], MOST_UNROLLED))
    if special is None:
        places = np.empty(y.shape, np.int32) if mask is None else mask
        _over_planes(_max_pool, (x, y, places), geometry)
    elif mask is None:
        _over_planes(_max_pool_rows, (x, y), geometry, None, *special)
    else:
        places = mask if mask.dtype == np.int32 else np.empty(mask.shape, np.int32)
        _over_planes(_max_pool_rows, (x, y), geometry, _planes(places), *special)
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
                # Unsigned, because Numba tests a signed index for being negative.
                target[np.uint64(i * size + place)] += values[np.uint64(o)]


@kernel
def max_pool_backward(
    dy: np.ndarray, mask: np.ndarray, dx: np.ndarray, geometry: PoolingGeometry
) -> None:
    """Set each element of dx that the mask names to its value of dy, and the others to 0."""
    _over_planes(_scatter_by_mask, (dy, mask, dx), geometry)


@kernel
def average_pool_forward(x: np.ndarray, y: np.ndarray, geometry: PoolingGeometry) -> None:
    """Set y (…, OH, OW) to the mean of each window of x (…, H, W).

    As in Caffe, the divisor is the window's area inside the padded image.
    """
    unit = target() if x.dtype == np.float32 else None
    size = x.shape[-2] * x.shape[-1]
    if geometry.kernel == x.shape[-2:] and geometry.pad == (0, 0) and dots.suits(unit, 1, size):
        product, shares = plane_averages(unit, y.size, size)
        product.run(shares, x, y.reshape(1, -1))
        return
    filtering = unit and filtering_code(unit, geometry, x.shape[-2:], y.shape[-2:], False)
    special = None if filtering else _microkernel(AverageKernel, x, geometry)
    if filtering:
        _over_planes(average_filter, (x, y), geometry, *filtering)
    elif special:
        _over_planes(average_rows, (x, y), geometry, *special)
    else:
        _over_planes(average, (x, y), geometry)


@kernel
def average_pool_backward(dy: np.ndarray, dx: np.ndarray, geometry: PoolingGeometry) -> None:
    """Set dx to the gradient of `average_pool_forward`."""
    unit = target() if dx.dtype == np.float32 else None
    special = unit and filtering_code(unit, geometry, dx.shape[-2:], dy.shape[-2:], True)
    if special:
        _over_planes(average_spread, (dy, dx), geometry, *special)
    else:
        _over_planes(average_backward, (dy, dx), geometry)


@jit
def _stochastic_pool(begin, end, x, random, y, mask, geometry):
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = geometry
    height, width = x.shape[1], x.shape[2]
    for i in range(begin, end):
        for oy in range(y.shape[1]):
            top, bottom = window_range(oy, kernel_h, stride_h, pad_h, height)
            for ox in range(y.shape[2]):
                left, right = window_range(ox, kernel_w, stride_w, pad_w, width)
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
    """Pick from each window of x >= 0 an element with a probability proportional to it (training).

    ``random`` has y's shape and holds uniform numbers in [0, 1).  mask gets the flat index, for
    `max_pool_backward`.  (Zeiler and Fergus, Stochastic Pooling, 2013.)
    """
    _over_planes(_stochastic_pool, (x, random, y, mask), geometry)


@jit
def _stochastic_mean(begin, end, x, y, geometry):
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = geometry
    for i in range(begin, end):
        for oy in range(y.shape[1]):
            top, bottom = window_range(oy, kernel_h, stride_h, pad_h, x.shape[1])
            for ox in range(y.shape[2]):
                left, right = window_range(ox, kernel_w, stride_w, pad_w, x.shape[2])
                total, squares = x.dtype.type(0), x.dtype.type(0)
                for h in range(top, bottom):
                    for w in range(left, right):
                        total += x[i, h, w]
                        squares += x[i, h, w] * x[i, h, w]
                y[i, oy, ox] = squares / total if total != 0 else total


@kernel
def stochastic_pool_mean(x: np.ndarray, y: np.ndarray, geometry: PoolingGeometry) -> None:
    """Set y to the mean of `stochastic_pool_forward`, Σx² / Σx of each window (testing)."""
    _over_planes(_stochastic_mean, (x, y), geometry)
