"""Convolution forward and with respect to data, row by row, on `RowKernel`."""

from __future__ import annotations

import itertools

import numpy as np

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.im2col import ConvolutionGeometry, Im2colPlan
from pycaffe_dist.kernels.jit.biased import BiasedConvolution
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target, step_cycles
from pycaffe_dist.kernels.jit.convolution.row_kernel import RowKernel
from pycaffe_dist.storage import aligned_zeros
from pycaffe_dist.threads import parallel_for

# Kernel columns are unrolled in machine code; beyond this the code gets too large.
WIDEST_KERNEL = 16
# With fewer bands of all images, their rows are cut into parts, so that all threads have work.
ENOUGH_UNITS = 16


def split_vectors(count: int, width: int, target: Target) -> list[int]:
    """Split ``count`` vectors of output channels into tiles for rows of ``width`` pixels."""

    def cycles(size: int) -> float:
        tiles = -(-width // target.tile_rows(size))
        return tiles * step_cycles(width / tiles, size)

    def split(size: int) -> list[int]:
        return [size] * (count // size) + [count % size] * (count % size > 0)

    return min(map(split, (2, 3, 4, 1)), key=lambda sizes: sum(map(cycles, sizes)))


def split_pixels(width: int, most: int, multiple: int) -> list[tuple[int, int]]:
    """Split a row into (first pixel, pixels) tiles of at most ``most``, as equal as possible.

    Tiles start at multiples of ``multiple``, so that there are few tap patterns.
    """
    most = max(multiple, most // multiple * multiple)
    tiles = -(-width // most)
    steps = -(-width // multiple)
    starts = [steps * i // tiles * multiple for i in range(tiles)] + [width]
    return [(start, stop - start) for start, stop in itertools.pairwise(starts)]


class RowConvolution(BiasedConvolution):
    """One direction of one convolution: ``backward`` False is forward, True the data gradient."""

    def __init__(
        self,
        target: Target,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        geometry: ConvolutionGeometry,
        backward: bool,
    ):
        plan = Im2colPlan(x_shape[2:], geometry)
        self.backward, self.group, self.images = backward, geometry.group, x_shape[0]
        self._width_x, self._width_y = x_shape[-1], plan.output[-1]
        channels_x, channels_y = w_shape[1], w_shape[0] // geometry.group
        self._taps, self._columns = len(plan.rows), geometry.kernel[-1]
        self._inputs, outputs = channels_x, channels_y
        pixels_in, pixels_out = plan.pixels_in, plan.pixels_out
        if backward:
            self._inputs, outputs = channels_y, channels_x
            pixels_in, pixels_out = pixels_out, pixels_in
        self._rows, self._row_starts = self._row_table(plan)
        self._offsets = self._column_offsets(geometry)
        padded = self._make_tiles(target, geometry, outputs)
        super().__init__(self.group, outputs, padded)
        width_out = self._width_x if backward else self._width_y
        units, rows = self.images * self.group * len(self._bands), len(self._row_starts) - 1
        parts = max(1, min(rows, -(-ENOUGH_UNITS // max(1, units))))
        self._units = units * parts
        self._sizes = np.array(
            [self._inputs, outputs, pixels_in, pixels_out, width_out, self.group, parts], np.int64
        )

    def _row_table(self, plan: Im2colPlan) -> tuple[np.ndarray, np.ndarray]:
        """Return the (input offset, kernel row) pairs of all output rows, and where each starts."""
        rows_x = plan.pixels_in // self._width_x
        pairs: list[list[tuple[int, int]]]
        pairs = [[] for _ in range(rows_x if self.backward else plan.rows.shape[1])]
        for t, starts in enumerate(plan.rows.tolist()):
            for row_y, start in enumerate(starts):
                if start < 0:
                    continue
                if self.backward:
                    pairs[start // self._width_x].append((4 * row_y * self._width_y, t))
                else:
                    pairs[row_y].append((4 * start, t))
        starts = np.cumsum([0, *map(len, pairs)])
        table = np.array([pair for row in pairs for pair in row], np.int64).reshape(-1, 2)
        return table, starts.astype(np.int64)

    def _column_offsets(self, geometry: ConvolutionGeometry) -> np.ndarray:
        stride, dilation = geometry.stride[-1], geometry.dilation[-1]
        step = 4 * dilation
        if self.backward:
            step = -step if stride == 1 else 0
        return np.arange(self._columns, dtype=np.int64) * step

    def _tile_taps(self, geometry: ConvolutionGeometry, start: int, pixels: int) -> tuple:
        """Return which pixels of a tile each kernel column reaches, as `RowKernel.taps`."""
        stride, pad, dilation = geometry.stride[-1], geometry.pad[-1], geometry.dilation[-1]
        taps = []
        for k in range(self._columns):
            pairs = []
            for i in range(pixels):
                if not self.backward:
                    if 0 <= (start + i) * stride + k * dilation - pad < self._width_x:
                        pairs.append((i, i * stride - pad))
                    continue
                position, rest = divmod(start + i + pad - k * dilation, stride)
                if rest == 0 and 0 <= position < self._width_y:
                    own = k * dilation if stride == 1 else 0
                    pairs.append((i, position - start // stride + own))
            taps.append(tuple(pairs))
        return tuple(taps)

    def _make_tiles(self, target: Target, geometry: ConvolutionGeometry, outputs: int) -> int:
        """Compile the kernels; fill the tables of pixel tiles and of output-channel tiles.

        Returns the number of output channels, padded.
        """
        stride = geometry.stride[-1]
        width = self._width_x if self.backward else self._width_y
        tiles: list[tuple[int, int, int]] = []
        first_of: dict[int, tuple[int, int]] = {}
        bands, channel, weight = [], 0, 0
        for size in split_vectors(-(-outputs // target.lanes), width, target):
            if size not in first_of:
                begin = len(tiles)
                multiple = stride if self.backward else 1
                for start, pixels in split_pixels(width, target.tile_rows(size), multiple):
                    taps = self._tile_taps(geometry, start, pixels)
                    spec = RowKernel(pixels, size, taps)
                    source = start // stride if self.backward else start * stride
                    tiles.append((address_of(spec, target), 4 * source, 4 * start))
                first_of[size] = begin, len(tiles)
            lanes = size * target.lanes
            bands.append((*first_of[size], channel, lanes, weight))
            channel += lanes
            weight += self._taps * self._inputs * self._columns * lanes
        self._tiles, self._bands = np.array(tiles, np.int64), np.array(bands, np.int64)
        memory = aligned_zeros(self.group * weight, np.dtype(np.float32))
        self._packed = memory.reshape(self.group, weight)
        return channel

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return self._packed.nbytes + super().scratch_bytes

    def hold(self, w: np.ndarray) -> None:
        """Pack the weights."""
        shaped = w.reshape(w.shape[0], w.shape[1], self._taps, self._columns)
        pack = _pack_for_data if self.backward else _pack_for_forward
        parallel_for(pack, self.group * len(self._bands), shaped, self._packed, self._bands)

    def _convolve(self, source: np.ndarray, w: np.ndarray | None, out: np.ndarray) -> None:
        if w is not None:
            self.hold(w)
        parallel_for(
            _convolve_rows,
            self._units,
            source,
            self._packed,
            self._bias,
            self._slope,
            out,
            self._tiles,
            self._bands,
            self._rows,
            self._row_starts,
            self._offsets,
            self._sizes,
        )


@jit
def _pack_for_forward(begin, end, w, packed, bands):
    outputs = w.shape[0] // packed.shape[0]
    inputs, taps, columns = w.shape[1:]
    for unit in range(begin, end):
        g, band = unit // len(bands), bands[unit % len(bands)]
        channel, lanes, start = band[2], band[3], band[4]
        target = packed[g, start : start + taps * inputs * columns * lanes]
        tile = target.reshape((taps, inputs, columns, lanes))
        for lane in range(min(lanes, outputs - channel)):
            source = w[g * outputs + channel + lane]
            for c in range(inputs):
                for t in range(taps):
                    for k in range(columns):
                        tile[t, c, k, lane] = source[c, t, k]


@jit
def _pack_for_data(begin, end, w, packed, bands):
    inputs = w.shape[0] // packed.shape[0]
    outputs, taps, columns = w.shape[1:]
    for unit in range(begin, end):
        g, band = unit // len(bands), bands[unit % len(bands)]
        channel, lanes, start = band[2], band[3], band[4]
        target = packed[g, start : start + taps * inputs * columns * lanes]
        tile = target.reshape((taps, inputs, columns, lanes))
        for m in range(inputs):
            source = w[g * inputs + m]
            for lane in range(min(lanes, outputs - channel)):
                for t in range(taps):
                    for k in range(columns):
                        tile[t, m, k, lane] = source[channel + lane, t, k]


@jit
def _fill_row(out, start, width, plane, channels, bias, slope):
    """Set a row that no tap reaches to the bias."""
    for channel in range(channels):
        value = bias[channel]
        if value < 0:
            value *= slope
        first = start + channel * plane
        out[first : first + width] = value


@jit
def _convolve_rows(
    begin, end, x, packed, bias, slope, y, tiles, bands, rows, row_starts, offsets, sizes
):
    inputs, outputs, pixels_in, pixels_out, width, group, parts = sizes
    channel_step, plane, count = 4 * pixels_in, 4 * pixels_out, len(row_starts) - 1
    for unit in range(begin, end):
        band, part = unit // parts, unit % parts
        first_tile, last_tile, channel, lanes, weight = bands[band % len(bands)]
        plane_of_image = band // len(bands)
        g = plane_of_image % group
        source = x.ctypes.data + plane_of_image * inputs * channel_step
        first_out = (plane_of_image * outputs + channel) * pixels_out
        weights = packed[g].ctypes.data + 4 * weight
        biases = bias[g, channel:]
        valid = min(lanes, outputs - channel)
        row_step = 4 * inputs * len(offsets) * lanes
        for row in range(count * part // parts, count * (part + 1) // parts):
            taps = row_starts[row + 1] - row_starts[row]
            at = first_out + row * width
            if taps == 0:
                _fill_row(y, at, width, pixels_out, valid, biases, slope[0])
                continue
            for t in range(first_tile, last_tile):
                call(
                    tiles[t, 0],
                    source + tiles[t, 1],
                    channel_step,
                    rows.ctypes.data + 16 * row_starts[row],
                    taps,
                    inputs,
                    offsets.ctypes.data,
                    weights,
                    row_step,
                    biases.ctypes.data,
                    slope.ctypes.data,
                    y.ctypes.data + 4 * at + tiles[t, 2],
                    plane,
                    valid,
                )
