"""Copies between a matrix and a range of columns of a wider matrix on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.division import division

_cu = kernels("columns")
# Aligned elements are copied so many bytes at a time, as integers of half that size.
_UNIT_BYTES = 16


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
    each = _UNIT_BYTES // source.itemsize
    addresses = source.data.ptr, target.data.ptr
    wide = not any(n % each for n in sizes) and not any(n % _UNIT_BYTES for n in addresses)
    if wide:
        source, target = source.view(np.uint64), target.view(np.uint64)
        sizes = tuple(size // each for size in sizes)
    columns, source_begin, target_begin, source_width, target_width = sizes
    ends = source, source_begin, source_width, target, target_begin, target_width
    n = len(source) * columns
    kernel = _cu.copy_wide_columns if wide else _cu.copy_columns
    kernel(n, *ends, *division(max(1, columns)), columns, n)
