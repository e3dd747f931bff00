"""The weight gradient of 1×1 convolutions: products of two images, summed over pixels.

The channels of one side, the lanes, are transposed piece by piece; those of the other, the rows,
are broadcast in place.  A unit of work has few enough channels that its sums and a piece of both
sides stay in the second-level cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target, step_cycles
from pycaffe_dist.kernels.jit.constants import constants
from pycaffe_dist.kernels.jit.gemm.kernels import PixelKernel, TransposeKernel
from pycaffe_dist.kernels.jit.gemm.tiles import lane_tiles
from pycaffe_dist.kernels.jit.parts import lend_parts
from pycaffe_dist.threads import parallel_for, thread_count

# Pixels of a piece, about: its transposed channels stay in the first-level cache for all rows.
PIECE = 256
# The most lanes and rows of a unit of work.
MOST_LANES, MOST_ROWS = 256, 512
UNITS_PER_THREAD = 3
# Images are summed in so many parts if their sums are small; see `WeightGradient`.
PARTS, SMALL = 12, 1 << 16
# Cycles for transposing a value, and for adding a sum to a weight that is not next to the last one.
TRANSPOSE, SCATTER = 0.27, 4.0


class PixelSizes(NamedTuple):
    """The numbers of a gradient over pixels: channels are those of one group.

    A unit has at most `bands` bands of lanes, and one of `blocks` blocks of rows; a piece has at
    most `piece` pixels of `together` images.  `by_rows`: the weights of a row, not of a lane, are
    next to each other.
    """

    images: int
    group: int
    pixels: int
    lane_channels: int
    row_channels: int
    lanes: int
    bands: int
    blocks: int
    piece: int
    together: int
    by_rows: int
    transpose: int


def _tile_rows(count: int, vectors: int, target: Target) -> int:
    """Return the rows of a tile, of ``count``, for the least time."""
    most = min(count, target.tile_rows(vectors), 16)
    return min(range(most, 0, -1), key=lambda rows: -(-count // rows) * step_cycles(rows, vectors))


class PixelGradient:
    """dw (M, K) += Σ dy[i] (M, P) · x[i] (K, P)ᵀ over ``images``, for each of ``group`` groups."""

    def __init__(self, target: Target, m: int, k: int, pixels: int, images: int, group: int = 1):
        self._parts = min(PARTS, images) if m * k <= SMALL else 1
        by_lanes = TRANSPOSE * m * images * pixels + SCATTER * m * k * self._parts
        self._by_rows = TRANSPOSE * k * images * pixels <= by_lanes
        lane_channels, row_channels = (k, m) if self._by_rows else (m, k)
        rounds = max(1, round(pixels / PIECE))
        self._piece = target.lanes * -(-pixels // (rounds * target.lanes))
        most = max(1, PIECE // pixels)
        self._together = -(-images // -(-images // most))
        bands, channel = [], 0
        for vectors in lane_tiles(-(-lane_channels // target.lanes)):
            rows = _tile_rows(min(row_channels, MOST_ROWS), vectors, target)
            kernel = address_of(PixelKernel(rows, vectors, 4 * pixels), target)
            bands.append((kernel, channel, vectors, rows))
            channel += vectors * target.lanes
        self._bands = np.array(bands, np.int64)
        self._shape = images, group, pixels, lane_channels, row_channels, target.lanes
        self._transpose = address_of(TransposeKernel(), target)

    def run(self, x: np.ndarray, dy: np.ndarray, dw: np.ndarray) -> None:
        """Add the gradient to dw."""
        times = self._parts * self._shape[1]
        bands, blocks = self._units(thread_count(), times)
        sizes = PixelSizes(
            *(*self._shape, bands, blocks, self._piece, self._together),
            *(int(self._by_rows), self._transpose),
        )
        units = times * -(-len(self._bands) // bands) * blocks
        sides = (x, dy) if self._by_rows else (dy, x)
        args = *(side.reshape(-1) for side in sides), self._bands, constants(*sizes)
        if self._parts == 1:
            parallel_for(_pixel_units, units, dw.reshape(1, -1), *args)
            return
        with lend_parts(self._parts, dw) as parts:
            parallel_for(_pixel_units, units, parts, *args)

    def _units(self, threads: int, times: int) -> tuple[int, int]:
        """Return a unit's bands, and the blocks of rows: enough units for the threads."""
        *_, rows, lanes = self._shape
        bands = max(1, min(len(self._bands), MOST_LANES // (2 * lanes)))
        blocks = -(-rows // MOST_ROWS)
        wanted = UNITS_PER_THREAD * threads if threads > 1 else 1
        fewest = int(self._bands[:, 3].max())
        while times * -(-len(self._bands) // bands) * blocks < wanted:
            if bands > 2:
                bands = -(-bands // 2)
            elif rows // (2 * blocks) >= 4 * fewest:
                blocks *= 2
            else:
                break
        return bands, blocks


@jit
def _pixel_units(begin, end, parts, left, right, bands, sizes):
    images, group, plane, lane_channels, row_channels, lanes = sizes[:6]
    most_bands, blocks, piece, together, by_rows, transpose = sizes[6:12]
    groups = (len(bands) + most_bands - 1) // most_bands
    capacity = piece * together
    left_t = np.empty(most_bands * 3 * lanes * capacity + 16, np.float32)
    base = (left_t.ctypes.data + 63) // 64 * 64
    for unit in range(begin, end):
        chosen, rest = unit % groups, unit // groups
        block, rest = rest % blocks, rest // blocks
        g, part = rest % group, rest // group
        b0, b1 = chosen * most_bands, min(len(bands), (chosen + 1) * most_bands)
        r0, r1 = row_channels * block // blocks, row_channels * (block + 1) // blocks
        mine = bands[b0:b1]
        sums = np.zeros(_sums_of(mine, r1 - r0, lanes), np.float32)
        last = images * (part + 1) // len(parts)
        for n in range(images * part // len(parts), last, together):
            count = min(together, last - n)
            first_left = (n * group + g) * lane_channels * plane
            first_right = (n * group + g) * row_channels * plane
            for p in range(0, plane, piece):
                pixels = min(piece, plane - p)
                for i in range(count):
                    _transpose_bands(
                        left.ctypes.data + 4 * (first_left + i * group * lane_channels * plane + p),
                        (plane, pixels, lane_channels, lanes, transpose),
                        base,
                        (capacity, i * pixels),
                        mine,
                    )
                _add_products(
                    right.ctypes.data + 4 * (first_right + p),
                    4 * group * row_channels * plane,
                    base,
                    (capacity, count, pixels, plane, r0, r1, lanes),
                    mine,
                    sums,
                )
        place = g * lane_channels * row_channels
        dw = parts[part, place : place + lane_channels * row_channels]
        _add_sums(sums, dw, mine, (r0, r1, lanes, lane_channels, row_channels), by_rows)
    left_t[0] = 0  # used after the loop, so that the memory of ``base`` is not freed before


@jit
def _sums_of(bands, rows, lanes):
    """Return the number of sums of a unit."""
    count = 0
    for band in bands:
        count += (rows + band[3] - 1) // band[3] * band[3] * band[2] * lanes
    return count


@jit
def _transpose_bands(source, sizes, target, place, bands):
    """Transpose the lanes of ``bands`` of a piece of an image.

    Both are addresses.  Each lane has ``capacity`` floats of the target; the image's pixels come
    behind those of ``place[1]`` pixels of other images.
    """
    plane, pixels, channels, lanes, transpose = sizes
    capacity, before = place
    for band in bands:
        width = band[2] * lanes
        to = target + 4 * ((band[1] - bands[0, 1]) * capacity + before * width)
        for j in range(0, width, lanes):
            rows = min(lanes, channels - band[1] - j)
            at = source + 4 * (band[1] + j) * plane
            for p in range(0, pixels, lanes):
                columns = min(lanes, pixels - p)
                row = to + 4 * (p * width + j)
                call(transpose, at + 4 * p, 4 * plane, row, 4 * width, rows, columns)


@jit
def _add_products(right, image_step, left_t, sizes, bands, sums):
    """Add a piece's products to the sums; the last tile of a block begins before the end of the
    tile before it if there are too few rows."""
    capacity, count, pixels, plane, r0, r1, lanes = sizes
    at = sums.ctypes.data
    for band in bands:
        rows, width = band[3], band[2] * lanes
        a = left_t + 4 * (band[1] - bands[0, 1]) * capacity
        for r in range(r0, r1, rows):
            b = right + 4 * min(r, r1 - rows) * plane
            call(band[0], b, image_step, a, count, pixels, at)
            at += 4 * rows * width


@jit
def _add_sums(sums, dw, bands, sizes, by_rows):
    """Add the sums to the gradient of a group."""
    r0, r1, lanes, lane_channels, row_channels = sizes
    first = 0
    for band in bands:
        channel, rows, width = band[1], band[3], band[2] * lanes
        used = min(width, lane_channels - channel)
        if by_rows:
            for r in range(r0, r1):
                tile = (r - r0) // rows
                row = r - min(r0 + tile * rows, r1 - rows)
                source = sums[first + (tile * rows + row) * width :]
                target = dw[r * lane_channels + channel : r * lane_channels + channel + used]
                for lane in range(used):
                    target[lane] += source[lane]
        else:
            # The sums stay in the cache, so the loops follow the order of dw.
            for lane in range(used):
                target = dw[(channel + lane) * row_channels : (channel + lane + 1) * row_channels]
                for r in range(r0, r1):
                    tile = (r - r0) // rows
                    row = r - min(r0 + tile * rows, r1 - rows)
                    target[r] += sums[first + (tile * rows + row) * width + lane]
        first += (r1 - r0 + rows - 1) // rows * rows * width
