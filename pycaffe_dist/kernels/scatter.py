"""Lookups of rows in a table (gather), and sums of rows by index (scatter-add)."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

_COLUMNS_PER_CHUNK = 64


@jit
def _scatter_add(begin, end, rows, indices, total):
    for i in range(rows.shape[0]):
        source, target = rows[i, begin:end], total[indices[i], begin:end]
        for c in range(target.size):
            target[c] += source[c]


@kernel
def scatter_add(rows: np.ndarray, indices: np.ndarray, total: np.ndarray) -> None:
    """Add row i of ``rows`` to row ``indices[i]`` of ``total``, for each i; both are matrices."""
    # Threads share the columns, so that their number does not change the order of a sum.
    parallel_for(_scatter_add, rows.shape[1], rows, indices, total, grain=_COLUMNS_PER_CHUNK)


@kernel
def gather(table: np.ndarray, indices: np.ndarray, rows: np.ndarray) -> None:
    """Set row i of ``rows`` to row ``indices[i]`` of ``table``; indices are in range."""
    # The default mode would check the indices again, and would buffer the output for that.
    np.take(table, indices, axis=0, out=rows, mode="clip")
