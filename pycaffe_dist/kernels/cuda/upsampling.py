"""Enlarged planes on a GPU: pixels repeated, or put back where a pooling found them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.rows import row_shift
from pycaffe_dist.kernels.labels import NOTHING_WRONG

_cu = kernels("upsampling")


def repeat(x: Any, y: Any, scale: int) -> None:
    """See `pycaffe_dist.kernels.upsampling.repeat`."""
    lines, shift = y.shape[0] * y.shape[1], row_shift(y.shape[2])
    _cu.repeat(lines << shift, x, y, x.shape[2], scale, lines, shift)


def repeat_gradient(dy: Any, dx: Any, scale: int) -> None:
    """See `pycaffe_dist.kernels.upsampling.repeat_gradient`."""
    lines, shift = dx.shape[0] * dx.shape[1], row_shift(dx.shape[2])
    _cu.repeat_gradient(lines << shift, dy, dx, dx.shape[2], scale, lines, shift)


def unpool(x: Any, mask: Any, y: Any, wrong: Any) -> None:
    """See `pycaffe_dist.kernels.upsampling.unpool`."""
    wrong.fill(NOTHING_WRONG)
    last = device.xp().full(y.shape, -1, np.int32)
    _cu.last_values(mask.size, mask, last, wrong, mask.shape[1], y.shape[1], mask.size)
    _cu.unpool(y.size, x, last, y, y.size)


def unpool_gradient(dy: Any, mask: Any, dx: Any) -> None:
    """See `pycaffe_dist.kernels.upsampling.unpool_gradient`."""
    _cu.unpool_gradient(dx.size, dy, mask, dx, mask.shape[1], dy.shape[1], dx.size)
