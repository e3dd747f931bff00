"""Copies with axes in another order, and with one axis reversed."""

from __future__ import annotations

import math

import numpy as np

from pycaffe_dist.kernels import kernel, plan
from pycaffe_dist.kernels.compiling import indices, jit
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import target
from pycaffe_dist.kernels.jit.gemm.kernels import TransposeKernel
from pycaffe_dist.threads import parallel_for

ELEMENTS_PER_CHUNK = 1 << 15
# Columns of a matrix that one unit of work transposes, and a square that stays in the cache.
COLUMNS = 64
SQUARE = 16


def merged_axes(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return shape and order of the same permutation with as few axes as possible.

    Axes of size 1 are left out, and axes that stay neighbours become one.
    """
    groups: list[list[int]] = []
    for axis in order:
        if shape[axis] == 1:
            continue
        before = groups[-1][-1] if groups else axis
        if axis > before and all(shape[between] == 1 for between in range(before + 1, axis)):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    places = sorted(range(len(groups)), key=lambda place: groups[place][0])
    sizes = [math.prod(shape[axis] for axis in groups[place]) for place in places]
    return sizes or [1], [places.index(place) for place in range(len(groups))] or [0]


class Steps:
    """The loops of a permutation: ``inner`` neighbours stay so, or a matrix is transposed.

    ``outer`` (n, 3) has size, step in x and step in y of the other axes, in y's order.  A matrix of
    (``rows``, ``columns``) has rows of x ``row_step`` apart, and rows of y ``column_step`` apart;
    without one, ``rows`` is 0.
    """

    def __init__(self, shape: tuple[int, ...], order: tuple[int, ...]):
        sizes, chosen = merged_axes(shape, order)
        of_y = [sizes[axis] for axis in chosen]
        *outer, (size, step, _) = [
            (sizes[axis], math.prod(sizes[axis + 1 :]), math.prod(of_y[place + 1 :]))
            for place, axis in enumerate(chosen)
        ]
        self.inner, self.rows, self.columns, self.row_step, self.column_step = size, 0, 0, 0, 0
        if step > 1:
            self.inner, self.rows, self.row_step = 1, size, step
            last = next(axis for axis in outer if axis[1] == 1)
            outer.remove(last)
            self.columns, _, self.column_step = last
        self.outer = np.array(outer, np.int64).reshape(-1, 3)
        self.blocks = math.prod(axis[0] for axis in outer)


@plan
class Permutation:
    """Copies arrays of ``shape`` so that axis i of the result is axis ``order[i]``."""

    def __init__(self, shape: tuple[int, ...], order: tuple[int, ...]):
        self._steps = Steps(shape, order)

    def run(self, x: np.ndarray, y: np.ndarray) -> None:
        """Set y to x with its axes permuted."""
        steps, flat = self._steps, (x.reshape(-1), y.reshape(-1))
        if not steps.rows:
            grain = -(-ELEMENTS_PER_CHUNK // max(1, steps.inner))
            parallel_for(_copy_rows, steps.blocks, *flat, steps.outer, steps.inner, grain=grain)
            return
        matrix = steps.rows, steps.columns, steps.row_step, steps.column_step
        units = steps.blocks * -(-steps.columns // COLUMNS)
        grain = -(-ELEMENTS_PER_CHUNK // (COLUMNS * steps.rows))
        unit = target() if x.dtype == np.float32 else None
        if unit is not None and steps.rows >= unit.lanes:
            transpose = address_of(TransposeKernel(), unit)
            args = *flat, steps.outer, matrix, transpose, unit.lanes
            parallel_for(_transpose_vectors, units, *args, grain=grain)
        else:
            parallel_for(_transpose, units, *flat, steps.outer, matrix, grain=grain)


@jit
def _places(block, outer):
    """Return where block number ``block`` begins in x and in y."""
    in_x = in_y = 0
    for axis in range(len(outer) - 1, -1, -1):
        index = block % outer[axis, 0]
        block //= outer[axis, 0]
        in_x += index * outer[axis, 1]
        in_y += index * outer[axis, 2]
    return in_x, in_y


@jit
def _copy_rows(begin, end, x, y, outer, inner):
    for block in range(begin, end):
        in_x, in_y = _places(block, outer)
        source, to = x[in_x : in_x + inner], y[in_y : in_y + inner]
        for i in range(inner):
            to[i] = source[i]


@jit
def _transpose(begin, end, x, y, outer, matrix):
    rows, columns, row_step, column_step = matrix
    tiles = (columns + COLUMNS - 1) // COLUMNS
    for unit in range(begin, end):
        in_x, in_y = _places(unit // tiles, outer)
        first = unit % tiles * COLUMNS
        last = min(first + COLUMNS, columns)
        for top in range(0, rows, SQUARE):
            bottom = min(top + SQUARE, rows)
            for column in range(first, last):
                to = y[in_y + column * column_step + top : in_y + column * column_step + bottom]
                start = in_x + column + top * row_step
                for row in range(len(to)):
                    to[row] = x[np.uint64(start + row * row_step)]


@jit
def _transpose_vectors(begin, end, x, y, outer, matrix, transpose, lanes):
    rows, columns, row_step, column_step = matrix
    tiles = (columns + COLUMNS - 1) // COLUMNS
    for unit in range(begin, end):
        in_x, in_y = _places(unit // tiles, outer)
        first = unit % tiles * COLUMNS
        last = min(first + COLUMNS, columns)
        for top in range(0, rows, lanes):
            row = min(top, rows - lanes)  # the last square repeats some rows
            for column in range(first, last, lanes):
                call(
                    transpose,
                    x.ctypes.data + 4 * (in_x + row * row_step + column),
                    4 * row_step,
                    y.ctypes.data + 4 * (in_y + column * column_step + row),
                    4 * column_step,
                    lanes,
                    min(lanes, last - column),
                )


@jit
def _reverse(begin, end, x, y):
    size, inner = x.shape[1], x.shape[2]
    for n in range(begin, end):
        if inner == 1:
            source, to = x[n, :, 0], y[n, :, 0]
            last = np.uint64(size - 1)
            for i in indices(0, size):
                to[i] = source[last - i]
            continue
        for k in range(size):
            source, to = x[n, k], y[n, size - 1 - k]
            for i in range(inner):
                to[i] = source[i]


@kernel
def reverse(x: np.ndarray, y: np.ndarray) -> None:
    """Set y to x (outer, size, inner) with its middle axis reversed."""
    grain = -(-ELEMENTS_PER_CHUNK // max(1, x.shape[1] * x.shape[2]))
    parallel_for(_reverse, x.shape[0], x, y, grain=grain)
