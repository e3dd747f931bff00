"""Winograd convolution: fewer multiplications for square kernels of stride 1.

Tiles of inputs and the weights are transformed and multiplied element by element, and the products
are transformed into tiles of outputs. For 3×3 weights and 4×4 outputs that takes 36 multiplications
instead of 144, for 5×5 weights 64 instead of 400. The sum over input channels makes each element of
a tile a matrix product. If there are few weights, they are transformed first, and each unit of work
then computes some images completely, in its core's cache.  Otherwise the inputs of some images are
transformed first, and each unit then transforms the weights of some output channels, multiplies,
and transforms the products. A tile's result depends on its inputs and the weights alone, not on the
number of threads or the other images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pycaffe_dist.kernels.compiling import aligned, jit
from pycaffe_dist.kernels.im2col import ConvolutionGeometry
from pycaffe_dist.kernels.jit import workspace
from pycaffe_dist.kernels.jit.biased import BiasedConvolution
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.gemm.tiles import rows_of
from pycaffe_dist.kernels.jit.winograd.grids import (
    Direction,
    cut,
    odd_lines,
    padded_rows,
    threes,
    tiles_before,
    transform_piece,
)
from pycaffe_dist.kernels.jit.winograd.tiles import (
    GatherKernel,
    GridKernel,
    ScatterKernel,
    TileProductKernel,
)
from pycaffe_dist.threads import parallel_for, thread_count

# Input channels whose weights stay in the first-level cache.
DEPTH = 256
# Output channels of a unit of work, and bytes of its products before their transform (half a
# second-level cache).
UNIT_LANES = 48
PRODUCT_BYTES = 1 << 19
FEWEST_TILES, MOST_TILES = 24, 96
# Bytes of transformed inputs at a time.
INPUT_BYTES = 1 << 22
# All transformed weights are kept if they have at most `FILTER_BYTES` and serve enough tiles: for a
# few it is faster to read the weights and transform them.  A block's transformed inputs and
# products then have at most `BLOCK_BYTES`.
FILTER_BYTES, ENOUGH_TILES, BLOCK_BYTES = 1 << 21, 100, 1 << 19
UNITS_PER_THREAD = 4
# The fewest strips of tiles, over all images, that are shared out over the threads, and the number
# of blocks to aim at.
ENOUGH_STRIPS, ENOUGH_BLOCKS = 7, 8
# At least the height of a product's tile of sums, whose last rows may be unused.
SURPLUS_TILES = 16
# Cycles to begin and end a tile of sums, for each of its steps.
TILE_START = 1.0


class Sizes(NamedTuple):
    """The numbers of a convolution; tiles of the transformed inputs are `pitch` floats apart.

    Neighbouring positions in a tile are `panel` floats apart in the inputs, `filter` in the weights
    and `product` in the products.  A unit of work has `bands` bands and `block` pieces at a time.
    """

    group: int
    inputs: int
    outputs: int
    taps: int
    size: int
    lanes: int
    pitch: int
    panel: int
    filter: int
    product: int
    bands: int
    block: int
    backward: int


def keeps_filters(filter_bytes: int, tiles: int) -> bool:
    """Tell whether transformed weights are kept, from the number of tiles in all images."""
    return filter_bytes <= FILTER_BYTES and tiles >= ENOUGH_TILES


class WinogradConvolution(BiasedConvolution):
    """One direction of one convolution with tiles of ``tile``² outputs, like `RowConvolution`."""

    def __init__(
        self,
        target: Target,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        geometry: ConvolutionGeometry,
        backward: bool,
        tile: int,
    ):
        taps, lanes = geometry.kernel[0], target.lanes
        size = taps + tile - 1
        inputs, outputs, inner, outer, pads = Direction.of(x_shape, w_shape, geometry, backward)
        together = max(1, UNIT_LANES // (3 * lanes))
        vectors = threes(-(-outputs // lanes))
        unit_lanes = lanes * max(
            sum(vectors[i : i + together]) for i in range(0, len(vectors), together)
        )
        self._units = -(-len(vectors) // together)
        filter_size = odd_lines(inputs * unit_lanes)
        self._filters = size**2 * self._units * filter_size
        self._held = np.empty(0, np.float32)
        counts = tuple(-(-extent // tile) for extent in outer)
        strips = x_shape[0] * counts[0]
        self._holds_filters = keeps_filters(4 * self._filters, strips * counts[1])
        # With few strips, threads share the output channels rather than the images.
        self._keeps_filters = self._holds_filters and strips >= ENOUGH_STRIPS
        if self._keeps_filters:
            most = max(1, BLOCK_BYTES // (4 * size**2 * (unit_lanes + inputs)))
            most = min(most, max(counts[1], strips * counts[1] // ENOUGH_BLOCKS))
        else:
            most = max(FEWEST_TILES, PRODUCT_BYTES // (4 * size**2 * unit_lanes))
        most = min(MOST_TILES, most)
        self._in = cut(inner, counts, tile, size, pads, lanes, most)
        self._out = self._in._replace(height=outer[0], width=outer[1], pitch=counts[1] * tile)
        held = self._in.piece * self._in.tiles
        block, pitch = max(1, most // held), odd_lines(inputs)
        self._pieces = x_shape[0] * self._in.pieces
        self._bands = self._make_bands(target, vectors, together, block * held)
        self._chunk = block
        if not self._keeps_filters:
            self._chunk = self._pieces_together(4 * size**2 * pitch * held, block)
        self._sizes = Sizes(
            *(geometry.group, inputs, outputs, taps, size, lanes, pitch),
            odd_lines((self._chunk * held + SURPLUS_TILES) * pitch),
            filter_size,
            odd_lines((block * held + SURPLUS_TILES) * unit_lanes),
            *(together, block, int(backward)),
        )
        super().__init__(geometry.group, outputs, -(-outputs // lanes) * lanes)
        width = taps**2 * (1 if backward else inputs)
        specs = [
            GatherKernel(inner[1] < lanes),
            GridKernel("inputs", tile, taps),
            GatherKernel(width < lanes),
            GridKernel("filters", tile, taps),
            GridKernel("outputs", tile, taps),
            ScatterKernel(outer[1] if outer[1] < lanes else 0),
        ]
        self._kernels = np.array([address_of(spec, target) for spec in specs], np.int64)

    def _make_bands(
        self, target: Target, vectors: Sequence[int], together: int, tiles: int
    ) -> np.ndarray:
        """Return the table of bands of output channels, for ``tiles`` in a block.

        A band has the addresses of two products (one sets, one adds), the rows of their tiles, its
        first channel, its vectors, and its first lane in the unit.
        """
        bands, channel, lane = [], 0, 0
        for i, count in enumerate(vectors):
            lane = lane if i % together else 0
            rows = rows_of(tiles, count, min(target.tile_rows(count), SURPLUS_TILES), TILE_START)
            kernels = [TileProductKernel(rows, count, add) for add in (False, True)]
            addresses = [address_of(kernel, target) for kernel in kernels]
            bands.append((*addresses, rows, channel, count, lane))
            channel, lane = channel + count * target.lanes, lane + count * target.lanes
        return np.array(bands, np.int64)

    def _pieces_together(self, piece_bytes: int, block: int) -> int:
        """Return the number of pieces transformed at a time: whole blocks, in equal chunks."""
        blocks = -(-self._pieces // block)
        most = max(1, INPUT_BYTES // (piece_bytes * block))
        return -(-blocks // -(-blocks // most)) * block

    def hold(self, w: np.ndarray) -> None:
        """Transform the weights if they are few; else keep them as they are."""
        if not self._holds_filters:
            self._held = w
            return
        self._held = np.empty((self._sizes.group, self._filters), np.float32)
        for g in range(self._sizes.group):
            self._transform(w, g, self._held[g])

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return super().scratch_bytes + (self._held.nbytes if self._holds_filters else 0)

    def _transform(self, w: np.ndarray, g: int, filters: np.ndarray) -> None:
        """Set ``filters`` to the transformed weights of a group."""
        args = self._bands, filters.reshape(self._units, -1), self._kernels, self._sizes
        parallel_for(_transform_all_filters, self._units, w.reshape(-1), g, *args)

    def _multiply_filters(self, x: np.ndarray, filters: np.ndarray, y: np.ndarray, g: int) -> None:
        parallel_for(
            _convolve_blocks,
            -(-self._pieces // self._sizes.block),
            *(x, filters.reshape(self._units, -1), self._bias, self._slope, y, g),
            *(self._bands, self._pieces, self._kernels, self._in, self._out, self._sizes),
        )

    def _convolve(self, x: np.ndarray, w: np.ndarray | None, y: np.ndarray) -> None:
        if not self._keeps_filters:
            self._transform_and_multiply(x, w, y)
            return
        for g in range(self._sizes.group):
            if w is None:
                self._multiply_filters(x, self._held[g], y, g)
                continue
            with workspace.shared.lend(self._filters) as filters:
                self._transform(w, g, filters)
                self._multiply_filters(x, filters, y, g)

    def _transform_and_multiply(self, x: np.ndarray, w: np.ndarray | None, y: np.ndarray) -> None:
        held = np.empty((self._sizes.group, self._units, 0), np.float32)
        if w is None and self._holds_filters:
            held = self._held.reshape(*held.shape[:2], -1)
        z, grids, tables = self._sizes, self._in, self._kernels
        w = (self._held if w is None else w).reshape(-1)
        blocks, units = -(-z.inputs // z.lanes), self._units
        # Each part of the tiles transforms the weights again: no more parts than threads need.
        wanted = 1 if thread_count() == 1 else -(-UNITS_PER_THREAD * thread_count() // units)
        with workspace.shared.lend(z.size**2 * z.panel) as panels:
            for g in range(z.group):
                for first in range(0, self._pieces, self._chunk):
                    stop = min(self._pieces, first + self._chunk)
                    place, parts = (g, first, stop), min(-(-(stop - first) // z.block), wanted)
                    units_in = blocks * (stop - first)
                    parallel_for(_transform_inputs, units_in, panels, x, place, tables, grids, z)
                    parallel_for(
                        _multiply,
                        units * parts,
                        *(
                            panels,
                            w,
                            held[g],
                            self._bias,
                            self._slope,
                            y,
                            place,
                            self._bands,
                            parts,
                        ),
                        *(tables, grids, self._out, z),
                    )


@jit
def _transform_inputs(begin, end, panels, x, place, kernels, grids, sizes):
    """panels[position, tile, channel] = Bᵀ·d·B of the inputs d of each tile."""
    z, padded = sizes, padded_rows(grids)
    blocks = (z.inputs + z.lanes - 1) // z.lanes
    g, first, _ = place
    for unit in range(begin, end):
        channel, piece = unit % blocks * z.lanes, first + unit // blocks
        plane = (piece // grids.pieces * z.group + g) * z.inputs + channel
        tile = tiles_before(piece, grids) - tiles_before(first, grids)
        transform_piece(
            x.ctypes.data + 4 * plane * grids.height * grids.width,
            min(z.lanes, z.inputs - channel),
            piece,
            grids,
            padded,
            kernels[0],
            kernels[1],
            panels.ctypes.data + 4 * (tile * z.pitch + channel),
            (4 * z.size * z.panel, 4 * z.panel, 4 * z.pitch),
        )


@jit
def _transform_filters(w, g, bands, filters, gathered, kernels, sizes):
    """filters[position][band][input, lane] = G·w·Gᵀ."""
    z, vector, taps = sizes, 4 * sizes.lanes, sizes.taps * sizes.taps
    # Backward, the kernel is rotated by 180 degrees.
    turn = -1 if z.backward else 1
    source = gathered.ctypes.data + (vector * (taps - 1) if z.backward else 0)
    for _, _, _, channel, vectors, lane in bands:
        for j in range(vectors):
            output = channel + j * z.lanes
            valid = min(z.lanes, z.outputs - output)
            if valid <= 0:
                continue
            if z.backward:
                start, plane = (g * z.inputs * z.outputs + output) * taps, taps
                row, rows, width = z.outputs * taps, z.inputs, taps
            else:
                start, plane = (g * z.outputs + output) * z.inputs * taps, z.inputs * taps
                row, rows, width = 0, 1, z.inputs * taps
            to = gathered.ctypes.data
            at = w.ctypes.data + 4 * start
            call(kernels[2], at, 4 * plane, 4 * row, rows, width, valid, to, taps * vector)
            call(
                kernels[3],
                source,
                turn * z.taps * vector,
                turn * vector,
                taps * vector,
                0,
                filters.ctypes.data + 4 * (lane * z.inputs + j * z.lanes),
                4 * z.size * z.filter,
                4 * z.filter,
                vectors * vector,
                0,
                z.inputs,
                1,
            )


@jit
def _multiply_block(panels, filters, products, tile, tiles, pitch, bands, sizes):
    """products[position, tile, lane of the unit] of ``tiles`` tiles from ``tile`` on."""
    z = sizes
    for position in range(z.size * z.size):
        b = panels.ctypes.data + 4 * (position * z.panel + tile * z.pitch)
        for first_kernel, next_kernel, rows, _, vectors, lane in bands:
            a = filters.ctypes.data + 4 * (position * z.filter + lane * z.inputs)
            y = products.ctypes.data + 4 * (position * z.product + lane)
            for k in range(0, z.inputs, DEPTH):
                call(
                    next_kernel if k > 0 else first_kernel,
                    b + 4 * k,
                    4 * z.pitch,
                    a + 4 * k * vectors * z.lanes,
                    min(DEPTH, z.inputs - k),
                    y,
                    4 * pitch,
                    (tiles + rows - 1) // rows,
                )


@jit
def _write_piece(source, pitch, piece, plane, valid, bias, slope, y, out, kernels, grids, sizes):
    """Transform a vector of products of a piece into ``valid`` planes of y from ``plane`` on."""
    z, vector, line = sizes, 4 * sizes.lanes, 4 * sizes.lanes * grids.pitch
    first = piece % grids.pieces * grids.piece
    count, row = min(grids.piece, grids.strips - first), first * grids.step
    call(
        kernels[4],
        source,
        4 * z.size * z.product,
        4 * z.product,
        4 * pitch,
        4 * pitch * grids.tiles,
        out.ctypes.data,
        line,
        vector,
        grids.step * vector,
        grids.step * line,
        grids.tiles,
        count,
        bias,
        slope,
    )
    size = grids.height * grids.width
    call(
        kernels[5],
        out.ctypes.data,
        line,
        min(count * grids.step, grids.height - row),
        grids.width,
        valid,
        y.ctypes.data + 4 * (plane * size + row * grids.width),
        4 * size,
        4 * grids.width,
    )


@jit
def _write_block(products, pitch, pieces, bias, slope, y, out, g, bands, kernels, grids, z):
    """Transform the products of ``pieces`` into y."""
    for piece in range(pieces[0], pieces[1]):
        tile = tiles_before(piece, grids) - tiles_before(pieces[0], grids)
        for _, _, _, channel, vectors, lane in bands:
            for j in range(vectors):
                output = channel + j * z.lanes
                valid = min(z.lanes, z.outputs - output)
                if valid > 0:
                    _write_piece(
                        products.ctypes.data + 4 * (tile * pitch + lane + j * z.lanes),
                        pitch,
                        piece,
                        (piece // grids.pieces * z.group + g) * z.outputs + output,
                        valid,
                        bias.ctypes.data + 4 * (g * bias.shape[1] + output),
                        slope.ctypes.data,
                        y,
                        out,
                        kernels,
                        grids,
                        z,
                    )


@jit
def _transform_all_filters(begin, end, w, g, bands, filters, kernels, sizes):
    """filters[unit] = the transformed weights of a unit's bands."""
    z = sizes
    gathered = aligned((z.inputs * z.taps * z.taps + z.lanes) * z.lanes)
    for unit in range(begin, end):
        mine = bands[unit * z.bands : (unit + 1) * z.bands]
        _transform_filters(w, g, mine, filters[unit], gathered, kernels, z)


