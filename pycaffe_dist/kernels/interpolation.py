"""Bilinear interpolation of planes whose corners stay in place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pycaffe_dist.kernels import plan
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

ELEMENTS_PER_CHUNK = 1 << 14


class Line:
    """One axis of ``size`` points interpolated at ``count`` points, the first and last the same.

    Point i lies ``fraction[i]`` of the way from point ``index[i]`` to the next one.  The first such
    point with an index of at least k is ``start[k]``.
    """

    def __init__(self, size: int, count: int):
        step = (size - 1) / (count - 1) if count > 1 else 0.0
        place = np.arange(count) * step
        self.index = np.minimum(place.astype(np.int64), max(0, size - 2))
        self.fraction = place - self.index
        self.start = np.searchsorted(self.index, np.arange(size + 1))

    def tables(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return index and start as int32, and fraction as ``dtype`` in between."""
        index, start = self.index.astype(np.int32), self.start.astype(np.int32)
        return index, self.fraction.astype(dtype), start


@dataclass(frozen=True)
class Window:
    """A part of images of ``whole`` (height, width): ``size`` from (``offset``, ``offset``) on."""

    whole: tuple[int, int]
    offset: int
    size: tuple[int, int]


@plan
class Bilinear:
    """Interpolates a window of each plane at ``output`` (height, width) points."""

    def __init__(self, window: Window, output: tuple[int, int], dtype: np.dtype):
        self._window, self._output = window, output
        lines = (Line(size, count) for size, count in zip(window.size, output))
        self._tables = tuple(line.tables(dtype) for line in lines)

    def run(self, x: np.ndarray, y: np.ndarray) -> None:
        """Set y (planes, *output) to the points between those of x (planes, *whole)."""
        down, across = self._tables
        grain = -(-ELEMENTS_PER_CHUNK // self._output[1])
        # Where an axis has one point, there is no next one, and all fractions are 0.
        next_row, next_column = (min(1, size - 1) for size in self._window.size)
        args = x, y, self._window.offset, next_row, next_column, down[:2], across[:2]
        parallel_for(_interpolate, y.shape[0] * y.shape[1], *args, grain=grain)

    def gradient(self, dy: np.ndarray, dx: np.ndarray) -> None:
        """Set dx to the gradient of `run`."""
        window = self._window
        if window.size != window.whole:
            dx.fill(0)
        rows, (down, across) = window.size[0], self._tables
        grain = -(-ELEMENTS_PER_CHUNK * rows // (self._output[0] * self._output[1]))
        args = dy, dx, window.offset, window.size, down, across[:2]
        parallel_for(_gradient, dx.shape[0] * rows, *args, grain=grain)


@jit(fast=True)
def _stretch(row, index, fraction, next_one, to):
    for o in range(len(to)):
        at = index[o]
        value = row[at]
        to[o] = value + fraction[o] * (row[at + next_one] - value)


@jit(fast=True)
def _interpolate(begin, end, x, y, offset, next_row, next_column, down, across):
    """Each row of x is stretched once for all rows of y that it takes part in."""
    index, fraction = down
    columns, parts = across
    height, width = y.shape[1], y.shape[2]
    above, below = np.empty(width, x.dtype), np.empty(width, x.dtype)
    has_above = has_below = -1
    for row in range(begin, end):
        plane, o = row // height, row % height
        first = plane * x.shape[1] + offset + index[o]
        second = first + next_row
        if has_below == first:
            above, below, has_above, has_below = below, above, has_below, has_above
        if has_above != first:
            source = x[plane, offset + index[o], offset:]
            _stretch(source, columns, parts, next_column, above)
            has_above = first
        if has_below != second:
            source = x[plane, offset + index[o] + next_row, offset:]
            _stretch(source, columns, parts, next_column, below)
            has_below = second
        to, part = y[plane, o], fraction[o]
        for w in range(width):
            to[w] = above[w] + part * (below[w] - above[w])


@jit(fast=True)
def _gradient(begin, end, dy, dx, offset, window, down, across):
    _, fraction, start = down
    columns, parts = across
    height, width = window
    one = dy.dtype.type(1)
    line = np.empty(dy.shape[2], dy.dtype)
    for row in range(begin, end):
        plane, h = row // height, row % height
        first, last = start[max(h - 1, 0)], start[h + 1]
        to = dx[plane, offset + h, offset : offset + width]
        if first == last:
            to[:] = 0
            continue
        line[:] = 0
        for o in range(first, last):
            source = dy[plane, o]
            weight = fraction[o] if o < start[h] else one - fraction[o]
            for w in range(len(line)):
                line[w] += weight * source[w]
        _gather(line, columns, parts, to)


@jit(fast=True)
def _gather(line, index, fraction, to):
    """Set to to the gradient of `_stretch`; the index never falls."""
    at, here, after = 0, line.dtype.type(0), line.dtype.type(0)
    for o in range(len(line)):
        while at < index[o]:
            to[np.uint64(at)] = here
            here, after = after, line.dtype.type(0)
            at += 1
        part = fraction[o] * line[o]
        here += line[o] - part
        after += part
    to[np.uint64(at)] = here
    if at + 1 < len(to):
        to[np.uint64(at + 1)] = after
    for w in range(at + 2, len(to)):
        to[np.uint64(w)] = 0
