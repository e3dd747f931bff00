"""Depthwise convolution: each channel is filtered by itself, on the microkernels of `planes`."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.im2col import ConvolutionGeometry, Im2colPlan
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.constants import factors
from pycaffe_dist.kernels.jit.convolution.planes import (
    MOST_TAPS,
    STRIDES,
    CorrelationKernel,
    FilterKernel,
    Row,
    SpreadKernel,
)
from pycaffe_dist.kernels.jit.convolution.tables import shared_reads, step_table
from pycaffe_dist.threads import parallel_for

# The number of neighbouring channels of an image that are computed before the next image.
CHANNELS = 32
# A chunk of planes must be worth waking a thread.
ELEMENTS_PER_CHUNK = 1 << 14


def has_microkernels(geometry: ConvolutionGeometry) -> bool:
    """Tell whether there is machine code for a depthwise convolution of this geometry."""
    return geometry.stride[-1] in STRIDES and math.prod(geometry.kernel) <= MOST_TAPS


class DepthwiseConvolution:
    """One convolution of as many groups as channels; arrays are as in `Convolution`.

    Planes are spread over the threads (channels for the weight gradient).
    """

    def __init__(
        self,
        target: Target,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        geometry: ConvolutionGeometry,
    ):
        self._target = target
        self._table = Im2colPlan(x_shape[2:], geometry)
        self._images, self._channels = x_shape[:2]
        last = geometry.stride[-1], geometry.pad[-1], geometry.dilation[-1]
        width, width_y = x_shape[-1], self._table.output[-1]
        self._row = Row(geometry.kernel[-1], *last, width, width_y)
        self._lines = len(self._table.rows)
        self._zeros = np.zeros(max(width, width_y), np.float32)
        self._no_bias = np.zeros(self._channels, np.float32)
        self._grain = -(-ELEMENTS_PER_CHUNK // self._table.pixels_in)
        self._reads = (tuple(range(self._lines)),)
        if len(geometry.kernel) == 2:
            window = geometry.kernel[0], geometry.stride[0], geometry.dilation[0]
            self._reads = shared_reads(target, *window, self._table.output[0])

    @functools.cached_property
    def _rows(self) -> np.ndarray:
        """Return the offset of the row of x for each row of y and kernel row."""
        rows = np.ascontiguousarray(self._table.rows.T)
        return np.where(rows < 0, -1, 4 * rows)

    @functools.cached_property
    def _steps(self) -> np.ndarray:
        return step_table(self._rows, self._reads, 4 * self._row.outputs)

    @functools.cached_property
    def _rows_back(self) -> np.ndarray:
        """Return the offsets of the rows of dy for each row of dx, and of their weights."""
        width, width_y = self._row.inputs, self._row.outputs
        pairs: list[list[tuple[int, int]]] = [[] for _ in range(self._table.pixels_in // width)]
        for t, starts in enumerate(self._table.rows.tolist()):
            for row_y, start in enumerate(starts):
                if start >= 0:
                    pairs[start // width].append((4 * row_y * width_y, 4 * t * self._row.taps))
        lines = max(1, *map(len, pairs))
        padded = [row + [(-1, 0)] * (lines - len(row)) for row in pairs]
        return np.array(padded, np.int64).reshape(-1, lines, 2)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return self._zeros.nbytes

    def forward(
        self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None, y: np.ndarray, slope: float
    ) -> None:
        """Set y to the convolution of x with w, plus b; multiply negative results by slope."""
        bias = self._no_bias if b is None else b.reshape(-1)
        kernel = address_of(FilterKernel(self._row, self._reads), self._target)
        args = self._steps, self._zeros, self._weights(w), bias, factors(slope)
        self._over_planes(_filter_planes, x, y, kernel, *args)

    def backward_data(self, dy: np.ndarray, w: np.ndarray, dx: np.ndarray) -> None:
        """Set dx to the gradient with respect to x."""
        kernel = address_of(SpreadKernel(self._row, self._rows_back.shape[1]), self._target)
        args = self._rows_back, self._zeros, self._weights(w)
        self._over_planes(_spread_planes, dy, dx, kernel, *args)

    def backward_weights(self, x: np.ndarray, dy: np.ndarray, dw: np.ndarray) -> None:
        """Add the gradient with respect to w to dw."""
        kernel = address_of(CorrelationKernel(self._row, self._lines), self._target)
        args = self._rows, self._zeros, self._weights(dw), self._images, self._target.lanes
        grain = -(-self._grain // self._images)
        planes = self._planes(x), self._planes(dy)
        parallel_for(_correlate_planes, self._channels, *planes, kernel, *args, grain=grain)

    def _over_planes(self, loop: Any, source: np.ndarray, to: np.ndarray, *args: Any) -> None:
        planes = self._images * self._channels
        parallel_for(loop, planes, self._planes(source), self._planes(to), *args, grain=self._grain)

    def _planes(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(self._images * self._channels, -1)

    def _weights(self, w: np.ndarray) -> np.ndarray:
        return w.reshape(self._channels, -1)


@jit
def _filter_planes(begin, end, x, y, kernel, rows, zeros, w, bias, slope):
    for i in range(begin, end):
        c = i % len(w)
        call(
            kernel,
            x.ctypes.data + 4 * i * x.shape[1],
            rows.ctypes.data,
            len(rows),
            zeros.ctypes.data,
            w.ctypes.data + 4 * c * w.shape[1],
            bias.ctypes.data + 4 * c,
            slope.ctypes.data,
            y.ctypes.data + 4 * i * y.shape[1],
        )


@jit
def _spread_planes(begin, end, dy, dx, kernel, rows, zeros, w):
    for i in range(begin, end):
        call(
            kernel,
            dy.ctypes.data + 4 * i * dy.shape[1],
            rows.ctypes.data,
            len(rows),
            zeros.ctypes.data,
            w.ctypes.data + 4 * (i % len(w)) * w.shape[1],
            dx.ctypes.data + 4 * i * dx.shape[1],
        )


@jit
def _correlate_planes(begin, end, x, dy, kernel, rows, zeros, dw, images, lanes):
    sums = np.empty((CHANNELS, dw.shape[1], lanes), np.float32)
    for first in range(begin, end, CHANNELS):
        count = min(CHANNELS, end - first)
        sums[:] = 0
        for n in range(images):
            for c in range(count):
                i = n * len(dw) + first + c
                call(
                    kernel,
                    x.ctypes.data + 4 * i * x.shape[1],
                    rows.ctypes.data,
                    len(rows),
                    zeros.ctypes.data,
                    dy.ctypes.data + 4 * i * dy.shape[1],
                    sums[c].ctypes.data,
                )
        for c in range(count):
            for t in range(dw.shape[1]):
                for lane in range(lanes):
                    dw[first + c, t] += sums[c, t, lane]
