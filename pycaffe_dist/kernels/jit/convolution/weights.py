"""The weight gradient of convolutions, on `OuterKernel`.

Lanes are output channels of dy, which is transposed piece by piece; x is broadcast in place. A tile
of sums belongs to some input channels at one kernel position.  With few channels it belongs to some
kernel columns of one kernel row, and x is read from a copy with padded rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pycaffe_dist.kernels.compiling import aligned_zeros, indices, jit
from pycaffe_dist.kernels.im2col import ConvolutionGeometry, Im2colPlan, valid_range
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.constants import constants
from pycaffe_dist.kernels.jit.gemm.kernels import OuterKernel, TransposeKernel
from pycaffe_dist.kernels.jit.gemm.tiles import lane_tiles, rows_per_tile
from pycaffe_dist.kernels.jit.parts import lend_parts
from pycaffe_dist.threads import parallel_for, thread_count

# Pixels whose transposed dy stays in the first-level cache while all tiles use it.
PIXELS_PER_PIECE = 256
FEW_CHANNELS = 6
UNITS_PER_THREAD = 3
# With few channels the images are cut into this number of parts, whose sums are added in the end.
# It does not depend on the threads: the order of additions shows in the result.
PARTS = 12


class Tiling(NamedTuple):
    """How a lane tile cuts the broadcast values: ``tiles`` of ``rows``, offsets from ``first``."""

    rows: int
    tiles: int
    first: int


class WeightGradient:
    """The weight gradient of one convolution; adds to dw."""

    def __init__(
        self,
        target: Target,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        geometry: ConvolutionGeometry,
    ):
        plan = Im2colPlan(x_shape[2:], geometry)
        self.images, self.group = x_shape[0], geometry.group
        self.channels, self.outputs = w_shape[1], w_shape[0] // geometry.group
        self._width, self._columns = x_shape[-1], geometry.kernel[-1]
        self._padding = geometry.pad[-1]
        self._width_y, self._taps = plan.output[-1], len(plan.rows)
        self._rows_x, self._rows_y = plan.pixels_in // self._width, plan.rows.shape[1]
        # Sums by kernel columns need no column limits, because the copy's rows are padded.
        self.by_columns = self.channels < FEW_CHANNELS and self._columns > 1
        self._row_pitch = self._width
        # With few channels there are few tiles, and threads cannot share the transposition of dy.
        self.parts = min(PARTS, self.images) if self.by_columns else 1
        if self.by_columns:
            self._row_pitch += 2 * self._padding
        self._runs, self._run_starts, self._row_step = self._find_runs(plan, geometry)
        self._passes = self._make_passes(geometry)
        self._make_tiles(target, geometry)
        self._transpose = address_of(TransposeKernel(), target)
        self._lanes = target.lanes

    def _find_runs(self, plan: Im2colPlan, geometry: ConvolutionGeometry):
        """Return (first row of y, rows, first row of x) of every run of evenly spaced row pairs."""
        step = geometry.stride[-2] if len(geometry.stride) > 1 else 0
        runs: list[tuple[int, int, int]] = []
        starts = [0]
        for row_starts in plan.rows.tolist():
            begin = len(runs)
            for y, start in enumerate(row_starts):
                if start < 0:
                    continue
                x = start // self._width
                if len(runs) > begin:
                    first_y, count, first_x = runs[-1]
                    if first_y + count == y and first_x + count * step == x:
                        runs[-1] = first_y, count + 1, first_x
                        continue
                runs.append((y, 1, x))
            starts.append(len(runs))
        return np.array(runs, np.int64).reshape(-1, 3), np.array(starts, np.int64), step

    def _make_passes(self, geometry: ConvolutionGeometry) -> np.ndarray:
        """Return (kernel row, first column of y, columns, x offset, dw offset) of every pass."""
        stride, dilation = geometry.stride[-1], geometry.dilation[-1]
        passes = []
        for t in range(self._taps):
            if self.by_columns:
                passes.append((t, 0, self._width_y, 0, t * self._columns))
                continue
            for k in range(self._columns):
                offset = k * dilation - self._padding
                low, high = valid_range.py_func(offset, stride, self._width, self._width_y)
                place = t * self._columns + k
                passes.append((t, low, high - low, low * stride + offset, place))
        return np.array(passes, np.int64)

    def _make_tiles(self, target: Target, geometry: ConvolutionGeometry) -> None:
        plane = self._rows_x * self._row_pitch
        taps = self._taps * self._columns
        if self.by_columns:
            pairs = [(c, k) for c in range(self.channels) for k in range(self._columns)]
            offsets = [4 * (c * plane + k * geometry.dilation[-1]) for c, k in pairs]
            places = [c * taps + k for c, k in pairs]
        else:
            offsets = [4 * c * plane for c in range(self.channels)]
            places = [c * taps for c in range(self.channels)]
        self._places = np.array(places, np.int64)
        tilings: dict[int, Tiling] = {}
        table: list[int] = []
        bands, channel = [], 0
        for vectors in lane_tiles(-(-self.outputs // target.lanes)):
            if vectors not in tilings:
                rows = rows_per_tile(len(offsets), vectors, target)
                tiles = -(-len(offsets) // rows)
                tilings[vectors] = Tiling(rows, tiles, len(table))
                # The last tile's surplus rows repeat the last value; their sums are dropped.
                table += offsets + [offsets[-1]] * (tiles * rows - len(offsets))
            tiling = tilings[vectors]
            kernel = address_of(OuterKernel(tiling.rows, vectors), target)
            bands.append((kernel, channel, vectors, *tiling))
            channel += vectors * target.lanes
        self._bands, self._offsets = np.array(bands, np.int64), np.array(table, np.int64)
        pixels = self._rows_y * self._width_y
        self._piece_images = max(1, min(self.images, PIXELS_PER_PIECE // pixels))
        rows = -(-PIXELS_PER_PIECE // self._width_y)
        # A piece that is half as large again is better than a small last one.
        whole = self._piece_images > 1 or self._rows_y < 1.5 * rows
        self._piece_rows = self._rows_y if whole else rows
        self._stride = geometry.stride[-1]

    def run(self, x: np.ndarray, dy: np.ndarray, dw: np.ndarray) -> None:
        """Add the gradient to dw."""
        lane_units = self.group * len(self._bands)
        most = int(self._bands[:, 4].min())
        # Each block of input tiles transposes dy again: no more blocks than threads need.
        blocks = max(1, min(-(-UNITS_PER_THREAD * thread_count() // lane_units), most))
        if thread_count() == 1 or self.parts > 1:
            blocks = 1
        sizes = (
            *(self.images, self.group, self.channels, self.outputs, self._rows_x, self._width),
            *(self._rows_y, self._width_y, self._row_pitch, self._padding, self._row_step),
            *(self._stride, self._piece_images, self._piece_rows, int(self.by_columns)),
            *(self._lanes, self._transpose, blocks),
        )
        args = (
            *(self._bands, self._offsets, self._runs, self._run_starts, self._passes),
            *(self._places, constants(*sizes)),
        )
        x, dy, units = x.reshape(-1), dy.reshape(-1), lane_units * blocks * self.parts
        if self.parts == 1:
            parallel_for(_gradient_units, units, x, dy, dw.reshape(1, -1), *args)
            return
        with lend_parts(self.parts, dw) as parts:
            parallel_for(_gradient_units, units, x, dy, parts, *args)


@jit
def _transpose_piece(dy, dy_t, first, rows_valid, plane, pixels, vectors, lanes, transpose):
    """dy_t[p, lane] = dy[lane, first + p] for ``pixels`` pixels; lanes without a channel are 0."""
    source, target = dy.ctypes.data, dy_t.ctypes.data
    row = 4 * vectors * lanes
    for j in range(vectors):
        rows = min(lanes, rows_valid - j * lanes)
        if rows <= 0:
            continue
        base = source + 4 * (first + j * lanes * plane)
        for p in range(0, pixels, lanes):
            call(
                transpose,
                base + 4 * p,
                4 * plane,
                target + p * row + 4 * j * lanes,
                row,
                rows,
                min(lanes, pixels - p),
            )


@jit
def _pad_rows(x, padded, first, rows, width, padding):
    pitch = width + 2 * padding
    for r in range(rows):
        target = padded[r * pitch + padding : r * pitch + padding + width]
        source = x[first + r * width : first + (r + 1) * width]
        for i in range(width):
            target[i] = source[i]


@jit
def _add_sums(sums, dw, base, per_output, band, tiles, passes, places, outputs):
    """dw += sums, whose shape is (tile, pass, row, lane)."""
    channel, rows, lanes, count = band[1], band[3], sums.shape[3], len(passes)
    flat, most = sums.reshape(-1), min(tiles[1] * rows, len(places))
    # The sums stay in the cache, so the loops follow the order of dw.
    for lane in range(min(lanes, outputs - channel)):
        first = base + (channel + lane) * per_output
        of_output = dw[first : first + per_output]
        for p in range(count):
            for tile in range(tiles[0], tiles[1]):
                begin = ((tile - tiles[0]) * count + p) * rows * lanes + lane
                for i in indices(tile * rows, min(most, (tile + 1) * rows)):
                    place = np.uint64(places[i] + passes[p, 4])
                    of_output[place] += flat[np.uint64(begin)]
                    begin += lanes


@jit
def _add_piece(x, steps, dy_t, y_range, band, tiles, offsets, runs, run_starts, passes, sums):
    """Add the products of rows ``y_range`` of dy, transposed, to the sums of ``tiles``.

    x is an address; ``steps`` are the floats between its images and rows, the row and column stride
    of the convolution, the number of images, and y's width.
    """
    image_step, pitch, row_step, stride, count, width_y = steps
    kernel, rows, first_offset, lanes = band[0], band[3], band[5], dy_t.shape[2]
    for tile in range(tiles[0], tiles[1]):
        table = offsets.ctypes.data + 8 * (first_offset + tile * rows)
        for p in range(len(passes)):
            tap, left, columns, x_offset, _ = passes[p]
            if columns == 0:
                continue
            for r in range(run_starts[tap], run_starts[tap + 1]):
                low = max(y_range[0], runs[r, 0])
                high = min(y_range[1], runs[r, 0] + runs[r, 1])
                if high <= low:
                    continue
                row = runs[r, 2] + (low - runs[r, 0]) * row_step
                call(
                    kernel,
                    x + 4 * (row * pitch + x_offset),
                    4 * image_step,
                    4 * row_step * pitch,
                    4 * stride,
                    table,
                    dy_t.ctypes.data + 4 * ((low - y_range[0]) * width_y + left) * lanes,
                    4 * dy_t.shape[1] * lanes,
                    4 * width_y * lanes,
                    count,
                    high - low,
                    columns,
                    sums[tile - tiles[0], p].ctypes.data,
                )


@jit
def _gradient_units(
    begin, end, x, dy, parts, bands, offsets, runs, run_starts, passes, places, sizes
):
    """Add the sums over parts of the images to ``parts``, a gradient for each part."""
    images, group, channels, outputs, rows_x, width = sizes[:6]
    rows_y, width_y, pitch, padding, row_step = sizes[6:11]
    stride, piece_images, piece_rows, by_columns, lanes, transpose, blocks = sizes[11:18]
    plane_x, plane_y, padded_image = rows_x * width, rows_y * width_y, channels * rows_x * pitch
    copies = by_columns and padding > 0
    padded = np.zeros(piece_images * padded_image if copies else 1, np.float32)
    per_output = parts.shape[1] // (group * outputs)
    for unit in range(begin, end):
        part, index = unit % len(parts), unit // len(parts)
        band, block = bands[index // blocks % len(bands)], index % blocks
        g = index // blocks // len(bands)
        channel, vectors, rows, tiles = band[1], band[2], band[3], band[4]
        mine = (tiles * block // blocks, tiles * (block + 1) // blocks)
        shape = (mine[1] - mine[0], len(passes), rows, vectors * lanes)
        sums = aligned_zeros(shape[0] * shape[1] * shape[2] * shape[3]).reshape(shape)
        shape_t = (piece_images, piece_rows * width_y, vectors * lanes)
        dy_t = aligned_zeros(shape_t[0] * shape_t[1] * shape_t[2]).reshape(shape_t)
        last = images * (part + 1) // len(parts)
        for n in range(images * part // len(parts), last, piece_images):
            count, image_step = min(piece_images, last - n), group * channels * plane_x
            first_x = n * image_step + g * channels * plane_x
            source = x.ctypes.data + 4 * first_x
            if copies:
                for i in range(count):
                    copy, first = padded[i * padded_image :], first_x + i * image_step
                    _pad_rows(x, copy, first, channels * rows_x, width, padding)
                source, image_step = padded.ctypes.data, padded_image
            steps = (image_step, pitch, row_step, stride, count, width_y)
            for y in range(0, rows_y, piece_rows):
                stop = min(rows_y, y + piece_rows)
                for i in range(count):
                    first = (((n + i) * group + g) * outputs + channel) * plane_y + y * width_y
                    valid, pixels = min(vectors * lanes, outputs - channel), (stop - y) * width_y
                    _transpose_piece(
                        dy, dy_t[i], first, valid, plane_y, pixels, vectors, lanes, transpose
                    )
                piece = (y, stop)
                _add_piece(
                    source, steps, dy_t, piece, band, mine, offsets, runs, run_starts, passes, sums
                )
        base = g * outputs * per_output
        _add_sums(sums, parts[part], base, per_output, band, mine, passes, places, outputs)
