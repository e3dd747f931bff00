"""Enlarged planes: pixels repeated, or put back where a maximum pooling found them."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import copy_values, jit
from pycaffe_dist.kernels.labels import NOTHING_WRONG, wrong_code
from pycaffe_dist.threads import parallel_for

ELEMENTS_PER_CHUNK = 1 << 14


@jit
def _repeat(begin, end, x, y, scale):
    height, width = x.shape[1], x.shape[2]
    for row in range(begin, end):
        plane, h = row // height, row % height
        source, first = x[plane, h], y[plane, h * scale]
        for w in range(width):
            for k in range(scale):
                first[np.uint64(w * scale + k)] = source[w]
        for k in range(1, scale):
            copy = y[plane, h * scale + k]
            for w in range(len(copy)):
                copy[w] = first[w]


@kernel
def repeat(x: np.ndarray, y: np.ndarray, scale: int) -> None:
    """Set y (planes, scale·H, scale·W) to x (planes, H, W) with each pixel repeated."""
    grain = -(-ELEMENTS_PER_CHUNK // max(1, scale * y.shape[2]))
    parallel_for(_repeat, x.shape[0] * x.shape[1], x, y, scale, grain=grain)


@jit
def _repeat_gradient(begin, end, dy, dx, scale):
    height, width = dx.shape[1], dx.shape[2]
    line = np.empty(width * scale, dy.dtype)
    for row in range(begin, end):
        plane, h = row // height, row % height
        copy_values(dy[plane, h * scale], line)
        for k in range(1, scale):
            source = dy[plane, h * scale + k]
            for w in range(len(line)):
                line[w] += source[w]
        to = dx[plane, h]
        for w in range(width):
            total = line[np.uint64(w * scale)]
            for k in range(1, scale):
                total += line[np.uint64(w * scale + k)]
            to[w] = total


@kernel
def repeat_gradient(dy: np.ndarray, dx: np.ndarray, scale: int) -> None:
    """Set dx to the sums of the squares of dy that `repeat` made of a pixel."""
    grain = -(-ELEMENTS_PER_CHUNK // max(1, scale * dy.shape[2]))
    parallel_for(_repeat_gradient, dx.shape[0] * dx.shape[1], dy, dx, scale, grain=grain)


@jit
def _unpool(begin, end, x, mask, y, wrong_at):
    size = y.shape[1]
    for p in range(begin, end):
        values, places, plane = x[p], mask[p], y[p]
        plane[:] = 0
        for i in range(len(values)):
            place = places[i]
            if place >= 0 and place < size:  # a NaN is not
                plane[np.uint64(place)] = values[i]
            elif wrong_at[p] < 0:
                wrong_at[p] = i


@kernel
def unpool(x: np.ndarray, mask: np.ndarray, y: np.ndarray, wrong: np.ndarray) -> None:
    """Set the elements of y (planes, size) that the mask names to x, and the others to 0.

    x and mask are (planes, n).  Of values for the same place the last one wins.  ``wrong`` (1,)
    gets the first index that is not in y's planes, as `kernels.labels` describes.
    """
    wrong_at = np.full(len(x), -1, np.int64)
    grain = -(-ELEMENTS_PER_CHUNK // max(1, y.shape[1]))
    parallel_for(_unpool, len(x), x, mask, y, wrong_at, grain=grain)
    planes = np.flatnonzero(wrong_at >= 0)
    wrong[0] = NOTHING_WRONG
    if planes.size:
        position = int(planes[0] * x.shape[1] + wrong_at[planes[0]])
        wrong[0] = wrong_code(position, mask.reshape(-1)[position])


@jit
def _unpool_gradient(begin, end, dy, mask, dx):
    for p in range(begin, end):
        source, places, to = dy[p], mask[p], dx[p]
        for i in range(len(to)):
            to[i] = source[np.uint64(places[i])]


@kernel
def unpool_gradient(dy: np.ndarray, mask: np.ndarray, dx: np.ndarray) -> None:
    """Set dx to the elements of dy that the mask names."""
    grain = -(-ELEMENTS_PER_CHUNK // max(1, mask.shape[1]))
    parallel_for(_unpool_gradient, len(dx), dy, mask, dx, grain=grain)
