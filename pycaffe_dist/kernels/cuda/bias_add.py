"""The bias of convolutions and inner products on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycaffe_dist import device
from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.activation import relu_backward
from pycaffe_dist.kernels.cuda.rows import row_shift, shape_of_planes, splits
from pycaffe_dist.kernels.cuda.source import THREADS

_cu = kernels("bias_add")


def add_bias(y: Any, b: Any) -> None:
    """See `pycaffe_dist.kernels.bias_add.add_bias`."""
    finish(y, b, 1.0)


def finish(y: Any, b: Any | None, slope: float) -> None:
    """Add b, if any, to every pixel of y (N, M, *spatial); then multiply negatives by slope."""
    images, channels, pixels = shape_of_planes(y)
    rows, shift = images * channels, row_shift(pixels)
    _cu.add_bias(rows << shift, y, b, slope, channels, pixels, rows, shift)


def bias_gradient(dy: Any, db: Any, add: bool = True) -> None:
    """See `pycaffe_dist.kernels.bias_add.bias_gradient`."""
    rectified_bias_gradient(None, dy, db, 1.0, add)


def rectified_bias_gradient(sign: Any, dy: Any, db: Any, slope: float, add: bool = True) -> None:
    """See `pycaffe_dist.kernels.bias_add.rectified_bias_gradient`; ``sign`` may be None."""
    images, channels, pixels = shape_of_planes(dy)
    if dy.size == 0:
        return
    if pixels == 1:
        if sign is not None:
            relu_backward(sign, dy, dy, slope)
        # One thread for each sum: these, too, should keep all multiprocessors busy.
        parts = splits(-(-images // 32), -(-channels // THREADS) * 8)

        def sums(out: Any, add: bool) -> None:
            n = parts * channels
            _cu.column_sums(n, dy, out, images, channels, parts, add, n)
    else:
        parts = splits(images, channels)

        def sums(out: Any, add: bool) -> None:
            sizes = images, channels, pixels, parts, row_shift(pixels), add
            if sign is None:
                _cu.channel_sums.blocks(parts * channels, dy, out, *sizes)
            else:
                _cu.rectified_sums.blocks(parts * channels, sign, dy, out, slope, *sizes)

    sum_in_parts(sums, parts, db, add)


def sum_in_parts(sums: Callable[[Any, bool], None], parts: int, total: Any, add: bool) -> None:
    """Add to ``total``, or set it to, what ``sums(out, add)`` computes in some parts.

    ``out`` is an array (parts, *total.shape) to set, or ``total``.  The order of sums is fixed.
    """
    if parts == 1:
        sums(total, add)
        return
    pieces = device.current_gpu().empty((parts, total.size), total.dtype)
    sums(pieces, False)
    _cu.add_parts(total.size, pieces, total, parts, add, total.size)
