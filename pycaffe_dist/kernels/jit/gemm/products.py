"""Matrix products in float32 on `FlatKernel` and `OuterKernel`, without packing the large operand.

`FlatProduct` takes B as (K, N): lanes are columns of B. `TransposedProduct` takes B as (N, K), a
layer's weights: lanes are rows of A, and B's rows are broadcast in place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pycaffe_dist import storage
from pycaffe_dist.kernels import dry_run
from pycaffe_dist.kernels.compiling import aligned_zeros, indices, jit
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.gemm.kernels import (
    FlatKernel,
    OuterKernel,
    PanelKernel,
    TransposeKernel,
)
from pycaffe_dist.kernels.jit.gemm.tiles import lane_tiles, rows_per_tile
from pycaffe_dist.threads import parallel_for

# Vectors of columns in a tile of a flat product.
VECTORS = 3
# Steps of k whose operands stay in the first- and second-level cache.
DEPTH = 256
# A unit of work of a flat product has `ROW_TILES` row tiles, or fewer (down to `FEWEST_ROW_TILES`)
# until there are `ENOUGH_UNITS`.  Its column tiles have panels of at most `PANEL_BYTES` (half a
# second-level cache).
ROW_TILES, FEWEST_ROW_TILES, ENOUGH_UNITS = 64, 16, 32
PANEL_BYTES = 1 << 17
# How B is read: in place, from copies that each unit of work makes, or from one rearranged copy.
DIRECT, PANELLED, LAID_OUT = 0, 1, 2
# Up to this depth a flat product is bound by the memory traffic of y.
SHALLOW = 128
# The most tiles of B's rows in a unit of work of a transposed product.
OUTPUT_TILES = 8


class FlatSizes(NamedTuple):
    """The numbers of a flat product, whose matrices are (count, depth) · (depth, columns).

    A tile has `rows` rows and `vectors` vectors of `lanes` columns; a unit of work has at most
    `high` by `wide` tiles.  `reading` says how B is read.
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
def _flat_kernels(target: Target, rows: int, vectors: int) -> np.ndarray:
    """Return addresses: [masked, vectors - 1] of products, then of the copies into panels."""
    shapes = [(masked, count) for masked in (False, True) for count in range(1, vectors + 1)]
    products = [address_of(FlatKernel(rows, count, masked), target) for masked, count in shapes]
    copies = [address_of(PanelKernel(count, masked), target) for masked, count in shapes]
    return np.array(products + copies, np.int64).reshape(2, 2, vectors)


