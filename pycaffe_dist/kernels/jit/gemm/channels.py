"""Matrix products whose lanes are rows of A, for images whose pixels fill few vectors."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from pycaffe_dist import storage
from pycaffe_dist.kernels.compiling import aligned_zeros, jit
from pycaffe_dist.kernels.filling import copy_rows
from pycaffe_dist.kernels.jit import workspace
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target, step_cycles
from pycaffe_dist.kernels.jit.constants import factors
from pycaffe_dist.kernels.jit.gemm.kernels import LINE, ChannelKernel
from pycaffe_dist.kernels.jit.gemm.packing import RowPacking
from pycaffe_dist.kernels.jit.gemm.products import flat_cycles
from pycaffe_dist.threads import parallel_for

# Bytes of A that stay in the first-level cache while all pixels use them.
BLOCK_BYTES = 1 << 15
# Bytes by which a row of B is fetched ahead of the pixels in use, two tiles, if its rows have more
# bytes than the strides that the hardware foresees.
FETCHED_AHEAD, FORESEEN = 128, 2048
# With fewer bands of all images their pixels are cut into parts, so that all threads have work.
ENOUGH_UNITS = 16
# Bytes of B in a part: they stay in the second-level cache while all bands use them.
PART_BYTES = 1 << 19
# Cycles to end a tile, for each lane and vector: the sums are transposed.
ENDING = 6
# The cycles of a flat product, by level, as a multiple of those of its kernel: it copies B into
# panels.
FLAT_CYCLES = {"avx512": 1.06, "avx2": 1.02, "sse": 1.02}


class ChannelSizes(NamedTuple):
    """The numbers of a product, whose matrices are (count, depth) · (depth, pixels).

    A unit of work has one band of `rows` rows of A and one of `parts` parts of the tiles; it takes
    `block` steps of k at a time.
    """

    count: int
    depth: int
    pixels: int
    rows: int
    lanes: int
    group: int
    parts: int
    block: int


def _cut(pixels: int, most: int) -> list[tuple[int, int]]:
    """Cut pixels into tiles, as equal as possible: (first, number of pixels)."""
    tiles = -(-pixels // most)
    firsts = [pixels * i // tiles for i in range(tiles)]
    return [(first, last - first) for first, last in zip(firsts, [*firsts[1:], pixels])]


def _cycles(target: Target, m: int, n: int, k: int) -> tuple[float, int]:
    """Return the cycles of one step of k, and the vectors of a band with which they are fewest."""

    def cycles(vectors: int) -> float:
        tiles = -(-n // target.tile_rows(vectors))
        tile = step_cycles(n / tiles, vectors) + ENDING * target.lanes * vectors / k
        return -(-m // (vectors * target.lanes)) * tiles * tile

    return min((cycles(vectors), vectors) for vectors in (2, 3, 4, 1))


def channels_are_faster(target: Target, m: int, n: int, k: int) -> bool:
    """Tell whether a `ChannelProduct` is faster than a `FlatProduct` of this size."""
    flat = FLAT_CYCLES[target.level] * flat_cycles(target, m, n)
    return _cycles(target, m, n, k)[0] < flat


@jit
def _channel_units(begin, end, packed, b, y, biases, slope, tiles, kernels, sizes):
    count, depth, pixels, rows, lanes, group, parts, block = sizes
    bands = (count + rows - 1) // rows
    a_row, b_row = 4 * rows, 4 * pixels
    b_ahead = b_row if b_row > FORESEEN else 0
    sums = aligned_zeros(pixels * rows if block < depth else 1)
    for unit in range(begin, end):
        band, part, image = unit % bands, unit // bands % parts, unit // bands // parts
        first_tile, last_tile = len(tiles) * part // parts, len(tiles) * (part + 1) // parts
        first_row = image % group * bands * rows + band * rows
        valid = min(rows, count - band * rows)
        width = (valid + lanes - 1) // lanes * lanes
        source = b.ctypes.data + 4 * image * depth * pixels
        out = y.ctypes.data + 4 * (image * count + band * rows) * pixels
        for k in range(0, depth, block):
            steps = min(block, depth - k)
            ends = k + steps == depth
            a = packed.ctypes.data + 4 * (first_row * depth + k * rows)
            for t in range(first_tile, last_tile):
                pixel, kernel = tiles[t]
                own = sums.ctypes.data + 4 * pixel * width
                # The first tiles fetch the part of A that comes after this one, the others B.
                fetched = (t - first_tile) * LINE
                fetches = fetched < a_row
                at_b = source + k * b_row + 4 * pixel
                call(
                    kernels[int(ends), kernel, int(valid < rows)],
                    a,
                    a_row,
                    at_b,
                    b_row,
                    steps,
                    own if k > 0 else biases.ctypes.data + 4 * first_row,
                    4 * width if k > 0 else 0,
                    a + steps * (a_row + fetched) if fetches else at_b + FETCHED_AHEAD,
                    LINE if fetches else b_ahead,
                    out + 4 * pixel if ends else own,
                    b_row,
                    valid,
                    slope.ctypes.data,
                )


class ChannelProduct:
    """y[i] (M, N) = A[i mod group] (M, K) · b[i] (K, N) for ``images`` times ``group`` products."""

    def __init__(self, target: Target, m: int, n: int, k: int, images: int = 1, group: int = 1):
        self._target = target
        vectors = _cycles(target, m, n, k)[1]
        rows = vectors * target.lanes
        bands = -(-m // rows)
        self._m, self._group = m, group
        self._packing = RowPacking(target, rows, m, k)
        self._packed_size = bands * rows * k
        self._held = np.empty(0, np.float32)
        self._biases = np.zeros((group, bands * rows), np.float32)
        self._no_bias = np.zeros(group * m, np.float32)
        self._slope = factors(1.0)
        tiles = _cut(n, target.tile_rows(vectors))
        self._widths = sorted({width for _, width in tiles})
        self._vectors = vectors, -(-(m - (bands - 1) * rows) // target.lanes)
        self._tiles = np.array(
            [(first, self._widths.index(width)) for first, width in tiles], np.int64
        )
        blocks = -(-4 * rows * k // BLOCK_BYTES)
        units = images * group * bands
        parts = min(len(tiles), max(-(-ENOUGH_UNITS // units), -(-4 * k * n // PART_BYTES)))
        self._units = units * parts
        sizes = ChannelSizes(m, k, n, rows, target.lanes, group, parts, -(-k // blocks))
        self._sizes = np.array(sizes, np.int64)

    @functools.cached_property
    def _setting(self) -> np.ndarray:
        return self._kernels(False)

    @functools.cached_property
    def _adding(self) -> np.ndarray:
        return self._kernels(True)

    def _kernels(self, adds: bool) -> np.ndarray:
        """Return addresses: [the last block of k, width of the tile, the last band]."""
        kernels = [
            address_of(ChannelKernel(width, vectors, ends, ends and adds), self._target)
            for ends in (False, True)
            for width in self._widths
            for vectors in self._vectors
        ]
        return np.array(kernels, np.int64).reshape(2, len(self._widths), 2)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return self._held.nbytes + self._biases.nbytes

    def pack(self, a: np.ndarray, transposed: bool = False) -> None:
        """Copy A for every later `run` without an a.

        a holds (group, M, K), or (group, K, M) if ``transposed``.
        """
        self._held = storage.aligned_zeros(self._group * self._packed_size, np.dtype(np.float32))
        self._pack(a, self._held, transposed)

    def _pack(self, a: np.ndarray, packed: np.ndarray, transposed: bool) -> None:
        parts = packed.reshape(self._group, -1)
        for matrix, part in zip(a.reshape(self._group, -1), parts):
            self._packing.run(matrix, part, transposed, 1.0)

    def run(
        self,
        a: np.ndarray | None,
        b: np.ndarray,
        y: np.ndarray,
        transposed: bool = False,
        bias: np.ndarray | None = None,
        slope: float = 1.0,
        add: bool = False,
    ) -> None:
        """Set y to A·b + bias per row; with ``add``, add that to y; rectify with ``slope``.

        a is as in `pack`, or None for the copy of the last `pack`; b is (images·group, K, N).
        """
        given = self._no_bias if bias is None else bias
        copy_rows(given.reshape(self._group, -1), self._biases[:, : self._m])
        self._slope = factors(slope)
        if a is None:
            self._multiply(self._held, b, y, add)
            return
        with workspace.shared.lend(self._group * self._packed_size) as packed:
            self._pack(a, packed, transposed)
            self._multiply(packed, b, y, add)

    def _multiply(self, packed: np.ndarray, b: np.ndarray, y: np.ndarray, add: bool) -> None:
        parallel_for(
            _channel_units,
            self._units,
            packed,
            b.reshape(-1),
            y.reshape(-1),
            self._biases,
            self._slope,
            self._tiles,
            self._adding if add else self._setting,
            self._sizes,
        )
