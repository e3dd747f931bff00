"""Copies, zeros and sums between other kernels, in loops of their own."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels.compiling import indices, jit
from pycaffe_dist.threads import parallel_for

ELEMENTS_PER_CHUNK = 1 << 15


@jit
def _copy_rows(begin, end, source, target):
    for row in range(begin, end):
        values, to = source[row], target[row]
        for i in range(to.size):
            to[i] = values[i]


@jit
def _clear(begin, end, values):
    values[begin:end] = 0


@jit
def _add_sum(begin, end, parts, total):
    for i in indices(begin, end):
        value = parts[0, i]
        for part in range(1, len(parts)):
            value += parts[part, i]
        total[i] += value


def copy_rows(source: np.ndarray, target: np.ndarray) -> None:
    """Copy one small matrix to another of its shape."""
    parallel_for(_copy_rows, len(target), source, target, grain=len(target))


def clear(array: np.ndarray) -> None:
    """Set a C-contiguous array to 0."""
    parallel_for(_clear, array.size, array.reshape(-1), grain=ELEMENTS_PER_CHUNK)


def add_sum(parts: np.ndarray, total: np.ndarray) -> None:
    """Add the sum of the rows of ``parts`` to ``total``, which has a row's elements."""
    parallel_for(_add_sum, total.size, parts, total, grain=ELEMENTS_PER_CHUNK)
