"""Maps sampled where a flow points to, with bilinear interpolation, and the gradients of both."""

from __future__ import annotations

import math

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

PIXELS_PER_CHUNK = 1 << 12


@jit
def _place(start, shift, size):
    """Return the two cells next to a shifted point, and how far it is from the first to the second.

    Cells outside are those at the border; so are both where the shift is not a number.
    """
    number = type(shift)
    point = number(start) + shift
    low = number(math.floor(point)) if abs(point) < 1e9 else point
    part = point - low
    first = int(low) if low > 0 else 0
    if low >= size - 1:
        return size - 1, size - 1, part
    return first, int(low) + 1 if low > -1 else 0, part


@jit
def _row(flow, n, h, rows, columns, parts):
    """Set the cells (2, w) and parts (w) that a row of the flow points to."""
    height, width = flow.shape[2], flow.shape[3]
    for w in range(width):
        rows[0, w], rows[1, w], parts[0, w] = _place(h, flow[n, 1, h, w], height)
        columns[0, w], columns[1, w], parts[1, w] = _place(w, flow[n, 0, h, w], width)


@jit
def _scratch(x):
    width = x.shape[3]
    cells = np.empty((2, 2, width), np.int64)
    return cells[0], cells[1], np.empty((2, width), x.dtype)


@jit
def _warp(begin, end, x, flow, y):
    rows, columns, parts = _scratch(x)
    for line in range(begin, end):
        n, h = divmod(line, x.shape[2])
        _row(flow, n, h, rows, columns, parts)
        for c in range(x.shape[1]):
            plane, target = x[n, c], y[n, c, h]
            for w in range(target.size):
                a, b = parts[0, w], parts[1, w]
                above = plane[rows[0, w], columns[0, w]] * (1 - b)
                above += plane[rows[0, w], columns[1, w]] * b
                below = plane[rows[1, w], columns[0, w]] * (1 - b)
                below += plane[rows[1, w], columns[1, w]] * b
                target[w] = above * (1 - a) + below * a


@kernel
def warp(x: np.ndarray, flow: np.ndarray, y: np.ndarray) -> None:
    """Set y to x (N, C, H, W) at each point shifted by ``flow`` (N, 2, H, W): right, and down.

    Cells outside are those at the border.
    """
    parallel_for(_warp, x.shape[0] * x.shape[2], x, flow, y, grain=_grain(x))


def _grain(x: np.ndarray) -> int:
    return 1 + PIXELS_PER_CHUNK // max(1, x.shape[1] * x.shape[3])


@jit
def _map_gradient(begin, end, dy, flow, dx):
    rows, columns, parts = _scratch(dy)
    for place in range(begin, end):
        n, c = divmod(place, dy.shape[1])
        plane = dx[n, c]
        plane[:] = 0
        for h in range(dy.shape[2]):
            _row(flow, n, h, rows, columns, parts)
            for w in range(dy.shape[3]):
                a, b = parts[0, w], parts[1, w]
                above, below = dy[n, c, h, w] * (1 - a), dy[n, c, h, w] * a
                plane[rows[0, w], columns[0, w]] += above * (1 - b)
                plane[rows[0, w], columns[1, w]] += above * b
                plane[rows[1, w], columns[0, w]] += below * (1 - b)
                plane[rows[1, w], columns[1, w]] += below * b


@kernel
def warp_map_gradient(dy: np.ndarray, flow: np.ndarray, dx: np.ndarray) -> None:
    """Set dx, the gradient of `warp`'s x."""
    parallel_for(_map_gradient, dy.shape[0] * dy.shape[1], dy, flow, dx)


@jit
def _flow_gradient(begin, end, dy, x, flow, gradient):
    rows, columns, parts = _scratch(x)
    for line in range(begin, end):
        n, h = divmod(line, x.shape[2])
        _row(flow, n, h, rows, columns, parts)
        right, down = gradient[n, 0, h], gradient[n, 1, h]
        right[:], down[:] = 0, 0
        for c in range(x.shape[1]):
            plane, slope = x[n, c], dy[n, c, h]
            for w in range(slope.size):
                a, b = parts[0, w], parts[1, w]
                near = plane[rows[0, w], columns[0, w]]
                beside = plane[rows[0, w], columns[1, w]]
                under = plane[rows[1, w], columns[0, w]]
                across = plane[rows[1, w], columns[1, w]]
                right[w] += slope[w] * ((beside - near) * (1 - a) + (across - under) * a)
                down[w] += slope[w] * ((under - near) * (1 - b) + (across - beside) * b)


@kernel
def warp_flow_gradient(
    dy: np.ndarray, x: np.ndarray, flow: np.ndarray, gradient: np.ndarray
) -> None:
    """Set ``gradient`` (N, 2, H, W), the gradient of `warp`'s flow."""
    args = dy, x, flow, gradient
    parallel_for(_flow_gradient, x.shape[0] * x.shape[2], *args, grain=_grain(x))
