"""The weight gradient of convolutions by Winograd, with fewer multiplications.

Inputs and gradients of the outputs are cut into tiles and transformed.  At each position of a tile,
their products are summed over all tiles, by a matrix product: that is the gradient of the
transformed weights.  Transformed back, it is the gradient of the weights.  With few channels each
unit of work computes the gradient of a part of the images, in its core's cache, and the parts are
added.  Otherwise the tiles of some images are transformed at a time, and each unit then multiplies
some input and output channels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pycaffe_dist.kernels.compiling import aligned, aligned_zeros, jit
from pycaffe_dist.kernels.im2col import ConvolutionGeometry
from pycaffe_dist.kernels.jit import workspace
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.gemm.kernels import OuterKernel
from pycaffe_dist.kernels.jit.gemm.tiles import rows_per_tile
from pycaffe_dist.kernels.jit.parts import lend_parts
from pycaffe_dist.kernels.jit.winograd.grids import (
    cut,
    odd_lines,
    padded_rows,
    threes,
    tiles_before,
    transform_piece,
)
from pycaffe_dist.kernels.jit.winograd.tiles import GatherKernel, GridKernel, ScatterKernel
from pycaffe_dist.threads import parallel_for

# Bytes of transformed tiles at a time, and the fewest tiles.
TILE_BYTES, FEWEST_TILES = 3 << 21, 96
# The images are cut into parts of at least `PART_TILES` tiles if the sums of a part have at most
# `SUMS_BYTES`; it transforms `BLOCK_BYTES` of tiles at a time.  The number of parts does not depend
# on the threads: the order of additions shows in the result.
PARTS, PART_TILES, SUMS_BYTES, BLOCK_BYTES = 16, 128, 5 << 17, 3 << 18
# Tiles of a piece of a plane, and tiles whose transforms stay in the first-level cache.
MOST_TILES, DEPTH = 64, 128
# Input channels of a unit of work, and the wanted number of units.
UNIT_CHANNELS, UNITS = 48, 8


class Sizes(NamedTuple):
    """The numbers of a weight gradient.

    Neighbouring positions in a tile are `panel_x` floats apart in the inputs, `panel_y` in the
    gradients and `panel_w` in their products.  Inputs come in blocks of `channels`, each of `held`
    tiles.
    """

    group: int
    inputs: int
    outputs: int
    taps: int
    size: int
    lanes: int
    channels: int
    held: int
    panel_x: int
    panel_y: int
    panel_w: int


class WinogradGradient:
    """The weight gradient of one convolution from tiles of ``tile``² outputs; adds to dw."""

    def __init__(
        self,
        target: Target,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        geometry: ConvolutionGeometry,
        tile: int,
    ):
        taps, lanes, outer = geometry.kernel[0], target.lanes, geometry.output_shape(x_shape[2:])
        size, inputs, outputs = taps + tile - 1, w_shape[1], w_shape[0] // geometry.group
        counts = tuple(-(-extent // tile) for extent in outer)
        self._x = cut(x_shape[2:], counts, tile, size, geometry.pad, lanes, MOST_TILES)
        self._y = self._x._replace(
            height=outer[0], width=outer[1], reach=tile, top=0, left=0, pitch=counts[1] * tile
        )
        channels = self._make_bands(target, inputs, -(-outputs // lanes))
        blocks = -(-inputs // channels)
        width_y = int(self._bands[-1, 1] + self._bands[-1, 2] * lanes)
        self._pieces = x_shape[0] * self._x.pieces
        held = self._x.piece * self._x.tiles
        bytes_per_tile = 4 * size**2 * (blocks * channels + width_y)
        used = min(channels, inputs)
        most = max(-(-used // band[3]) * band[3] * band[2] * lanes for band in self._bands)
        panel_w, tiles = odd_lines(int(most)), self._pieces * held
        fits = 4 * size**2 * panel_w * blocks * len(self._bands) <= SUMS_BYTES
        self._parts = max(1, min(PARTS, tiles // PART_TILES)) if fits else 1
        wanted = max(FEWEST_TILES, TILE_BYTES // bytes_per_tile)
        if self._parts > 1:
            wanted = BLOCK_BYTES // bytes_per_tile
        largest = -(-self._pieces // self._parts)
        self._chunk = -(-largest // -(-largest // max(1, wanted // held)))
        held *= self._chunk
        self._sizes = Sizes(
            *(geometry.group, inputs, outputs, taps, size, lanes, channels, held),
            *(odd_lines(blocks * channels * held + 64), odd_lines(width_y * held), panel_w),
        )
        specs = [
            GatherKernel(x_shape[3] < lanes),
            GridKernel("inputs", tile, taps),
            GatherKernel(outer[1] < lanes),
            GridKernel("gradients", tile, taps),
            GridKernel("weights", tile, taps),
            ScatterKernel(0),
        ]
        self._kernels = np.array([address_of(spec, target) for spec in specs], np.int64)
        self._offsets = 4 * np.arange(16, dtype=np.int64)

    def _make_bands(self, target: Target, inputs: int, vectors: int) -> int:
        """Fill the table of bands of output channels; return the number of inputs in a block.

        A band has the address of its products, its first channel, vectors, and rows of a product.
        """
        tiles, lanes = threes(vectors), target.lanes
        most = -(-min(UNIT_CHANNELS, inputs) // lanes) * lanes
        wanted = -(-UNITS // len(tiles))
        channels = max(min(2 * lanes, most), min(most, inputs // wanted // lanes * lanes))
        bands, channel = [], 0
        for count in tiles:
            rows = rows_per_tile(min(channels, inputs), count, target)
            bands.append((address_of(OuterKernel(rows, count), target), channel, count, rows))
            channel += count * lanes
        self._bands = np.array(bands, np.int64)
        return channels

    def run(self, x: np.ndarray, dy: np.ndarray, dw: np.ndarray) -> None:
        """Add the gradient to dw."""
        z, bands, tables = self._sizes, self._bands, (self._kernels, self._x, self._y)
        x, dy, flat = x.reshape(-1), dy.reshape(-1), dw.reshape(-1)
        if self._parts > 1:
            limits, units = (self._pieces, self._chunk), z.group * self._parts
            args = limits, bands, self._offsets, *tables, z
            with lend_parts(self._parts, flat) as parts:
                parallel_for(_gradient_of_parts, units, parts, x, dy, *args)
            return
        vectors = -(-z.inputs // z.lanes) + -(-z.outputs // z.lanes)
        units = len(bands) * -(-z.inputs // z.channels)
        with workspace.shared.lend(z.size**2 * (z.panel_x + z.panel_y)) as memory:
            panels = memory[: z.size**2 * z.panel_x], memory[z.size**2 * z.panel_x :]
            for g in range(z.group):
                for first in range(0, self._pieces, self._chunk):
                    stop = min(self._pieces, first + self._chunk)
                    place = g, first, stop
                    read = vectors * (stop - first)
                    parallel_for(_transform, read, x, dy, *panels, place, bands, *tables, z)
                    parallel_for(
                        _multiply, units, flat, *panels, place, bands, self._offsets, *tables, z
                    )


@jit
def _place_of_lane(lane, bands, lanes):
    """Return the first lane and the width of the band of output channel ``lane``."""
    for band in range(len(bands)):
        width = bands[band, 2] * lanes
        if lane < bands[band, 1] + width:
            return bands[band, 1], width
    return 0, 0


@jit
def _transform(begin, end, x, dy, panels_x, panels_y, place, bands, kernels, grids_x, grids_y, z):
    """Fill panels_x[position, block, tile, channel] and panels_y[position, band, tile, lane]."""
    g, first, _ = place
    padded_x, padded_y = padded_rows(grids_x), padded_rows(grids_y)
    vectors_x = (z.inputs + z.lanes - 1) // z.lanes
    vectors = vectors_x + (z.outputs + z.lanes - 1) // z.lanes
    for unit in range(begin, end):
        piece, index = first + unit // vectors, unit % vectors
        tile = tiles_before(piece, grids_x) - tiles_before(first, grids_x)
        image = piece // grids_x.pieces * z.group + g
        if index < vectors_x:
            channel, count, grids, data = index * z.lanes, z.inputs, grids_x, x.ctypes.data
            block, width, inside = channel // z.channels, z.channels, channel % z.channels
            to, panel = panels_x.ctypes.data + 4 * block * z.held * z.channels, z.panel_x
            padded, gather, transform = padded_x, kernels[0], kernels[1]
        else:
            channel, count, grids = (index - vectors_x) * z.lanes, z.outputs, grids_y
            data = dy.ctypes.data
            start, width = _place_of_lane(channel, bands, z.lanes)
            inside = channel - start
            to, panel = panels_y.ctypes.data + 4 * start * z.held, z.panel_y
            padded, gather, transform = padded_y, kernels[2], kernels[3]
        source = data + 4 * (image * count + channel) * grids.height * grids.width
        transform_piece(
            source,
            min(z.lanes, count - channel),
            piece,
            grids,
            padded,
            gather,
            transform,
            to + 4 * (tile * width + inside),
            (4 * z.size * panel, 4 * panel, 4 * width),
        )


@jit
def _sum_products(sums, panels_x, panels_y, block, valid, tiles, band, offsets, z):
    """sums[position, channel, lane] += Σ over tiles of inputs times gradients."""
    kernel, start, vectors, rows = band
    width = vectors * z.lanes
    for position in range(z.size * z.size):
        for tile in range(0, tiles, DEPTH):
            b = panels_x.ctypes.data + 4 * (
                position * z.panel_x + (block * z.held + tile) * z.channels
            )
            a = panels_y.ctypes.data + 4 * (position * z.panel_y + start * z.held + tile * width)
            for channel in range(0, valid, rows):
                call(
                    kernel,
                    b + 4 * channel,
                    0,
                    0,
                    4 * z.channels,
                    offsets.ctypes.data,
                    a,
                    0,
                    0,
                    1,
                    1,
                    min(DEPTH, tiles - tile),
                    sums.ctypes.data + 4 * (position * z.panel_w + channel * width),
                )


@jit
def _add_gradient(dw, at, stride, turned, pitch, lanes, count):
    """Add ``count`` values of each lane to dw, whose lanes are ``stride`` apart from ``at`` on."""
    for lane in range(lanes):
        target = dw[at + lane * stride : at + lane * stride + count]
        source = turned[lane * pitch : lane * pitch + count]
        for i in range(count):
            target[i] += source[i]


@jit
def _add_transformed(dw, sums, g, band, block, kernels, scratch, z):
    """Add the transform of a unit's sums to dw; ``scratch`` has room for two transforms."""
    vector, taps = 4 * z.lanes, z.taps * z.taps
    valid = min(z.channels, z.inputs - block * z.channels)
    weights, turned = scratch[0], scratch[1]
    for j in range(band[2]):
        output = band[1] + j * z.lanes
        lanes = min(z.lanes, z.outputs - output)
        if lanes <= 0:
            continue
        call(
            kernels[4],
            sums.ctypes.data + j * vector,
            4 * z.size * z.panel_w,
            4 * z.panel_w,
            band[2] * vector,
            0,
            weights.ctypes.data,
            z.taps * vector,
            vector,
            taps * vector,
            0,
            valid,
            1,
        )
        width = max(z.lanes, valid * taps)
        source, to = weights.ctypes.data, turned.ctypes.data
        call(kernels[5], source, 0, 1, width, z.lanes, to, 4 * width, 0)
        at = ((g * z.outputs + output) * z.inputs + block * z.channels) * taps
        _add_gradient(dw, at, z.inputs * taps, turned, width, lanes, valid * taps)


