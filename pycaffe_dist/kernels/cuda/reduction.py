"""Sums along the rows of a matrix on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist import device
from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.rows import block_size, splits

_cu = kernels("reduction")
_ELEMENTS_PER_BLOCK = 4096


def reduce_rows(x: Any, what: int, coefficient: float, y: Any) -> None:
    """See `pycaffe_dist.kernels.reduction.reduce_rows`."""
    rows, columns = x.shape
    parts = splits(-(-columns // _ELEMENTS_PER_BLOCK), rows)
    sums = device.xp().empty((rows, parts))
    sizes = rows, columns, -(-columns // parts), parts
    _cu.sum_stretches.blocks(rows * parts, x, what, sums, *sizes, threads=block_size(columns))
    _cu.join_stretches(rows, sums, coefficient, y, rows, parts)
