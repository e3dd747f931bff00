"""Pooling of the two last axes: maximum, average and stochastic, with Caffe's border rules.

Every kernel works row by row: first the rows of a window are combined, which are contiguous, then
the columns, so that both steps run in vector registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pycaffe_dist.device import parallel_for
from pycaffe_dist.errors import NetError
from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.im2col import valid_range

# A chunk of planes should be worth a thread's waking up.
ELEMENTS_PER_CHUNK = 1 << 14


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


def _over_planes(loop, arrays, geometry: PoolingGeometry) -> None:
    planes = [_planes(array) for array in arrays]
    largest = max(plane.shape[1] * plane.shape[2] for plane in planes)
    grain = -(-ELEMENTS_PER_CHUNK // largest)
    parallel_for(loop, len(planes[0]), *planes, geometry.table(), grain=grain)


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
                values, places = (
                    best[low * stride_w + k - pad_w :],
                    where[low * stride_w + k - pad_w :],
                )
                for o in range(high - low):
                    value, place = values[o * stride_w], places[o * stride_w]
                    old, old_place = out[low + o], index[low + o]
                    # Of equal maxima the first in row-major order counts, as in Caffe.
                    take = (
                        (value > old)
                        | (value != value)
                        | ((value == old) & ((place < old_place) | (old_place < 0)))
                    )
                    out[low + o] = value if take else old
                    index[low + o] = place if take else old_place


@kernel
def max_pool_forward(
    x: np.ndarray, y: np.ndarray, mask: np.ndarray, geometry: PoolingGeometry
) -> None:
    """Set y (…, OH, OW) to the maximum of each window of x (…, H, W), mask to its flat index.

    The index counts within the plane; mask is int32, or floating for a mask top.  The first of
    equal maxima wins, a NaN beats everything, an empty window (stride > kernel at the border)
    gives -inf and -1.
    """
    _over_planes(_max_pool, (x, y, mask), geometry)


@jit
def _scatter_by_mask(begin, end, dy, mask, dx, geometry):
    for i in range(begin, end):
        plane = dx[i].reshape(-1)
        plane[:] = 0
        values, places = dy[i].reshape(-1), mask[i].reshape(-1)
        for o in range(values.size):
            place = np.int64(places[o])
            if place >= 0:
                plane[np.uint64(place)] += values[o]


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
            sums[:] = x[i, top]
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


@kernel
def average_pool_forward(x: np.ndarray, y: np.ndarray, geometry: PoolingGeometry) -> None:
    """Set y (…, OH, OW) to the mean of each window of x (…, H, W).

    As in Caffe, the divisor is the window's area inside the padded image.
    """
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
    for i in range(begin, end):
        dx[i] = 0
        for oy in range(dy.shape[1]):
            row = dy[i, oy]
            for o in range(row.size):
                share[o] = row[o] / (heights[oy] * widths[o])
            spread[:] = 0
            for k in range(kernel_w):
                low, high = valid_range(k - pad_w, stride_w, width, row.size)
                target = spread[low * stride_w + k - pad_w :]
                for o in range(high - low):
                    target[o * stride_w] += share[low + o]
            top = max(0, oy * stride_h - pad_h)
            bottom = min(height, oy * stride_h - pad_h + kernel_h)
            for h in range(top, bottom):
                out = dx[i, h]
                for j in range(width):
                    out[j] += spread[j]


@kernel
def average_pool_backward(dy: np.ndarray, dx: np.ndarray, geometry: PoolingGeometry) -> None:
    """Set dx to the gradient of `average_pool_forward`."""
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
