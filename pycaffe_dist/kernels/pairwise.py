"""Distances of each row of a matrix to each row of another: x is (M, K), w is (N, K)."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

# Rows that stay in the cache while the rows of the other matrix pass.
_ROWS = 8
_ELEMENTS_PER_CHUNK = 1 << 16


@jit(fast=True)
def _distances(begin, end, x, w, magnitudes, y):
    for unit in range(begin, end):
        first, last = unit * _ROWS, min(unit * _ROWS + _ROWS, x.shape[0])
        for n in range(w.shape[0]):
            centre = w[n]
            for m in range(first, last):
                row, total = x[m], x.dtype.type(0)
                if magnitudes:
                    for k in range(row.size):
                        total += abs(row[k] - centre[k])
                else:
                    for k in range(row.size):
                        difference = row[k] - centre[k]
                        total += difference * difference
                y[m, n] = total


@jit(fast=True)
def _gradient(begin, end, x, w, dy, turned, dx):
    one, zero = x.dtype.type(1), x.dtype.type(0)
    for unit in range(begin, end):
        first, last = unit * _ROWS, min(unit * _ROWS + _ROWS, x.shape[0])
        for n in range(w.shape[0]):
            centre = w[n]
            for m in range(first, last):
                row, target = x[m], dx[m]
                slope = dy[n, m] if turned else dy[m, n]
                for k in range(row.size):
                    difference = row[k] - centre[k]
                    sign = one if difference > 0 else -one
                    target[k] += slope * (zero if difference == 0 else sign)


def _units(x: np.ndarray, w: np.ndarray) -> tuple[int, int]:
    """Return the number of units of work, and how many are worth waking a thread."""
    return -(-len(x) // _ROWS), max(1, _ELEMENTS_PER_CHUNK // max(1, _ROWS * w.size))


@kernel
def distances(x: np.ndarray, w: np.ndarray, magnitudes: bool, y: np.ndarray) -> None:
    """Set y (M, N) to the sums of squared differences, or of their magnitudes."""
    units, grain = _units(x, w)
    parallel_for(_distances, units, x, w, magnitudes, y, grain=grain)


@kernel
def magnitudes_gradient(
    x: np.ndarray, w: np.ndarray, dy: np.ndarray, turned: bool, dx: np.ndarray
) -> None:
    """Add the gradient of the magnitudes with respect to x to dx.

    dy is (M, N), or (N, M) if ``turned``.
    """
    units, grain = _units(x, w)
    parallel_for(_gradient, units, x, w, dy, turned, dx, grain=grain)
