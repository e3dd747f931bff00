"""Convolution of images of few channels: the pixels of each tap are gathered, then multiplied.

Lanes are pixels.  The row kernel's are output channels: it transposes each tile of sums, which
takes long beside a few taps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pycaffe_dist import storage
from pycaffe_dist.kernels.compiling import aligned, jit
from pycaffe_dist.kernels.im2col import ConvolutionGeometry, Im2colPlan
from pycaffe_dist.kernels.jit.biased import BiasedConvolution
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.convolution.planes import STRIDES, Row, TapsKernel
from pycaffe_dist.kernels.jit.gemm.packing import RowPacking
from pycaffe_dist.kernels.jit.gemm.products import VECTORS, flat_kernels, flat_rows
from pycaffe_dist.kernels.jit.winograd.grids import odd_lines
from pycaffe_dist.threads import parallel_for

# The most taps of all input channels: with more, gathering them takes longer than transposes.
MOST_DEPTH = 32
# Bytes of gathered pixels, which stay in the second-level cache; the fewest units of work.
GATHERED_BYTES, ENOUGH_UNITS = 1 << 17, 8


class GatheredSizes(NamedTuple):
    """The numbers of a convolution, whose matrices are (count, depth) · (depth, pixels).

    A unit of work has `high` rows of y, of `width` pixels; gathered taps are `pitch` floats apart.
    """

    count: int
    channels: int
    depth: int
    plane: int
    height: int
    width: int
    high: int
    pitch: int
    rows: int
    lanes: int


def gathers(
    target: Target,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    geometry: ConvolutionGeometry,
) -> bool:
    """Tell whether `GatheredConvolution` is the fastest way of a convolution."""
    known = len(w_shape) == 4 and geometry.group == 1 and geometry.stride[-1] in STRIDES
    return known and math.prod(w_shape[1:]) <= MOST_DEPTH and w_shape[0] > target.lanes


class GatheredConvolution(BiasedConvolution):
    """Forward of one convolution of one group, like `RowConvolution`."""

    def __init__(
        self,
        target: Target,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        geometry: ConvolutionGeometry,
    ):
        plan = Im2colPlan(x_shape[2:], geometry)
        (height, width), (images, channels) = plan.output, x_shape[:2]
        depth, count = channels * plan.taps, w_shape[0]
        most = max(1, GATHERED_BYTES // (4 * depth * width))
        most = min(most, max(1, height * images // ENOUGH_UNITS), height)
        self._units = images * -(-height // most)
        rows, pitch = flat_rows(target, count, VECTORS), odd_lines(most * width)
        last = geometry.stride[-1], geometry.pad[-1], geometry.dilation[-1]
        taps = TapsKernel(
            Row(geometry.kernel[-1], *last, x_shape[-1], width), len(plan.rows), pitch
        )
        self._gather = address_of(taps, target)
        self._kernels = flat_kernels(target, rows, VECTORS)
        self._packing = RowPacking(target, rows, count, depth)
        padded = -(-count // rows) * rows
        self._packed = storage.aligned_zeros(padded * depth, np.dtype(np.float32))
        self._table = np.ascontiguousarray(np.where(plan.rows < 0, -1, 4 * plan.rows).T)
        self._zeros = np.zeros(x_shape[-1], np.float32)
        sizes = GatheredSizes(
            *(count, channels, depth, plan.pixels_in),
            *(height, width, most, pitch, rows, target.lanes),
        )
        self._sizes = np.array(sizes, np.int64)
        super().__init__(1, count, padded)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return self._packed.nbytes + super().scratch_bytes

    def hold(self, w: np.ndarray) -> None:
        """Pack the weights."""
        self._packing.run(w.reshape(-1), self._packed, False, 1.0)

    def _convolve(self, source: np.ndarray, w: np.ndarray | None, out: np.ndarray) -> None:
        if w is not None:
            self.hold(w)
        parallel_for(
            _gathered_units,
            self._units,
            source,
            self._packed,
            self._bias.reshape(-1),
            self._slope,
            out,
            self._table,
            self._zeros,
            self._gather,
            self._kernels,
            self._sizes,
        )


@jit
def _gathered_units(begin, end, x, packed, bias, slope, y, table, zeros, gather, kernels, sizes):
    count, channels, depth, plane, height, width, most, pitch, rows, lanes = sizes
    memory = aligned(depth * pitch)
    whole = kernels.shape[2] * lanes
    parts = (height + most - 1) // most
    for unit in range(begin, end):
        image, first = unit // parts, unit % parts * most
        high = min(most, height - first)
        for r in range(high):
            call(
                gather,
                x.ctypes.data + 4 * image * channels * plane,
                4 * plane,
                table[first + r].ctypes.data,
                channels,
                zeros.ctypes.data,
                memory.ctypes.data + 4 * r * width,
            )
        out = y.ctypes.data + 4 * (image * count * height + first) * width
        for row in range(0, count, rows):
            for column in range(0, high * width, whole):
                used, last = whole // lanes, lanes
                if column + whole > high * width:
                    used = (high * width - column + lanes - 1) // lanes
                    last = high * width - column - (used - 1) * lanes
                call(
                    kernels[0, int(last < lanes), used - 1],
                    packed.ctypes.data + 4 * row * depth,
                    memory.ctypes.data + 4 * column,
                    4 * pitch,
                    depth,
                    bias.ctypes.data + 4 * row,
                    slope.ctypes.data,
                    out + 4 * (row * height * width + column),
                    4 * height * width,
                    min(rows, count - row),
                    0,
                    last,
                )
