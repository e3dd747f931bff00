"""Sums of squares of arrays, for their L2 norms."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import indices, jit
from pycaffe_dist.threads import parallel_for

_BLOCK = 1 << 14


@jit(fast=True)
def _squares(begin, end, x, sums):
    for block in range(begin, end):
        total = 0.0
        for i in indices(block * _BLOCK, min((block + 1) * _BLOCK, x.size)):
            total += x[i] * x[i]
        sums[block] = total


@kernel
def sum_of_squares(x: np.ndarray) -> float:
    """Return the sum of the squares of an array's elements (C-contiguous)."""
    if x.size <= _BLOCK:
        return float(np.vdot(x, x))
    sums = np.zeros(-(-x.size // _BLOCK))
    parallel_for(_squares, sums.size, x.reshape(-1), sums)
    return float(sums.sum())
