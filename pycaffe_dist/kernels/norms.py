"""Sums of squares of arrays, for their L2 norms."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

_BLOCK = 1 << 14
_STRETCH = 1 << 10  # elements that are added in their own type, which is faster


@jit(fast=True)
def _squares(begin, end, x, sums):
    for block in range(begin, end):
        part = x[block * _BLOCK : (block + 1) * _BLOCK]
        total = 0.0
        for start in range(0, part.size, _STRETCH):
            values = part[start : start + _STRETCH]
            some = x.dtype.type(0)
            for i in range(values.size):
                some += values[i] * values[i]
            total += some
        sums[block] = total


@kernel
def sum_of_squares(x: np.ndarray) -> float:
    """Return the sum of the squares of an array's elements (C-contiguous)."""
    if x.size <= _BLOCK:
        return float(np.vdot(x, x))
    sums = np.zeros(-(-x.size // _BLOCK))
    parallel_for(_squares, sums.size, x.reshape(-1), sums)
    return float(sums.sum())
