"""Pooling of boxes (regions of interest): maxima, averages by position, and bilinear samples.

Boxes come as tables that the layer makes once for both devices.  ``image`` (R,) int64 names each
box's image.  Bins are ``begin`` and ``end`` (R, 2, P) int32: the columns of bin column p are from
begin[r, 0, p] to before end[r, 0, p], the rows of bin row p are in [r, 1, p].  P may be larger than
the number of bin rows or columns.
"""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import copy_values, jit
from pycaffe_dist.threads import parallel_for

# A chunk of planes must be worth waking a thread.
ELEMENTS_PER_CHUNK = 1 << 12


def _grain(y: np.ndarray) -> int:
    """Return how many planes (r, c) of y make a chunk."""
    return -(-ELEMENTS_PER_CHUNK // max(1, y.shape[2] * y.shape[3]))


@jit
def _channels_last(begin, end, x, y):
    height = x.shape[2]
    for i in range(begin, end):
        n, h = i // height, i % height
        for c in range(x.shape[1]):
            for w in range(x.shape[3]):
                y[n, h, w, c] = x[n, c, h, w]


@jit
def _maxima(cells, top, bottom, left, right, best, where):
    """best[c] = max of cells[top:bottom, left:right, c], where[c] = flat index of the first."""
    width = cells.shape[1]
    copy_values(cells[top, left], best)
    where[:] = top * width + left
    for h in range(top, bottom):
        for w in range(left, right):
            cell, place = cells[h, w], np.int32(h * width + w)
            for c in range(best.size):
                # A NaN wins, so that it reaches the output.
                take = (cell[c] > best[c]) | (cell[c] != cell[c])
                best[c] = cell[c] if take else best[c]
                where[c] = place if take else where[c]


@jit
def _roi_max(begin, end, cells, image, first, last, y, mask):
    channels, rows, columns = y.shape[1], y.shape[2], y.shape[3]
    best = np.empty((columns, channels), y.dtype)
    where = np.empty((columns, channels), np.int32)
    for i in range(begin, end):
        r, p = i // rows, i % rows
        top, bottom = first[r, 1, p], last[r, 1, p]
        for q in range(columns):
            left, right = first[r, 0, q], last[r, 0, q]
            if top < bottom and left < right:
                _maxima(cells[image[r]], top, bottom, left, right, best[q], where[q])
            else:
                best[q], where[q] = 0, -1
        for c in range(channels):
            for q in range(columns):
                y[r, c, p, q], mask[r, c, p, q] = best[q, c], where[q, c]


@kernel
def roi_max_forward(
    x: np.ndarray,
    image: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    y: np.ndarray,
    mask: np.ndarray,
) -> None:
    """Set y (R, C, PH, PW) to the maximum of each bin of x (N, C, H, W), mask to its flat index.

    The index (int32) counts within the plane.  The first of equal maxima wins, a NaN beats
    everything, an empty bin gives 0 and -1.
    """
    # The channels of a cell side by side fill vector registers, which few columns of a bin do not.
    cells = np.empty((x.shape[0], *x.shape[2:], x.shape[1]), x.dtype)
    parallel_for(_channels_last, x.shape[0] * x.shape[2], x, cells)
    parallel_for(_roi_max, y.shape[0] * y.shape[2], cells, image, begin, end, y, mask)


@jit
def _roi_max_gradient(begin, end, dy, mask, image, dx):
    channels, size = dx.shape[1], dx.shape[2] * dx.shape[3]
    bins = dy.shape[2] * dy.shape[3]
    values, places, target = dy.reshape(-1), mask.reshape(-1), dx.reshape(-1)
    for i in range(begin, end):
        n, c = i // channels, i % channels
        target[i * size : (i + 1) * size] = 0
        for r in range(dy.shape[0]):
            if image[r] != n:
                continue
            start = (r * channels + c) * bins
            for o in range(start, start + bins):
                if places[o] >= 0:
                    target[i * size + places[o]] += values[o]


@kernel
def roi_max_backward(
    dy: np.ndarray,
    mask: np.ndarray,
    image: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    dx: np.ndarray,
) -> None:
    """Set dx to the sums of dy by the indices of `roi_max_forward`."""
    planes = dx.shape[0] * dx.shape[1]
    parallel_for(_roi_max_gradient, planes, dy, mask, image, dx)


@jit
def _roi_average(begin, end, x, image, first, last, y):
    depth, size = y.shape[1], y.shape[2]
    for i in range(begin, end):
        r, o = i // depth, i % depth
        for p in range(size):
            top, bottom = first[r, 1, p], last[r, 1, p]
            for q in range(size):
                left, right = first[r, 0, q], last[r, 0, q]
                plane, total = x[image[r], (o * size + p) * size + q], y.dtype.type(0)
                for h in range(top, bottom):
                    for w in range(left, right):
                        total += plane[h, w]
                area = max(0, bottom - top) * max(0, right - left)
                y[r, o, p, q] = total / y.dtype.type(max(1, area))


@kernel
def roi_average_forward(
    x: np.ndarray, image: np.ndarray, begin: np.ndarray, end: np.ndarray, y: np.ndarray
) -> None:
    """Set bin (p, q) of y (R, D, G, G) to its mean of channel (d·G + p)·G + q of x (N, D·G², H, W).

    An empty bin gives 0.
    """
    count = y.shape[0] * y.shape[1]
    parallel_for(_roi_average, count, x, image, begin, end, y, grain=_grain(y))


@jit
def _roi_average_gradient(begin, end, dy, image, first, last, dx):
    channels, size = dx.shape[1], dy.shape[2]
    for i in range(begin, end):
        n, c = i // channels, i % channels
        o, p, q = c // (size * size), c // size % size, c % size
        plane = dx[n, c]
        plane[:] = 0
        for r in range(dy.shape[0]):
            if image[r] != n:
                continue
            top, bottom, left, right = first[r, 1, p], last[r, 1, p], first[r, 0, q], last[r, 0, q]
            area = max(0, bottom - top) * max(0, right - left)
            value = dy[r, o, p, q] / dy.dtype.type(max(1, area))
            for h in range(top, bottom):
                for w in range(left, right):
                    plane[h, w] += value


@kernel
def roi_average_backward(
    dy: np.ndarray, image: np.ndarray, begin: np.ndarray, end: np.ndarray, dx: np.ndarray
) -> None:
    """Set dx to the gradient of `roi_average_forward`."""
    planes = dx.shape[0] * dx.shape[1]
    parallel_for(_roi_average_gradient, planes, dy, image, begin, end, dx)


@jit
def _roi_sample(begin, end, x, image, low, part, y):
    channels, height, width = x.shape[1], x.shape[2], x.shape[3]
    one = part.dtype.type(1)
    for i in range(begin, end):
        r, c = i // channels, i % channels
        plane = x[image[r], c]
        for p in range(y.shape[2]):
            h, down = low[r, 1, p], part[r, 1, p]
            under = min(h + 1, height - 1)
            for q in range(y.shape[3]):
                w, across = low[r, 0, q], part[r, 0, q]
                if h < 0 or w < 0:
                    y[r, c, p, q] = 0
                    continue
                beside = min(w + 1, width - 1)
                above = plane[h, w] * (one - across) + plane[h, beside] * across
                below = plane[under, w] * (one - across) + plane[under, beside] * across
                y[r, c, p, q] = above * (one - down) + below * down


@kernel
def roi_sample_forward(
    x: np.ndarray, image: np.ndarray, low: np.ndarray, part: np.ndarray, y: np.ndarray
) -> None:
    """Set y (R, C, PH, PW) to x (N, C, H, W) interpolated at the points of a grid in each box.

    low (R, 2, P) int32 has the cell before a column (0) or row (1) of the grid, or -1 where there
    is none and y is 0; part (R, 2, P) has the weight of the next cell.
    """
    count = y.shape[0] * y.shape[1]
    parallel_for(_roi_sample, count, x, image, low, part, y, grain=_grain(y))


@jit
def _roi_sample_gradient(begin, end, dy, image, low, near, far, dx):
    channels, height, width = dx.shape[1], dx.shape[2], dx.shape[3]
    for i in range(begin, end):
        n, c = i // channels, i % channels
        plane = dx[n, c]
        plane[:] = 0
        for r in range(dy.shape[0]):
            if image[r] != n:
                continue
            for p in range(dy.shape[2]):
                h, above, below = low[r, 1, p], near[r, 1, p], far[r, 1, p]
                under = min(h + 1, height - 1)
                for q in range(dy.shape[3]):
                    w, left, right = low[r, 0, q], near[r, 0, q], far[r, 0, q]
                    if h < 0 or w < 0:
                        continue
                    beside, value = min(w + 1, width - 1), dy[r, c, p, q]
                    plane[h, w] += value * above * left
                    plane[h, beside] += value * above * right
                    plane[under, w] += value * below * left
                    plane[under, beside] += value * below * right


@kernel
def roi_sample_backward(
    dy: np.ndarray,
    image: np.ndarray,
    low: np.ndarray,
    near: np.ndarray,
    far: np.ndarray,
    dx: np.ndarray,
) -> None:
    """Set dx to the gradient of `roi_sample_forward`, with weights 1 - part, near, and part, far.

    near and far (R, 2, P) are the weights of the cell before a row or column, and of the next.
    """
    planes = dx.shape[0] * dx.shape[1]
    parallel_for(_roi_sample_gradient, planes, dy, image, low, near, far, dx)


@jit
def _roi_sample_slopes(begin, end, x, image, low, part, share, dy, slopes):
    channels, height, width = x.shape[1], x.shape[2], x.shape[3]
    one = part.dtype.type(1)
    for i in range(begin, end):
        r, c = i // channels, i % channels
        plane, sums = x[image[r], c], slopes[r, c]
        sums[:] = 0
        for p in range(dy.shape[2]):
            h, down, lower = low[r, 1, p], part[r, 1, p], share[r, 1, p]
            for q in range(dy.shape[3]):
                w, across, righter = low[r, 0, q], part[r, 0, q], share[r, 0, q]
                if h < 0 or w < 0 or h + 1 >= height or w + 1 >= width:
                    continue
                upper, under, value = plane[h], plane[h + 1], dy[r, c, p, q]
                rise = (one - down) * (upper[w + 1] - upper[w]) + down * (under[w + 1] - under[w])
                fall = (one - across) * (under[w] - upper[w])
                fall += across * (under[w + 1] - upper[w + 1])
                sums[0] += value * rise * (one - righter)
                sums[1] += value * fall * (one - lower)
                sums[2] += value * rise * righter
                sums[3] += value * fall * lower


@kernel
def roi_sample_slopes(
    x: np.ndarray,
    image: np.ndarray,
    low: np.ndarray,
    part: np.ndarray,
    share: np.ndarray,
    dy: np.ndarray,
    slopes: np.ndarray,
) -> None:
    """Set slopes (R, C, 4) to each channel's gradient of the boxes' corners, x1, y1, x2, y2.

    share (R, 2, P) tells how much a column (0) or row (1) of the grid moves with the box's second
    corner; it moves 1 - share with the first.  Points without a next cell do not count.
    """
    count = slopes.shape[0] * slopes.shape[1]
    grain = _grain(dy)
    parallel_for(_roi_sample_slopes, count, x, image, low, part, share, dy, slopes, grain=grain)
