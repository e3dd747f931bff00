"""Cells of a grid that objects cover, as NVIDIA/caffe marks them for DetectNet."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

# The channels of a cell: whether an object covers it, the box's corners from the cell's first one,
# 1 / width and 1 / height, 1 / cells, and from CLASSES on whether the object is of a class.
CORNERS, SIZES, SHARE, CLASSES = 1, 5, 7, 8
LEAST_AREA = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Grid:
    """How objects cover cells.

    A cell has ``stride`` by ``stride`` pixels of an image of ``width`` by ``height``.  An object
    covers the middle of its box: ``scale`` times its size, with ``at_least`` no less than ``limit``
    pixels (or the box), else no more.  ``crop`` cuts boxes at the image's border; ``normalize``
    sets channel SHARE, else it is no less than 1.
    """

    stride: int
    width: int
    height: int
    scale: float
    limit: float
    at_least: bool
    crop: bool
    normalize: bool

    def numbers(self) -> tuple:
        """Return all of it as arguments of a kernel."""
        size = float(self.stride), float(self.width), float(self.height)
        return *size, self.scale, self.limit, self.at_least, self.crop, self.normalize


@jit
def _middle(low, size, scale, limit, at_least):
    """Return where the covered part of a side begins and ends."""
    number = type(size)
    covered = size * number(scale)
    if at_least:
        covered = min(size, max(number(limit), covered))
    else:
        covered = min(number(limit), covered)
    center, half = (low + (low + size)) * number(0.5), covered * number(0.5)
    return center - half, center + half


@jit
def _cell_range(low, high, stride, cells):
    number = type(low)
    first, last = math.floor(low / number(stride)), math.ceil(high / number(stride))
    return max(0, int(first)), min(cells, int(last))


@jit
def _shared(low, high, cell, stride):
    """Return how much of a cell's side a range has."""
    number = type(low)
    start = number(cell) * number(stride)
    length = min(high, start + number(stride)) - max(low, start)
    return length if length > 0 else number(0)


@jit
def _mark(goals, y, x, box, share, kind, stride):
    number = goals.dtype.type
    left, top = number(x) * number(stride), number(y) * number(stride)
    goals[0, y, x], goals[SHARE, y, x] = 1, share
    goals[CORNERS, y, x], goals[CORNERS + 1, y, x] = box[0] - left, box[1] - top
    goals[CORNERS + 2, y, x] = box[0] + box[2] - left
    goals[CORNERS + 3, y, x] = box[1] + box[3] - top
    goals[SIZES, y, x], goals[SIZES + 1, y, x] = number(1) / box[2], number(1) / box[3]
    for c in range(CLASSES, goals.shape[0]):
        goals[c, y, x] = c == CLASSES + kind


@jit
def _cut(low, size, end):
    """Return a side cut at 0 and ``end``."""
    number = type(low)
    first, last = max(low, number(0)), min(low + size, number(end))
    return (first, last - first) if last > first else (number(0), number(0))


@jit
def _cover(
    begin,
    end,
    boxes,
    kinds,
    stride,
    width,
    height,
    scale,
    limit,
    at_least,
    crop,
    normalize,
    goals,
):
    number = goals.dtype.type
    for n in range(begin, end):
        goals[n] = 0
        for r in range(kinds.shape[1]):
            if kinds[n, r] < 0:
                continue
            x, y, wide, high = boxes[n, r, 0], boxes[n, r, 1], boxes[n, r, 2], boxes[n, r, 3]
            if crop:
                x, wide = _cut(x, wide, width)
                y, high = _cut(y, high, height)
            if not (wide > 0 and high > 0 and wide * high >= LEAST_AREA):
                continue
            left, right = _middle(x, wide, scale, limit, at_least)
            top, bottom = _middle(y, high, scale, limit, at_least)
            share = number(stride * stride) / ((right - left) * (bottom - top))
            if not normalize:
                share = max(number(1), share)
            first_x, last_x = _cell_range(left, right, stride, goals.shape[3])
            first_y, last_y = _cell_range(top, bottom, stride, goals.shape[2])
            for cell_y in range(first_y, last_y):
                rows = _shared(top, bottom, cell_y, stride)
                for cell_x in range(first_x, last_x):
                    area = rows * _shared(left, right, cell_x, stride)
                    if area / number(stride * stride) > LEAST_AREA:
                        box = x, y, wide, high
                        _mark(goals[n], cell_y, cell_x, box, share, kinds[n, r], stride)


@kernel
def cover(boxes: np.ndarray, kinds: np.ndarray, grid: Grid, goals: np.ndarray) -> None:
    """Set goals (N, CLASSES + classes, rows, columns) for boxes (N, R, 4) of x, y, width, height.

    ``kinds`` (N, R), int32, are the boxes' classes; -1 leaves a box out.  Later boxes hide others.
    """
    parallel_for(_cover, len(goals), boxes, kinds, *grid.numbers(), goals)