def _flat_rows(target: Target, rows: int, vectors: int) -> int:
    """Return the rows of a tile, of ``rows`` in all, that leave few idle rows in the last tile."""
    most = target.tile_rows(vectors)
    return min(range(max(1, most - 2), most + 1), key=lambda n: (-(-rows // n) * (n + 1), -n))


@jit
def _pack_four(a, first, row_step, k_step, depth, scale, target):
    """target[k, i] = scale · a[first + i·row_step + k·k_step] for four rows i."""
    one, two, three, four = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    row, step, at = np.uint64(row_step), np.uint64(k_step), np.uint64(first)
    # Unrolled, and with unsigned indices, this becomes vector code.
    for k in indices(0, depth):
        source, to = at + k * step, four * k
        target[to] = scale * a[source]
        target[to + one] = scale * a[source + row]
        target[to + two] = scale * a[source + two * row]
        target[to + three] = scale * a[source + three * row]


@jit
def _pack_rows(begin, end, a, steps, rows, count, depth, scale, packed):
    """packed[tile, k, i] = scale · a[tile·rows + i, k]; a is flat, steps are (row, k, start)."""
    row_step, k_step, start = steps
    for tile in range(begin, end):
        target = packed[tile * rows * depth : (tile + 1) * rows * depth]
        used = min(rows, count - tile * rows)
        first = start + tile * rows * row_step
        if used == 4 and rows == 4:
            if row_step == 1:
                _pack_four(a, first, 1, k_step, depth, scale, target)
            else:
                _pack_four(a, first, row_step, 1, depth, scale, target)
            continue
        if used < rows:
            target[:] = 0
        for i in range(used):
            for k in range(depth):
                target[k * rows + i] = scale * a[first + i * row_step + k * k_step]


@jit
def _fill_panels(panels, b, columns, k, steps, first, count, width, lanes, kernels):
    """Copy b[k:k+steps] of ``count`` column tiles from ``first`` on, as (tile, k, width)."""
    source = b + 4 * (k * columns + first * width)
    whole = min(count, (columns - first * width) // width)
    if whole > 0:
        kernel = kernels[1, 0, width // lanes - 1]
        call(kernel, source, 4 * columns, steps, whole, panels, 4 * steps * width, lanes)
    if whole < count:
        left = columns - (first + whole) * width
        used = (left + lanes - 1) // lanes
        last = left - (used - 1) * lanes
        kernel = kernels[1, int(last < lanes), used - 1]
        base = panels + 4 * whole * steps * width
        # A narrower panel has narrower rows; the product reads it with the same width.
        call(kernel, source + 4 * whole * width, 4 * columns, steps, 1, base, 0, last)


@jit
def _lay_out_tiles(begin, end, panels, b, kernels, sizes):
    columns, depth, width, lanes = sizes
    target = panels.ctypes.data + 4 * begin * width * depth
    address, count = b.ctypes.data, end - begin
    _fill_panels(target, address, columns, 0, depth, begin, count, width, lanes, kernels)


@jit
def _flat_units(begin, end, packed, b, y, bias, slopes, add, kernels, sizes):
    count, depth, columns, rows, vectors, lanes, group, most_wide, most_high, reading = sizes
    row_tiles, width = (count + rows - 1) // rows, vectors * lanes
    column_tiles = (columns + width - 1) // width
    row_units = (row_tiles + most_high - 1) // most_high
    column_units = (column_tiles + most_wide - 1) // most_wide
    filled = reading == PANELLED
    scratch = np.empty((most_wide + 1) * min(DEPTH, depth) * width if filled else 1, np.float32)
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
        for k in range(0, depth, DEPTH):
            steps = min(DEPTH, depth - k)
            slope = slopes.ctypes.data + (4 if k + steps == depth else 0)
            if filled:
                _fill_panels(
                    panels, source, columns, k, steps, first_column, wide, width, lanes, kernels
                )
            for i in range(high * wide):
                # With few steps a row tile passes over all columns, so that y is written in order.
                # With many a column tile stays in the first-level cache while all rows use it.
                tile = first_row + (i // wide if depth <= SHALLOW else i % high)
                column_tile = first_column + (i % wide if depth <= SHALLOW else i // high)
                column, row = column_tile * width, tile * rows
                left = min(width, columns - column)
                used = (left + lanes - 1) // lanes
                last = left - (used - 1) * lanes
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
                    bias.ctypes.data + 4 * (g * row_tiles * rows + row),
                    slope,
                    out + 4 * (row * columns + column),
                    4 * columns,
                    min(rows, count - row),
                    add if k == 0 else 1,
                    last,
                )
    scratch[0] = 0  # used after the loop, so that the memory of ``panels`` is not freed before


class FlatProduct:
    """y[i] (M, N) = A[i mod group] (M, K) · b[i] (K, N) for ``images`` times ``group`` products."""

    def __init__(self, target: Target, m: int, n: int, k: int, images: int = 1, group: int = 1):
        self._m, self._n, self._k = m, n, k
        self._group = group
        self._rows = _flat_rows(target, m, VECTORS)
        self._kernels = _flat_kernels(target, self._rows, VECTORS)
        self._tiles = -(-m // self._rows)
        self._packed = np.empty(group * self._tiles * self._rows * k, np.float32)
        self._bias = np.zeros((group, self._tiles * self._rows), np.float32)
        self._slopes = np.ones(2, np.float32)
        width = VECTORS * target.lanes
        column_tiles = -(-n // width)
        wide = min(column_tiles, max(2, PANEL_BYTES // (4 * width * min(k, DEPTH))))
        # Panels cost a copy, which pays if several row tiles share it.
        reading = PANELLED if self._tiles >= 4 else DIRECT
        column_units, high = images * group * -(-column_tiles // wide), ROW_TILES
        while high > FEWEST_ROW_TILES and column_units * -(-self._tiles // high) < ENOUGH_UNITS:
            high //= 2
        sizes = FlatSizes(*(m, k, n), self._rows, VECTORS, target.lanes, group, wide, high, reading)
        self._sizes = np.array(sizes, np.int64)  # a named tuple costs a microsecond in each call
        self._units = column_units * -(-self._tiles // high)
        self._target = target
        self._laid_out = np.empty(0, np.float32)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return self._packed.nbytes + self._bias.nbytes + self._laid_out.nbytes

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

    def run(
        self,
        a: np.ndarray,
        b: np.ndarray | None,
        y: np.ndarray,
        transposed: bool = False,
        bias: np.ndarray | None = None,
        slope: float = 1.0,
        add: bool = False,
        scale: float = 1.0,
    ) -> None:
        """Set y to scale·A·b + bias per row, rectified with ``slope``; with ``add``, add to y.

        a holds (group, M, K), or (group, K, M) if ``transposed``; b is (images·group, K, N), or
        None for the copy of `lay_out`.
        """
        row_step, k_step = (1, self._m) if transposed else (self._k, 1)
        flat, part = a.reshape(-1), self._packed.size // self._group
        for g in range(self._group):
            parallel_for(
                _pack_rows,
                self._tiles,
                flat,
                np.array([row_step, k_step, g * self._m * self._k], np.int64),
                self._rows,
                self._m,
                self._k,
                np.float32(scale),
                self._packed[g * part : (g + 1) * part],
                grain=max(1, 16384 // (self._rows * self._k)),
            )
        self._bias[:, : self._m] = 0 if bias is None else bias.reshape(self._group, -1)
        self._slopes[1] = slope
        parallel_for(
            _flat_units,
            self._units,
            self._packed,
            self._laid_out if b is None else b.reshape(-1),
            y.reshape(-1),
            self._bias,
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
