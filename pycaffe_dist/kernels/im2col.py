"""Unfolding of images into columns (im2col) and back (col2im), for any number of spatial axes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from pycaffe_dist.errors import NetError
from pycaffe_dist.kernels import kernel, plan
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for


@dataclass(frozen=True)
class ConvolutionGeometry:
    """Kernel size, stride, padding and dilation, one int per spatial axis, and the group count."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]
    group: int = 1

    def output_shape(self, spatial: tuple[int, ...]) -> tuple[int, ...]:
        """Return the output's spatial shape; raises NetError when the kernel does not fit.

        As in Caffe, whose division drops the remainder, a kernel may be too large by less than a
        stride.
        """
        shape = tuple(
            int((size + 2 * pad - (dilation * (kernel - 1) + 1)) / stride) + 1
            for size, kernel, stride, pad, dilation in zip(
                spatial, self.kernel, self.stride, self.pad, self.dilation
            )
        )
        if min(shape, default=1) < 1:
            raise NetError(
                f"kernel {self.kernel} with dilation {self.dilation} and pad {self.pad} does not "
                f"fit an image of {spatial}"
            )
        return shape


@plan
class Im2colPlan:
    """The index tables of one geometry and image size.

    All axes but the last are resolved here: ``rows`` gives, for each output row (a position on
    those axes) and each kernel position on them, where the input row starts, or -1 where it lies
    in the padding.
    """

    def __init__(self, spatial: tuple[int, ...], geometry: ConvolutionGeometry):
        output = geometry.output_shape(spatial)
        outer = len(spatial) - 1
        taps = list(itertools.product(*map(range, geometry.kernel[:outer])))
        positions = list(itertools.product(*map(range, output[:outer])))
        self.rows = np.full((len(taps), len(positions)), -1, np.int64)
        for t, tap in enumerate(taps):
            for r, position in enumerate(positions):
                self.rows[t, r] = _row_start(tap, position, spatial, geometry)
        self.output = output
        self.last = np.array(
            [
                geometry.kernel[-1],
                geometry.stride[-1],
                geometry.pad[-1],
                geometry.dilation[-1],
                spatial[-1],
                output[-1],
            ],
            np.int64,
        )
        self.taps = math.prod(geometry.kernel)
        self.pixels_in, self.pixels_out = math.prod(spatial), math.prod(output)


def _row_start(tap, position, spatial, geometry) -> int:
    index = 0
    for axis, (k, o) in enumerate(zip(tap, position)):
        i = o * geometry.stride[axis] + k * geometry.dilation[axis] - geometry.pad[axis]
        if not 0 <= i < spatial[axis]:
            return -1
        index = index * spatial[axis] + i
    return index * spatial[-1]


@jit
def valid_range(offset, stride, size, count) -> tuple[int, int]:
    """Return the half-open range of o in [0, count) with 0 <= o·stride + offset < size."""
    low = 0
    if offset < 0:
        low = (-offset + stride - 1) // stride
    high = 0
    if size > offset:
        high = min(count, (size - offset + stride - 1) // stride)
    return min(low, count), max(high, min(low, count))


@jit
def window_range(o, kernel, stride, pad, size) -> tuple[int, int]:
    """Return the half-open part of window ``o`` that is inside [0, size); it may be empty."""
    start = o * stride - pad
    return max(0, start), min(size, start + kernel)


@jit
def unfold(plane, columns, rows, last) -> None:
    """Fill columns (taps, pixels out) from one channel's plane (pixels in)."""
    kernel, stride, pad, dilation, width, count = last
    for t in range(rows.shape[0]):
        for k in range(kernel):
            column = columns[t * kernel + k]
            offset = k * dilation - pad
            low, high = valid_range(offset, stride, width, count)
            for r in range(rows.shape[1]):
                out = column[r * count : (r + 1) * count]
                start = rows[t, r]
                if start < 0:
                    out[:] = 0
                    continue
                out[:low] = 0
                out[high:] = 0
                if stride == 1:
                    target = out[low:high]
                    source = plane[start + offset + low : start + offset + high]
                    for o in range(target.size):
                        target[o] = source[o]
                else:
                    for o in range(low, high):
                        out[o] = plane[start + offset + o * stride]


@jit
def fold(columns, plane, rows, last) -> None:
    """Add columns (taps, pixels out) to the pixels of a channel's plane that they came from."""
    kernel, stride, pad, dilation, width, count = last
    for t in range(rows.shape[0]):
        for k in range(kernel):
            column = columns[t * kernel + k]
            offset = k * dilation - pad
            low, high = valid_range(offset, stride, width, count)
            for r in range(rows.shape[1]):
                start = rows[t, r]
                if start < 0:
                    continue
                values = column[r * count : (r + 1) * count]
                if stride == 1:
                    target = plane[start + offset + low : start + offset + high]
                    for o in range(high - low):
                        target[o] += values[low + o]
                else:
                    for o in range(low, high):
                        plane[start + offset + o * stride] += values[o]


@jit
def _im2col_planes(begin, end, x, columns, rows, last):
    for i in range(begin, end):
        unfold(x[i], columns[i], rows, last)


@jit
def _col2im_planes(begin, end, columns, x, rows, last):
    for i in range(begin, end):
        x[i] = 0
        fold(columns[i], x[i], rows, last)


@kernel
def im2col(x: np.ndarray, columns: np.ndarray, plan: Im2colPlan) -> None:
    """Unfold x (N, C, *spatial) into columns (N, C·taps, *output), channel-major as in Caffe."""
    planes = x.shape[0] * x.shape[1]
    flat = columns.reshape(planes, plan.taps, plan.pixels_out)
    parallel_for(_im2col_planes, planes, x.reshape(planes, -1), flat, plan.rows, plan.last)


@kernel
def col2im(columns: np.ndarray, x: np.ndarray, plan: Im2colPlan) -> None:
    """Set x (N, C, *spatial) to the sums of the columns (N, C·taps, *output) over each pixel."""
    planes = x.shape[0] * x.shape[1]
    flat = columns.reshape(planes, plan.taps, plan.pixels_out)
    parallel_for(_col2im_planes, planes, flat, x.reshape(planes, -1), plan.rows, plan.last)