@jit
def _convolve_blocks(
    begin, end, x, filters, bias, slope, y, g, bands, pieces, kernels, grids_x, grids, sizes
):
    """Transform the inputs of blocks, multiply with weights, and transform the products into y."""
    z = sizes
    panels = aligned(z.size * z.size * z.panel)
    products = aligned(z.size * z.size * z.product)
    out = aligned((grids.piece * grids.step * grids.pitch + z.lanes) * z.lanes)
    for block in range(begin, end):
        place = (g, block * z.block, min(pieces, (block + 1) * z.block))
        count = (place[2] - place[1]) * ((z.inputs + z.lanes - 1) // z.lanes)
        _transform_inputs(0, count, panels, x, place, kernels, grids_x, z)
        tiles = tiles_before(place[2], grids_x) - tiles_before(place[1], grids_x)
        for unit in range(len(filters)):
            mine = bands[unit * z.bands : (unit + 1) * z.bands]
            pitch = mine[-1, 4] * z.lanes + mine[-1, 5]
            _multiply_block(panels, filters[unit], products, 0, tiles, pitch, mine, z)
            _write_block(
                products, pitch, place[1:], bias, slope, y, out, g, mine, kernels, grids, z
            )


@jit
def _multiply(
    begin, end, panels, w, held, bias, slope, y, place, bands, parts, kernels, grids_x, grids, sizes
):
    """Multiply transformed inputs with weights, and transform the products into y.

    ``held`` has the transformed weights of each unit, or none.
    """
    z, (g, first, stop) = sizes, place
    blocks = (stop - first + z.block - 1) // z.block
    filters = aligned(z.size * z.size * z.filter)
    gathered = aligned((z.inputs * z.taps * z.taps + z.lanes) * z.lanes)
    products = aligned(z.size * z.size * z.product)
    out = aligned((grids.piece * grids.step * grids.pitch + z.lanes) * z.lanes)
    done = -1
    for unit in range(begin, end):
        band, part = unit // parts * z.bands, unit % parts
        mine = bands[band : band + z.bands]
        pitch = mine[-1, 4] * z.lanes + mine[-1, 5]
        if held.shape[1]:
            filters = held[unit // parts]
        elif band != done:
            _transform_filters(w, g, mine, filters, gathered, kernels, z)
            done = band
        for block in range(blocks * part // parts, blocks * (part + 1) // parts):
            low = first + block * z.block
            pieces = (low, min(stop, low + z.block))
            before = tiles_before(low, grids_x)
            tile, tiles = before - tiles_before(first, grids_x), tiles_before(pieces[1], grids_x)
            _multiply_block(panels, filters, products, tile, tiles - before, pitch, mine, z)
            _write_block(products, pitch, pieces, bias, slope, y, out, g, mine, kernels, grids, z)
