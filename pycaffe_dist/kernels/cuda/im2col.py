"""Unfolding of images into columns (im2col) and back (col2im) on a GPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.division import division
from pycaffe_dist.kernels.cuda.rows import row_shift
from pycaffe_dist.kernels.im2col import ConvolutionGeometry

_cu = kernels("im2col")


class Im2colPlan:
    """See `pycaffe_dist.kernels.im2col.Im2colPlan`; im2col.cu describes the tables."""

    def __init__(self, spatial: tuple[int, ...], geometry: ConvolutionGeometry):
        self.output = geometry.output_shape(spatial)
        self.taps = math.prod(geometry.kernel)
        self.pixels_in, self.pixels_out = math.prod(spatial), math.prod(self.output)
        self.kernel, self.row_taps = geometry.kernel[-1], math.prod(geometry.kernel[:-1])
        self.stride, self.pad = geometry.stride[-1], geometry.pad[-1]
        self.dilation = geometry.dilation[-1]
        self.width, self.count = spatial[-1], self.output[-1]
        self.height, self.rows = math.prod(spatial[:-1]), math.prod(self.output[:-1])
        outer = [
            _Axis(*sizes)
            for sizes in zip(
                geometry.kernel,
                geometry.stride,
                geometry.pad,
                geometry.dilation,
                spatial,
                self.output,
            )
        ]
        last = outer.pop()
        to_device = device.current_gpu().to_device
        rows = _combined([axis.inputs() for axis in outer], spatial[:-1])
        self.starts = to_device(np.where(rows < 0, -1, rows * self.width).astype(np.int32))
        rows = _combined([axis.outputs() for axis in outer], self.output[:-1])
        self.sources = to_device(rows.astype(np.int32))
        self.last = to_device(last.outputs().astype(np.int32))

    @property
    def scratch_bytes(self) -> int:
        """The memory that this plan keeps beyond its arguments."""
        return self.starts.nbytes + self.sources.nbytes + self.last.nbytes


class _Axis:
    """The positions of windows on one axis."""

    def __init__(self, kernel: int, stride: int, pad: int, dilation: int, size: int, count: int):
        self._offsets = np.arange(kernel)[:, None] * dilation - pad
        self._stride, self._size, self._count = stride, size, count

    def inputs(self) -> np.ndarray:
        """Return (taps, outputs): the index on the input, or -1."""
        places = np.arange(self._count) * self._stride + self._offsets
        return np.where((places >= 0) & (places < self._size), places, -1)

    def outputs(self) -> np.ndarray:
        """Return (taps, inputs): the window whose tap lies on the input, or -1."""
        windows, rest = np.divmod(np.arange(self._size) - self._offsets, self._stride)
        return np.where((rest == 0) & (windows >= 0) & (windows < self._count), windows, -1)


def _combined(tables: list[np.ndarray], sizes: tuple[int, ...]) -> np.ndarray:
    """Return (all taps, all places): flat indices into ``sizes``; -1 where any axis has -1."""
    flat = np.zeros((1, 1), np.int64)
    for table, size in zip(tables, sizes):
        taps, places = len(flat) * len(table), flat.shape[1] * table.shape[1]
        index = flat[:, None, :, None] * size + table[:, None, :]
        outside = (flat[:, None, :, None] < 0) | (table[:, None, :] < 0)
        flat = np.where(outside, -1, index).reshape(taps, places)
    return flat


def unfold(x: Any, columns: Any, plan: Any, row: int, step: int) -> None:
    """Fill columns from x (N, C, …).

    (channel, tap, image, pixel) goes to (channel·taps + tap)·row + image·step + pixel.
    """
    n = len(x) * x.shape[1] * plan.pixels_out
    divisors = plan.pixels_out, len(x), plan.count
    _cu.im2col(
        n,
        x,
        columns,
        plan.starts,
        *(number for divisor in divisors for number in division(max(1, divisor))),
        len(x),
        x.shape[1],
        plan.pixels_in,
        plan.width,
        plan.rows,
        plan.count,
        plan.row_taps,
        plan.kernel,
        plan.stride,
        plan.pad,
        plan.dilation,
        row,
        step,
        n,
    )


def fold(columns: Any, x: Any, plan: Any, row: int, step: int) -> None:
    """Set x to the sums of the columns over each pixel; see `unfold`."""
    lines, shift = len(x) * x.shape[1] * plan.height, row_shift(plan.width)
    _cu.col2im(
        lines << shift,
        columns,
        x,
        plan.sources,
        plan.last,
        x.shape[1],
        plan.height,
        plan.width,
        plan.rows,
        plan.count,
        plan.row_taps,
        plan.kernel,
        row,
        step,
        lines,
        shift,
    )


def im2col(x: Any, columns: Any, plan: Im2colPlan) -> None:
    """See `pycaffe_dist.kernels.im2col.im2col`."""
    step = x.shape[1] * plan.taps * plan.pixels_out
    unfold(x, columns, plan, plan.pixels_out, step)


def col2im(columns: Any, x: Any, plan: Im2colPlan) -> None:
    """See `pycaffe_dist.kernels.im2col.col2im`."""
    step = x.shape[1] * plan.taps * plan.pixels_out
    fold(columns, x, plan, plan.pixels_out, step)
