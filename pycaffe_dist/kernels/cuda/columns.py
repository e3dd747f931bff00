"""Copies between a matrix and a range of columns of a wider matrix on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.division import division

_cu = kernels("columns")
# Aligned elements are copied several at a time, as integers of this size.
_UNIT = np.dtype(np.uint64)


def put_columns(part: Any, whole: Any, begin: int) -> None:
    """See `pycaffe_dist.kernels.columns.put_columns`."""
    _copy(part, 0, whole, begin, part.shape[1])


def take_columns(whole: Any, begin: int, part: Any) -> None:
    """See `pycaffe_dist.kernels.columns.take_columns`."""
    _copy(whole, begin, part, 0, part.shape[1])


def _copy(source: Any, source_begin: int, target: Any, target_begin: int, columns: int) -> None:
    if source.size == 0 or target.size == 0:
        return
    sizes = columns, source_begin, target_begin, source.shape[1], target.shape[1]
    each = _UNIT.itemsize // source.itemsize
    if each > 1 and not any(size % each for size in sizes):
        source, target = source.view(_UNIT), target.view(_UNIT)
        columns, source_begin, target_begin = (size // each for size in sizes[:3])
    ends = source, source_begin, source.shape[1], target, target_begin, target.shape[1]
    n = len(source) * columns
    _cu.copy_columns(n, *ends, *division(max(1, columns)), columns, n)
