"""Sums of squares of arrays, and of their differences."""

from __future__ import annotations

import math

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


@jit(fast=True)
def _squares_and_copy(begin, end, x, copy, sums):
    for block in range(begin, end):
        total = 0.0
        for i in indices(block * _BLOCK, min((block + 1) * _BLOCK, x.size)):
            copy[i] = x[i]
            total += x[i] * x[i]
        sums[block] = total


@jit(fast=True)
def _squares_of_steps(begin, end, x, y, sums):
    for block in range(begin, end):
        total = 0.0
        for i in indices(block * _BLOCK, min((block + 1) * _BLOCK, x.size)):
            step = x[i] - y[i]
            total += step * step
        sums[block] = total


def _root(loop, *arrays: np.ndarray) -> float:
    flat = [array.reshape(-1) for array in arrays]
    sums = np.zeros(-(-flat[0].size // _BLOCK))
    parallel_for(loop, sums.size, *flat, sums)
    return math.sqrt(float(sums.sum()))


@kernel
def norm(x: np.ndarray) -> float:
    """Return the L2 norm of an array (C-contiguous)."""
    return _root(_squares, x)


@kernel
def norm_and_copy(x: np.ndarray, copy: np.ndarray) -> float:
    """Set ``copy`` to an array of its shape (both C-contiguous); return the array's L2 norm."""
    return _root(_squares_and_copy, x, copy)


@kernel
def distance(x: np.ndarray, y: np.ndarray) -> float:
    """Return the L2 norm of the difference of two arrays (C-contiguous) of one shape."""
    return _root(_squares_of_steps, x, y)
