"""Matrix products in float32 on `FlatKernel` and `OuterKernel`, without packing the large operand.

`FlatProduct` takes B as (K, N): lanes are columns of B. `TransposedProduct` takes B as (N, K), a
layer's weights: lanes are rows of A, and B's rows are broadcast in place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pycaffe_dist import storage
from pycaffe_dist.kernels import dry_run
from pycaffe_dist.kernels.compiling import aligned_zeros, jit
from pycaffe_dist.kernels.filling import copy_rows
from pycaffe_dist.kernels.jit import workspace
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target, step_cycles
from pycaffe_dist.kernels.jit.constants import factors
from pycaffe_dist.kernels.jit.gemm.kernels import (
    FlatKernel,
    OuterKernel,
    PanelKernel,
    TransposeKernel,
)
from pycaffe_dist.kernels.jit.gemm.packing import RowPacking
from pycaffe_dist.kernels.jit.gemm.tiles import lane_tiles, rows_per_tile
from pycaffe_dist.threads import parallel_for

# Vectors of columns in a tile of a flat product.
VECTORS = 3
# Steps of k whose operands stay in the first- and second-level cache.
DEPTH = 256
# The same for a flat product, by SIMD level: a panel then fills half of a first-level cache.
BLOCK = {"avx512": 128, "avx2": 256, "sse": 256}
# A unit of work of a flat product has `ROW_TILES` row tiles, or fewer (down to `FEWEST_ROW_TILES`)
# until there are `ENOUGH_UNITS`.  Its column tiles have panels of at most `PANEL_BYTES`, by level:
# a part of the second-level cache of such processors.
ROW_TILES, FEWEST_ROW_TILES, ENOUGH_UNITS = 64, 16, 32
PANEL_BYTES = {"avx512": 1 << 18, "avx2": 1 << 17, "sse": 1 << 17}
# How B is read: in place, from copies that each unit of work makes, or from one rearranged copy.
DIRECT, PANELLED, LAID_OUT = 0, 1, 2
# Up to this depth a flat product is bound by the memory traffic of y.
SHALLOW = 128
# The most tiles of B's rows in a unit of work of a transposed product.
OUTPUT_TILES = 8


class FlatSizes(NamedTuple):
    """The numbers of a flat product, whose matrices are (count, depth) · (depth, columns).

    A tile has `rows` rows and `vectors` vectors of `lanes` columns; a unit of work has at most
    `high` by `wide` tiles, and takes `block` steps of k at a time.  `reading` says how B is read.
    """

    count: int
    depth: int
    columns: int
    rows: int
    vectors: int
    lanes: int
    group: int
    wide: int
    high: int
    reading: int
    block: int


class TransposedSizes(NamedTuple):
    """The numbers of a transposed product: (count, depth) · (outputs, depth)ᵀ.

    A unit of work has `tiles` tiles of outputs; a vector has `lanes` rows of the first matrix.
    """

    count: int
    outputs: int
    depth: int
    tiles: int
    lanes: int


@dry_run.cached(maxsize=64)
def flat_kernels(target: Target, rows: int, vectors: int) -> np.ndarray:
    """Return addresses: [masked, vectors - 1] of products, then of the copies into panels."""
    shapes = [(masked, count) for masked in (False, True) for count in range(1, vectors + 1)]
    products = [address_of(FlatKernel(rows, count, masked), target) for masked, count in shapes]
    copies = [address_of(PanelKernel(count, masked), target) for masked, count in shapes]
    return np.array(products + copies, np.int64).reshape(2, 2, vectors)


def flat_rows(target: Target, rows: int, vectors: int) -> int:
    """Return the rows of a tile, of ``rows`` in all, that leave few idle rows in the last tile."""
    most = target.tile_rows(vectors)
    return min(range(max(1, most - 2), most + 1), key=lambda n: (-(-rows // n) * (n + 1), -n))


def flat_cycles(target: Target, rows: int, columns: int) -> float:
    """Return the cycles of one step of k of a `FlatProduct`."""
    high, width = flat_rows(target, rows, VECTORS), VECTORS * target.lanes
    cycles = columns // width * step_cycles(high, VECTORS)
    if columns % width:
        cycles += step_cycles(high, -(-(columns % width) // target.lanes))
    return -(-rows // high) * cycles


@jit
def _fill_panels(panels, b, columns, k, steps, first, count, width, lanes, kernels):
    """Copy b[k:k+steps] of ``count`` column tiles from ``first`` on, as (tile, k, width)."""
    source = b + 4 * (k * columns + first * width)
    whole = min(count, (columns - first * width) // width)
    if whole > 0:
        kernel = kernels[1, 0, width // lanes - 1]
        step = 4 * steps * width
        call(kernel, source, 4 * columns, steps, whole, panels, 4 * width, step, lanes)
    if whole < count:
        left = columns - (first + whole) * width
        used = (left + lanes - 1) // lanes
        last = left - (used - 1) * lanes
        kernel = kernels[1, int(last < lanes), used - 1]
        base = panels + 4 * whole * steps * width
        # A narrower panel has narrower rows; the product reads it with the same width.
        row = 4 * used * lanes
        call(kernel, source + 4 * whole * width, 4 * columns, steps, 1, base, row, 0, last)


@jit
def _lay_out_tiles(begin, end, panels, b, kernels, sizes):
    columns, depth, width, lanes = sizes
    target = panels.ctypes.data + 4 * begin * width * depth
    address, count = b.ctypes.data, end - begin
    _fill_panels(target, address, columns, 0, depth, begin, count, width, lanes, kernels)


@jit
def _flat_units(begin, end, packed, b, y, bias, slopes, add, kernels, sizes):
    count, depth, columns, rows, vectors, lanes, group, most_wide, most_high = sizes[:9]
    reading, block = sizes[9:]
    no_bias = bias.ctypes.data + 4 * (bias.size - rows)
    row_tiles, width = (count + rows - 1) // rows, vectors * lanes
    column_tiles = (columns + width - 1) // width
    row_units = (row_tiles + most_high - 1) // most_high
    column_units = (column_tiles + most_wide - 1) // most_wide
    filled = reading == PANELLED
    scratch = np.empty((most_wide + 1) * min(block, depth) * width if filled else 1, np.float32)
    panels = (scratch.ctypes.data + 63) // 64 * 64
    for unit in range(begin, end):
        image, rest = unit // (row_units * column_units), unit % (row_units * column_units)
        first_row, first_column = rest % row_units * most_high, rest // row_units * most_wide
        high = min(row_tiles, first_row + most_high) - first_row
        wide = min(column_tiles, first_column + most_wide) - first_column
        g = image % group
        a = packed.ctypes.data + 4 * g * row_tiles * rows * depth
        source = b.ctypes.data + 4 * image * depth * columns
        out = y.ctypes.data + 4 * image * count * columns
        for k in range(0, depth, block):
            steps = min(block, depth - k)
            slope = slopes.ctypes.data + (4 if k + steps == depth else 0)
            if filled:
                _fill_panels(
                    panels, source, columns, k, steps, first_column, wide, width, lanes, kernels
                )
            # With few steps a row tile passes over all columns, so that y is written in order.
            # With many a column tile stays in the first-level cache while all rows use it.
            by_rows = depth <= SHALLOW
            for i in range(high if by_rows else wide):
                for j in range(wide if by_rows else high):
                    tile = first_row + (i if by_rows else j)
                    column_tile = first_column + (j if by_rows else i)
                    column, row = column_tile * width, tile * rows
                    used, last = vectors, lanes
                    if column + width > columns:
                        used = (columns - column + lanes - 1) // lanes
                        last = columns - column - (used - 1) * lanes
                    if filled:
                        at = panels + 4 * (column_tile - first_column) * steps * width
                    elif reading == LAID_OUT:
                        at = source + 4 * (column * depth + k * used * lanes)
                    else:
                        at = source + 4 * (k * columns + column)
                    call(
                        kernels[0, int(last < lanes), used - 1],
                        a + 4 * (tile * depth + k) * rows,
                        at,
                        4 * used * lanes if reading else 4 * columns,
                        steps,
                        no_bias if k > 0 else bias.ctypes.data + 4 * (g * row_tiles * rows + row),
                        slope,
                        out + 4 * (row * columns + column),
                        4 * columns,
                        min(rows, count - row),
                        add if k == 0 else 1,
                        last,
                    )
    scratch[0] = 0  # used after the loop, so that the memory of ``panels`` is not freed before


class FlatProduct:
    """y[i] (M, N) = A[i mod group] (M, K) · b[i] (K, N) for ``images`` times ``group`` products.

    ``laid_out``: b comes in the arrangement of `lay_out`, (tile, K, columns of the tile).
    """

    def __init__(
        self,
        target: Target,
        m: int,
        n: int,
        k: int,
        images: int = 1,
        group: int = 1,
        laid_out: bool = False,
    ):
        self._m, self._n, self._k = m, n, k
        self._group = group
        self._rows = flat_rows(target, m, VECTORS)
        self._kernels = flat_kernels(target, self._rows, VECTORS)
        self._tiles = -(-m // self._rows)
        self._packing = RowPacking(target, self._rows, m, k)
        self._packed_size = self._tiles * self._rows * k
        self._held = np.empty(0, np.float32)
        # Behind the biases of all rows there are zeros for a tile.
        self._biases = np.zeros((group * self._tiles + 1) * self._rows, np.float32)
        self._bias = self._biases[: -self._rows].reshape(group, -1)
        self._no_bias = np.zeros(group * m, np.float32)
        self._slopes = factors(1.0, 1.0)
        width = VECTORS * target.lanes
        column_tiles = -(-n // width)
        block = min(k, BLOCK[target.level])
        wide = min(column_tiles, max(2, PANEL_BYTES[target.level] // (4 * width * block)))
        # Panels cost a copy, which pays if several row tiles share it.
        reading = LAID_OUT if laid_out else PANELLED if self._tiles >= 4 else DIRECT
        column_units, high = images * group * -(-column_tiles // wide), ROW_TILES
        while high > FEWEST_ROW_TILES and column_units * -(-self._tiles // high) < ENOUGH_UNITS:
            high //= 2
        tiles = self._rows, VECTORS, target.lanes, group, wide, high
        sizes = FlatSizes(m, k, n, *tiles, reading, block)
        self._sizes = np.array(sizes, np.int64)  # a named tuple costs a microsecond in each call
        self._units = column_units * -(-self._tiles // high)
        self._target = target
        self._laid_out = np.empty(0, np.float32)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return self._held.nbytes + self._biases.nbytes + self._laid_out.nbytes

    def lay_out(self, b: np.ndarray, transposed: bool = False) -> None:
        """Copy b (K, N), or (N, K) if ``transposed``, for every later `run` without a b.

        Only for one product: one image, one group.
        """
        depth, columns = self._k, self._n
        lanes, width = self._target.lanes, VECTORS * self._target.lanes
        tiles = -(-columns // width)
        if not self._laid_out.size:
            memory = np.zeros(tiles * width * depth + 16, np.float32)
            self._laid_out = memory[-memory.ctypes.data // 4 % 16 :]
            self._sizes[FlatSizes._fields.index("reading")] = LAID_OUT
        flat = b.reshape(-1)
        if not transposed:
            sizes = columns, depth, width, lanes
            parallel_for(_lay_out_tiles, tiles, self._laid_out, flat, self._kernels, sizes)
            return
        vectors = [min(VECTORS, -(-(columns - tile * width) // lanes)) for tile in range(tiles)]
        bands = [(0, tile * width, count) for tile, count in enumerate(vectors)]
        parallel_for(
            _pack_lanes,
            tiles * -(-depth // DEPTH),
            flat,
            self._laid_out,
            np.array(bands, np.int64),
            columns,
            depth,
            np.float32(1),
            lanes,
            address_of(TransposeKernel(), self._target),
        )

    def pack(self, a: np.ndarray, transposed: bool = False, scale: float = 1.0) -> None:
        """Copy scale·A for every later `run` without an a.

        a holds (group, M, K), or (group, K, M) if ``transposed``.
        """
        self._held = storage.aligned_zeros(self._group * self._packed_size, np.dtype(np.float32))
        self._pack(a, self._held, transposed, scale)

    def _pack(self, a: np.ndarray, packed: np.ndarray, transposed: bool, scale: float) -> None:
        parts = packed.reshape(self._group, -1)
        for matrix, part in zip(a.reshape(self._group, -1), parts):
            self._packing.run(matrix, part, transposed, scale)

    def run(
        self,
        a: np.ndarray | None,
        b: np.ndarray | None,
        y: np.ndarray,
        transposed: bool = False,
        bias: np.ndarray | None = None,
        slope: float = 1.0,
        add: bool = False,
        scale: float = 1.0,
    ) -> None:
        """Set y to scale·A·b + bias per row; with ``add``, add that to y; rectify with ``slope``.

        a is as in `pack`, or None for the copy of the last `pack`, which is scaled; b is
        (images·group, K, N), or None for the copy of `lay_out`.
        """
        given = self._no_bias if bias is None else bias
        copy_rows(given.reshape(self._group, -1), self._bias[:, : self._m])
        self._slopes = factors(1.0, slope)
        if a is None:
            self._multiply(self._held, b, y, add)
            return
        with workspace.shared.lend(self._group * self._packed_size) as packed:
            self._pack(a, packed, transposed, scale)
            self._multiply(packed, b, y, add)

    def _multiply(self, packed: np.ndarray, b: np.ndarray | None, y: np.ndarray, add: bool) -> None:
        parallel_for(
            _flat_units,
            self._units,
            packed,
            self._laid_out if b is None else b.reshape(-1),
            y.reshape(-1),
            self._biases,
            self._slopes,
            int(add),
            self._kernels,
            self._sizes,
        )


@jit
def _pack_lanes(begin, end, a, packed, bands, m, k, scale, lanes, transpose):
    """packed[band] (K, lanes of the band) = scale · rows of a (M, K), transposed."""
    blocks = (k + DEPTH - 1) // DEPTH
    for unit in range(begin, end):
        band, k0 = bands[unit // blocks], unit % blocks * DEPTH
        steps = min(DEPTH, k - k0)
        width = band[2] * lanes
        base = packed.ctypes.data + 4 * (band[1] * k + k0 * width)
        for j in range(band[2]):
            row = band[1] + j * lanes
            if row < m:
                for step in range(0, steps, lanes):
                    call(
                        transpose,
                        a.ctypes.data + 4 * (row * k + k0 + step),
                        4 * k,
                        base + 4 * (step * width + j * lanes),
                        4 * width,
                        min(lanes, m - row),
                        min(lanes, steps - step),
                    )
        if scale != 1:
            first = band[1] * k + k0 * width
            for i in range(first, first + steps * width):
                packed[i] *= scale


@jit
def _transposed_units(begin, end, packed, w, y, bias, add, bands, offsets, sizes):
    count, outputs, depth, tiles, lanes = sizes
    for unit in range(begin, end):
        for b in range(len(bands)):
            kernel, first_lane, vectors, rows, table = bands[b]
            width = vectors * lanes
            first = unit * tiles * rows
            last = min(outputs, first + tiles * rows)
            if first >= outputs:
                continue
            sums = aligned_zeros(tiles * rows * width).reshape((tiles * rows, width))
            for k in range(0, depth, DEPTH):
                steps = min(DEPTH, depth - k)
                source = packed.ctypes.data + 4 * (first_lane * depth + k * width)
                for row in range(first, last, rows):
                    # The second table serves the last tile: its surplus rows repeat the last one.
                    whole = row + rows <= outputs
                    call(
                        kernel,
                        w.ctypes.data + 4 * (row * depth + k),
                        0,
                        0,
                        4,
                        offsets.ctypes.data + 8 * (table if whole else table + rows),
                        source,
                        0,
                        0,
                        1,
                        1,
                        steps,
                        sums[row - first].ctypes.data,
                    )
            for lane in range(min(width, count - first_lane)):
                out = y[first_lane + lane, first:last]
                for i in range(last - first):
                    value = sums[i, lane] + bias[first + i]
                    out[i] = out[i] + value if add else value


class TransposedProduct:
    """y (M, N) = a (M, K) · wᵀ with w (N, K)."""

    def __init__(self, target: Target, m: int, n: int, k: int):
        table: list[int] = []
        bands, lane = [], 0
        for vectors in lane_tiles(-(-m // target.lanes)):
            rows = rows_per_tile(n, vectors, target)
            kernel = address_of(OuterKernel(rows, vectors), target)
            bands.append((kernel, lane, vectors, rows, len(table)))
            left = n % rows or rows
            table += [4 * k * i for i in range(rows)]
            table += [4 * k * min(i, left - 1) for i in range(rows)]
            lane += vectors * target.lanes
        self._bands, self._offsets = np.array(bands, np.int64), np.array(table, np.int64)
        self._packed = storage.aligned_zeros(lane * k, np.dtype(np.float32))
        self._no_bias = np.zeros(n, np.float32)
        self._transpose, self._lanes = address_of(TransposeKernel(), target), target.lanes
        fewest = int(self._bands[:, 3].min())
        # Enough units for a few threads, large enough to use the packed operand well.
        tiles = max(1, min(OUTPUT_TILES, n // (8 * fewest)))
        self._units = -(-n // (tiles * fewest))
        self._m, self._k = m, k
        self._sizes = np.array(TransposedSizes(m, n, k, tiles, target.lanes), np.int64)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return self._packed.nbytes

    def run(
        self,
        a: np.ndarray,
        w: np.ndarray,
        y: np.ndarray,
        bias: np.ndarray | None = None,
        add: bool = False,
        scale: float = 1.0,
    ) -> None:
        """Set y to scale·a·wᵀ + bias (of N elements); with ``add``, add to y."""
        m, k = self._m, self._k
        parallel_for(
            _pack_lanes,
            len(self._bands) * -(-k // DEPTH),
            a.reshape(-1),
            self._packed,
            self._bands,
            m,
            k,
            np.float32(scale),
            self._lanes,
            self._transpose,
            grain=max(1, 65536 // (DEPTH * min(m, 2 * self._lanes))),
        )
        parallel_for(
            _transposed_units,
            self._units,
            self._packed,
            w.reshape(-1),
            y,
            self._no_bias if bias is None else bias.reshape(-1),
            int(add),
            self._bands,
            self._offsets,
            self._sizes,
        )
