"""Bilinear interpolation on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.rows import row_shift
from pycaffe_dist.kernels.interpolation import Line, Window

_cu = kernels("interpolation")


class Bilinear:
    """See `pycaffe_dist.kernels.interpolation.Bilinear`."""

    def __init__(self, window: Window, output: tuple[int, int], dtype: np.dtype):
        self._window, self._output = window, output
        gpu = device.current_gpu()
        self._down, self._across = (
            tuple(map(gpu.to_device, Line(size, count).tables(dtype)))
            for size, count in zip(window.size, output)
        )

    def run(self, x: Any, y: Any) -> None:
        """See `pycaffe_dist.kernels.interpolation.Bilinear.run`."""
        window = self._window
        next_ones = (min(1, size - 1) for size in window.size)
        lines, shift = y.shape[0] * y.shape[1], row_shift(y.shape[2])
        tables = *self._down[:2], *self._across[:2]
        sizes = *window.whole, window.offset, *next_ones, *self._output, lines, shift
        _cu.interpolate(lines << shift, x, y, *tables, *sizes)

    def gradient(self, dy: Any, dx: Any) -> None:
        """See `pycaffe_dist.kernels.interpolation.Bilinear.gradient`."""
        window = self._window
        if window.size != window.whole:
            dx.fill(0)
        lines, shift = dx.shape[0] * window.size[0], row_shift(window.size[1])
        tables = *self._down[1:], *self._across[1:]
        sizes = *window.whole, window.offset, *window.size, *self._output, lines, shift
        _cu.gradient(lines << shift, dy, dx, *tables, *sizes)
