"""Division by the L2 norm over channels at each position: x and dy are (N, C, positions)."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

# Positions of all channels that one unit of work keeps in the cache.
POSITIONS = 256
ELEMENTS_PER_CHUNK = 1 << 14


@jit
def _unit(unit, positions):
    """Return the image and the range of positions of a unit of work."""
    blocks = (positions + POSITIONS - 1) // POSITIONS
    first = unit % blocks * POSITIONS
    return unit // blocks, first, min(first + POSITIONS, positions)


@jit(fast=True)
def _divide(begin, end, x, scale, eps, norms, y):
    for unit in range(begin, end):
        n, first, last = _unit(unit, x.shape[2])
        norm = norms[n, first:last]
        norm[:] = eps
        for c in range(x.shape[1]):
            source = x[n, c, first:last]
            for i in range(len(norm)):
                norm[i] += source[i] * source[i]
        for i in range(len(norm)):
            norm[i] = np.sqrt(norm[i])
        for c in range(x.shape[1]):
            source, to, factor = x[n, c, first:last], y[n, c, first:last], scale[c]
            for i in range(len(norm)):
                to[i] = source[i] / norm[i] * factor


@jit(fast=True)
def _gradient(begin, end, x, dy, scale, norms, dx):
    one = x.dtype.type(1)
    mean, inverse = np.empty(POSITIONS, x.dtype), np.empty(POSITIONS, x.dtype)
    for unit in range(begin, end):
        n, first, last = _unit(unit, x.shape[2])
        norm, count = norms[n, first:last], last - first
        mean[:] = 0
        for c in range(x.shape[1]):
            source, gradient = x[n, c, first:last], dy[n, c, first:last]
            for i in range(count):
                mean[i] += source[i] * gradient[i]
        for i in range(count):
            inverse[i] = one / norm[i]
            mean[i] *= inverse[i] * inverse[i]
        for c in range(x.shape[1]):
            source, gradient = x[n, c, first:last], dy[n, c, first:last]
            to, factor = dx[n, c, first:last], scale[c]
            for i in range(count):
                to[i] = factor * (gradient[i] - source[i] * mean[i]) * inverse[i]


@jit(fast=True)
def _scale_gradient(begin, end, x, dy, norms, total):
    for c in range(begin, end):
        total[c] = 0
        for n in range(x.shape[0]):
            source, gradient, norm = x[n, c], dy[n, c], norms[n]
            part = x.dtype.type(0)
            for i in range(len(source)):
                part += source[i] * gradient[i] / norm[i]
            total[c] += part


def _units(x: np.ndarray) -> tuple[int, int]:
    """Return the number of units of work, and how many are worth waking a thread."""
    units = x.shape[0] * -(-x.shape[2] // POSITIONS)
    return units, max(1, ELEMENTS_PER_CHUNK * units // max(1, x.size))


@kernel
def divide_by_norms(
    x: np.ndarray, scale: np.ndarray, eps: float, norms: np.ndarray, y: np.ndarray
) -> None:
    """Set norms (N, positions) to sqrt(eps + Σx² over channels), and y to x / norm · scale (C,)."""
    units, grain = _units(x)
    parallel_for(_divide, units, x, scale, x.dtype.type(eps), norms, y, grain=grain)


@kernel
def norms_gradient(
    x: np.ndarray, dy: np.ndarray, scale: np.ndarray, norms: np.ndarray, dx: np.ndarray
) -> None:
    """Set dx to scale · (dy - x · Σ(x · dy over channels) / norm²) / norm."""
    units, grain = _units(x)
    parallel_for(_gradient, units, x, dy, scale, norms, dx, grain=grain)


@kernel
def scale_gradient(x: np.ndarray, dy: np.ndarray, norms: np.ndarray, total: np.ndarray) -> None:
    """Set total (C,) of float64 to the sums of dy · x / norm."""
    grain = max(1, ELEMENTS_PER_CHUNK * x.shape[1] // max(1, x.size))
    parallel_for(_scale_gradient, x.shape[1], x, dy, norms, total, grain=grain)