@jit
def _multiply(
    begin, end, dw, panels_x, panels_y, place, bands, offsets, kernels, grids_x, grids_y, z
):
    """Multiply transformed inputs with gradients, and add the products' transform to dw."""
    g, first, stop = place
    blocks = (z.inputs + z.channels - 1) // z.channels
    tiles = tiles_before(stop, grids_x) - tiles_before(first, grids_x)
    sums = aligned(z.size * z.size * z.panel_w)
    scratch = aligned_zeros(2 * z.channels * z.taps * z.taps * z.lanes).reshape((2, -1))
    for unit in range(begin, end):
        band, block = bands[unit // blocks], unit % blocks
        valid = min(z.channels, z.inputs - block * z.channels)
        sums[:] = 0
        _sum_products(sums, panels_x, panels_y, block, valid, tiles, band, offsets, z)
        _add_transformed(dw, sums, g, band, block, kernels, scratch, z)


@jit
def _gradient_of_parts(
    begin, end, parts, x, dy, limits, bands, offsets, kernels, grids_x, grids_y, z
):
    """Add the gradient from a part of the pieces, and of a group, to the part's row."""
    pieces, chunk = limits
    vectors = (z.inputs + z.lanes - 1) // z.lanes + (z.outputs + z.lanes - 1) // z.lanes
    blocks = (z.inputs + z.channels - 1) // z.channels
    panels_x = aligned(z.size * z.size * z.panel_x)
    panels_y = aligned(z.size * z.size * z.panel_y)
    sums = aligned(len(bands) * blocks * z.size * z.size * z.panel_w)
    sums = sums.reshape((len(bands) * blocks, -1))
    scratch = aligned_zeros(2 * z.channels * z.taps * z.taps * z.lanes).reshape((2, -1))
    for unit in range(begin, end):
        g, part = unit // len(parts), unit % len(parts)
        last = pieces * (part + 1) // len(parts)
        sums[:] = 0
        for first in range(pieces * part // len(parts), last, chunk):
            place = (g, first, min(last, first + chunk))
            tiles = tiles_before(place[2], grids_x) - tiles_before(first, grids_x)
            count = vectors * (place[2] - first)
            _transform(
                0, count, x, dy, panels_x, panels_y, place, bands, kernels, grids_x, grids_y, z
            )
            for i in range(len(sums)):
                band, block = bands[i // blocks], i % blocks
                valid = min(z.channels, z.inputs - block * z.channels)
                _sum_products(sums[i], panels_x, panels_y, block, valid, tiles, band, offsets, z)
        for i in range(len(sums)):
            _add_transformed(
                parts[part], sums[i], g, bands[i // blocks], i % blocks, kernels, scratch, z
            )
