"""Copies with axes in another order, and with one axis reversed, on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist import device
from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.rows import row_shift
from pycaffe_dist.kernels.permutation import Steps

_cu = kernels("permutation")

_SQUARE = 32


class Permutation:
    """See `pycaffe_dist.kernels.permutation.Permutation`."""

    def __init__(self, shape: tuple[int, ...], order: tuple[int, ...]):
        self._steps = Steps(shape, order)
        self._outer = device.current_gpu().to_device(self._steps.outer)

    def run(self, x: Any, y: Any) -> None:
        """See `pycaffe_dist.kernels.permutation.Permutation.run`."""
        steps = self._steps
        outer = self._outer, len(self._outer)
        if not steps.rows:
            shift = row_shift(steps.inner)
            _cu.copy_rows(steps.blocks << shift, x, y, *outer, steps.inner, steps.blocks, shift)
            return
        down, across = -(-steps.rows // _SQUARE), -(-steps.columns // _SQUARE)
        matrix = steps.rows, steps.columns, steps.row_step, steps.column_step
        squares = steps.blocks * down * across
        _cu.transpose.blocks(squares, x, y, *outer, *matrix, down, across, squares, threads=256)


def reverse(x: Any, y: Any) -> None:
    """See `pycaffe_dist.kernels.permutation.reverse`."""
    outer, size, inner = x.shape
    shift = row_shift(inner)
    _cu.reverse(outer * size << shift, x, y, size, inner, outer * size, shift)
