"""Convolution by minimal filtering: fewer multiplications for square kernels of stride 1.

Tiles of 2×2 outputs are computed from transformed tiles of inputs and transformed weights, in which
each value meets one other: for 3×3 weights with 16 multiplications in place of 36, for 5×5 with 36
in place of 100.  Over input channels that makes 16 or 36 matrix products, which are done a piece at
a time, so that what lies between the transforms stays in the caches.  A tile's result depends on
its inputs and the weights alone, whatever the threads and the other images.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pycaffe_dist.device import parallel_for
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.im2col import ConvolutionGeometry
from pycaffe_dist.kernels.jit.calling import call
from pycaffe_dist.kernels.jit.objects import address_of
from pycaffe_dist.kernels.jit.target import Target
from pycaffe_dist.kernels.jit.tiles import (
    OUTPUTS,
    DealKernel,
    TileInputKernel,
    TileOutputKernel,
    TileProductKernel,
)
from pycaffe_dist.kernels.jit.toom_cook import matrices

VECTORS = 3
# Input channels whose panel stays in the first-level cache.
DEPTH = 256
# Products that wait for being transformed may take half a second-level cache.
PRODUCT_BYTES = 1 << 18
# Tiles of a unit of work, over which the weights are read once.
FEWEST_TILES, MOST_TILES = 60, 120
# Kernel sizes for which there are points to evaluate at.
KERNELS = (3, 5)
# Cycles, as measured: of the transforms of a vector of tiles, in and out, of those of the weights
# that join two channels, by the size of the tiles; of packing one weight for the row kernel.
INPUT_CYCLES, OUTPUT_CYCLES = {4: 155, 6: 400}, {4: 75, 6: 180}
WEIGHT_CYCLES, PACKING_CYCLES = {4: 78, 6: 140}, 4
# The parts of the peak that the products reach here and in the row kernel.
EFFICIENCY, ROW_EFFICIENCY = 0.8, 0.88
LEAST_GAIN = 1.1
# Images over which the work on the weights is counted.  The real number must not matter: a rank
# with a part of the batch is to compute what one process computes for the whole.
NOMINAL_IMAGES = 16


class _Direction(NamedTuple):
    """The shapes of one direction of a convolution: the data gradient reads dy and writes dx."""

    inputs: int
    outputs: int
    inner: tuple[int, ...]
    outer: tuple[int, ...]
    pads: tuple[int, ...]

    @classmethod
    def of(
        cls,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        geometry: ConvolutionGeometry,
        backward: bool,
    ) -> _Direction:
        inner, outer = x_shape[2:], geometry.output_shape(x_shape[2:])
        inputs, outputs = w_shape[1], w_shape[0] // geometry.group
        if not backward:
            return cls(inputs, outputs, inner, outer, geometry.pad)
        pads = tuple(kernel - 1 - pad for kernel, pad in zip(geometry.kernel, geometry.pad))
        return cls(outputs, inputs, outer, inner, pads)


def suits(
    target: Target,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    geometry: ConvolutionGeometry,
    backward: bool,
) -> bool:
    """Tell whether minimal filtering can do a convolution, and faster than the row kernel."""
    kernel = geometry.kernel
    # Without masked loads the transforms are slow.
    if target.level not in ("avx512", "avx2") or len(kernel) != 2 or kernel[0] not in KERNELS:
        return False
    plain = kernel[0] == kernel[1] and {*geometry.stride, *geometry.dilation} == {1}
    if not plain or max(geometry.pad) >= kernel[0]:
        return False
    inputs, outputs, inner, outer, pads = _Direction.of(x_shape, w_shape, geometry, backward)
    size, lanes, pairs = kernel[0] + OUTPUTS - 1, target.lanes, inputs * outputs
    strips, tiles = (-(-extent // OUTPUTS) for extent in outer)
    vectors = strips * -(-tiles // lanes)
    filtering = size**2 * pairs * strips * tiles / (2 * lanes * EFFICIENCY)
    filtering += vectors * (inputs * INPUT_CYCLES[size] + outputs * OUTPUT_CYCLES[size])
    filtering += pairs * WEIGHT_CYCLES[size] / NOMINAL_IMAGES
    # The row kernel skips the padding.
    taps = math.prod(
        sum(0 <= y + k - pad < extent for y in range(out) for k in range(kernel[0]))
        for extent, out, pad in zip(inner, outer, pads)
    )
    by_rows = inputs * -(-outputs // lanes) * taps / (2 * ROW_EFFICIENCY)
    by_rows += pairs * kernel[0] ** 2 * PACKING_CYCLES / NOMINAL_IMAGES
    return filtering * LEAST_GAIN < by_rows


def _strips_together(tiles: int, target: Target) -> int:
    """Return how many strips of ``tiles`` tiles make up a unit."""

    def cost(strips: int) -> float:
        """Vectors for each tile; one vector alone is no faster than two."""
        whole, rest = divmod(-(-strips * tiles // target.lanes), VECTORS)
        return (VECTORS * whole + (max(2, rest) if rest else 0)) / (strips * tiles)

    most, least = max(1, MOST_TILES // tiles), max(1, FEWEST_TILES // tiles)
    return min(range(most, least - 1, -1), key=cost)


def _odd_lines(floats: int) -> int:
    """Return a size of at least ``floats`` with which neighbours do not share cache sets."""
    return (-(-floats // 16) | 1) * 16


class WinogradConvolution:
    """One direction of one convolution, like `RowConvolution`, for stride 1 and `KERNELS`."""

    def __init__(
        self,
        target: Target,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        geometry: ConvolutionGeometry,
        backward: bool,
    ):
        self.backward, self.group = backward, geometry.group
        self._taps = geometry.kernel[0]
        size = self._taps + OUTPUTS - 1
        shapes = _Direction.of(x_shape, w_shape, geometry, backward)
        inputs, outputs, inner, outer, pads = shapes
        strips, tiles = (-(-extent // OUTPUTS) for extent in outer)
        self._strip_rows = _row_table(inner, strips, size, pads[0])
        rows, width = target.tile_rows(VECTORS), VECTORS * target.lanes
        together = _strips_together(tiles, target)
        self._units = -(-x_shape[0] * strips // together)
        columns = -(-together * tiles // width) * width
        # The last vector of a strip may reach beyond the last tile.
        pitch = max(columns, (-(-together * tiles // target.lanes) + 1) * target.lanes)
        line = _odd_lines(size * size * pitch)
        row_tiles = -(-outputs // rows)
        band = max(1, min(PRODUCT_BYTES // (4 * line * rows), row_tiles)) * rows
        self._weights = np.zeros((self.group, size * size, row_tiles, inputs * rows), np.float32)
        self._bias = np.zeros((self.group, outputs), np.float32)
        self._zeros = np.zeros(inner[1], np.float32)
        self._slope = np.ones(1, np.float32)
        self._filter = np.array(matrices(OUTPUTS, self._taps)[1], np.float32)
        specs = [TileInputKernel(size, pads[1]), DealKernel(VECTORS), TileOutputKernel(size)]
        for add in (False, True):
            specs += [TileProductKernel(rows, count, add) for count in range(1, VECTORS + 1)]
        self._kernels = np.array([address_of(spec, target) for spec in specs], np.int64)
        self._sizes = Sizes(
            *(x_shape[0], self.group, inputs, outputs, *inner, *outer, strips, tiles),
            *(together, columns, pitch, line, _odd_lines(columns * inputs), band),
            *(rows, target.lanes, size),
        )

    @property
    def scratch_bytes(self) -> int:
        """The memory that this plan keeps."""
        return self._weights.nbytes + self._bias.nbytes

    def run(
        self,
        source: np.ndarray,
        w: np.ndarray,
        b: np.ndarray | None,
        out: np.ndarray,
        slope: float = 1.0,
    ) -> None:
        """Set out to the convolution of source, plus b, its negatives times slope."""
        self._bias[:] = 0 if b is None else b.reshape(self.group, -1)
        self._slope[0] = slope
        parallel_for(
            _transform_weights,
            self.group * self._weights.shape[2],
            w.reshape(self.group, -1, w.shape[1], self._taps**2),
            self._weights,
            self._filter,
            self._sizes.rows,
            self.backward,
        )
        parallel_for(
            _convolve,
            self.group * self._units,
            source.reshape(-1),
            self._weights,
            self._bias,
            self._zeros,
            self._slope,
            out.reshape(-1),
            self._strip_rows,
            self._kernels,
            self._sizes,
        )


class Sizes(NamedTuple):
    """The numbers of a plan: shapes, and how the work is cut up; `line` and `panel` are pitches."""

    images: int
    group: int
    inputs: int
    outputs: int
    height_in: int
    width_in: int
    height_out: int
    width_out: int
    strips: int
    tiles: int
    together: int
    columns: int
    pitch: int
    line: int
    panel: int
    band: int
    rows: int
    lanes: int
    size: int


def _row_table(inner: tuple[int, ...], strips: int, size: int, pad: int) -> np.ndarray:
    """Return the offset in bytes of every input row of every strip of a plane, -1 for padding."""
    height, width = inner
    rows = OUTPUTS * np.arange(strips)[:, None] + np.arange(size) - pad
    return np.where((rows >= 0) & (rows < height), 4 * width * rows, -1)


@jit(fast=True)
def _add_scaled(target, factor, source):
    for i in range(target.size):
        target[i] += factor * source[i]


@jit
def _transform_weights(begin, end, w, weights, matrix, rows, backward):
    """weights[g, position, tile, k·rows + i] = (G·w·Gᵀ) of output tile·rows + i and input k."""
    size, taps = matrix.shape
    tiles, count = weights.shape[2], weights.shape[3]
    inputs, outputs = (w.shape[1], w.shape[2]) if backward else (w.shape[2], w.shape[1])
    plain = np.zeros((taps * taps, count), np.float32)
    partial = np.empty((size, count), np.float32)
    for unit in range(begin, end):
        g, tile = unit // tiles, unit % tiles
        for i in range(min(rows, outputs - tile * rows)):
            output = tile * rows + i
            for k in range(inputs):
                if backward:
                    # The other way round, the kernel is turned by half a turn.
                    for t in range(taps * taps):
                        plain[t, k * rows + i] = w[g, k, output, taps * taps - 1 - t]
                else:
                    for t in range(taps * taps):
                        plain[t, k * rows + i] = w[g, output, k, t]
        for column in range(size):
            partial[:] = 0
            for row in range(taps):
                for k in range(taps):
                    if matrix[column, k] != 0:
                        _add_scaled(partial[row], matrix[column, k], plain[row * taps + k])
            for position in range(size):
                target = weights[g, column * size + position, tile]
                target[:] = 0
                for row in range(taps):
                    if matrix[position, row] != 0:
                        _add_scaled(target, matrix[position, row], partial[row])


@jit
def _read_tiles(x, g, first, last, scratch, panels, strip_rows, zeros, kernels, sizes):
    """Transform strips ``first`` to ``last`` of all input channels into panels."""
    z, step = sizes, 4 * sizes.pitch
    width = VECTORS * z.lanes
    plane = 4 * z.height_in * z.width_in
    for channel in range(z.inputs):
        strip = first
        while strip < last:
            image, row = strip // z.strips, strip % z.strips
            count = min(last - strip, z.strips - row)
            call(
                kernels[0],
                x.ctypes.data + ((image * z.group + g) * z.inputs + channel) * plane,
                strip_rows.ctypes.data + 8 * z.size * row,
                zeros.ctypes.data,
                z.width_in,
                count,
                z.tiles,
                scratch + 4 * (strip - first) * z.tiles,
                step,
            )
            strip += count
        call(
            kernels[1],
            scratch,
            step,
            z.size * z.size,
            ((last - first) * z.tiles + width - 1) // width,
            panels + 4 * channel * width,
            4 * z.panel,
            4 * z.inputs * width,
        )


@jit
def _multiply(panels, weights, first, last, used, products, kernels, sizes):
    """Set products[row - first, position, tile] for the output rows from ``first`` to ``last``."""
    z, width = sizes, VECTORS * sizes.lanes
    for position in range(z.size * z.size):
        a = weights[position].ctypes.data
        b = panels + 4 * position * z.panel
        y = products + 4 * position * z.pitch
        for k in range(0, z.inputs, DEPTH):
            depth = min(DEPTH, z.inputs - k)
            for column in range(0, used, width):
                vectors = min(VECTORS, (used - column + z.lanes - 1) // z.lanes)
                call(
                    kernels[2 + vectors + (VECTORS if k > 0 else 0)],
                    a + 4 * (first * z.inputs + k * z.rows),
                    4 * z.inputs * z.rows,
                    b + 4 * (column * z.inputs + k * width),
                    4 * width,
                    depth,
                    y + 4 * column,
                    4 * z.line,
                    (last - first + z.rows - 1) // z.rows,
                )


@jit
def _write_tiles(products, g, first, last, strip_range, bias, slope, y, kernels, sizes):
    """Transform the products of output channels ``first`` to ``last`` into the strips of y."""
    z = sizes
    for channel in range(first, last):
        strip = strip_range[0]
        source = products + 4 * (channel - first) * z.line
        while strip < strip_range[1]:
            image, row = strip // z.strips, strip % z.strips
            count = min(strip_range[1] - strip, z.strips - row)
            plane = (image * z.group + g) * z.outputs + channel
            call(
                kernels[2],
                source + 4 * (strip - strip_range[0]) * z.tiles,
                4 * z.pitch,
                count,
                z.tiles,
                bias.ctypes.data + 4 * channel,
                slope.ctypes.data,
                y.ctypes.data + 4 * z.width_out * (plane * z.height_out + OUTPUTS * row),
                4 * z.width_out,
                z.width_out,
                z.height_out - OUTPUTS * row,
            )
            strip += count


@jit
def _convolve(begin, end, x, weights, bias, zeros, slope, y, strip_rows, kernels, sizes):
    z, total = sizes, sizes.images * sizes.strips
    units = (total + z.together - 1) // z.together
    places = z.size * z.size
    memory = np.empty(places * (z.pitch + z.panel) + z.line * z.band + 32, np.float32)
    panels = (memory.ctypes.data + 63) // 64 * 64
    products = panels + 4 * places * z.panel
    scratch = products + 4 * z.line * z.band
    for unit in range(begin, end):
        g, first = unit // units, unit % units * z.together
        last = min(total, first + z.together)
        _read_tiles(x, g, first, last, scratch, panels, strip_rows, zeros, kernels, z)
        used = (last - first) * z.tiles
        for row in range(0, z.outputs, z.band):
            stop = min(z.outputs, row + z.band)
            _multiply(panels, weights[g], row, stop, used, products, kernels, z)
            _write_tiles(products, g, row, stop, (first, last), bias[g], slope, y, kernels, z)
    memory[0] = 0  # a later use keeps what the addresses point to from being freed
