"""Convolutions with held weights, as sums of products over the taps of the kernel.

An image becomes lines of pairs of channels, one for each pixel, with zeros around it; with a stride
there is a plane of lines for each phase that taps read.  The pixels that a tap reads for successive
outputs are then successive lines.  At the end of an image's row the product goes on through the
zeros: these sums are left out.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from pycaffe_dist import storage
from pycaffe_dist.kernels.compiling import aligned, jit
from pycaffe_dist.kernels.im2col import ConvolutionGeometry
from pycaffe_dist.kernels.jit import workspace
from pycaffe_dist.kernels.jit.bfloat16.kernels import LINE, PAIRS, EndKernel, RoundKernel
from pycaffe_dist.kernels.jit.bfloat16.packing import MatrixPacking, steps_of
from pycaffe_dist.kernels.jit.bfloat16.units import Unit, switch_tiles
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.constants import factors
from pycaffe_dist.threads import parallel_for

# Bytes of lines that stay in a second-level cache while all bands of weights use them, and the
# fewest units of work that keep the threads busy.
PART_BYTES, ENOUGH_UNITS = 1 << 19, 16
# Fewer channels than this leave most of a step empty.
FEWEST_CHANNELS = 16


def suits(w_shape: tuple[int, ...], geometry: ConvolutionGeometry) -> bool:
    """Tell whether a `Convolution` is possible, and its steps are at least half full."""
    return len(geometry.kernel) == 2 and w_shape[1] >= FEWEST_CHANNELS


class Convolution:
    """The plan of one convolution of images with two spatial axes; see `kernels.convolution`.

    With ``adds``, forward adds to y.
    """

    def __init__(
        self,
        unit: Unit,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        geometry: ConvolutionGeometry,
        adds: bool = False,
    ):
        self._weights = geometry.group, w_shape[0] // geometry.group, *w_shape[1:]
        images, (group, outputs, depth, *_) = x_shape[0], self._weights
        size, output = x_shape[2:], geometry.output_shape(x_shape[2:])
        if geometry.kernel == geometry.stride == (1, 1) and not any(geometry.pad):
            # The pixels of an image are one row.
            size, output = (1, math.prod(size)), (1, math.prod(size))
        phases, taps = _taps(geometry)
        height, width = (length + most for length, most in zip(output, taps.max(axis=0)[1:]))
        plane, blocks_of_channels = height * width, steps_of(depth)
        lines = blocks_of_channels * len(phases) * plane
        # All taps of the same channels follow one another.
        starts = (
            taps @ [plane, width, 1] + len(phases) * plane * np.arange(blocks_of_channels)[:, None]
        )
        self._offsets = LINE * starts.reshape(-1)
        self._packing = MatrixPacking(outputs, 2 * PAIRS * len(self._offsets), unit.columns, True)
        columns = (output[0] - 1) * width + output[1]
        rows = unit.rows_for(columns)
        blocks, bands = -(-columns // rows), -(-outputs // unit.columns)
        parts = max(-(-LINE * lines // PART_BYTES), -(-ENOUGH_UNITS // (images * group * bands)))
        parts = min(blocks, parts)
        self._units = images * group * parts * bands
        self._planes = images * group * blocks_of_channels * len(phases)
        # The last block may read what lies behind the last plane.
        self._words = PAIRS * (images * group * lines + rows)
        last = columns - (blocks - 1) * rows, outputs - (bands - 1) * unit.columns
        ends = address_of(EndKernel(adds), unit.target)
        self._kernels = np.append(unit.kernels(rows, *last), [ends, unit.target.lanes])
        sizes = group, bands, parts, blocks, outputs, rows, unit.columns, len(self._offsets)
        self._sizes = np.array([*sizes, *output, width, lines], np.int64)
        self._phases = np.array(phases, np.int64)
        self._round = address_of(RoundKernel(geometry.stride[1]), unit.target)
        image = depth, *size, blocks_of_channels, height, width, unit.target.lanes
        self._image = np.array([*image, *geometry.stride, *geometry.pad], np.int64)
        self._no_bias = np.zeros(w_shape[0], np.float32)
        self._held = np.empty(0, np.float32)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return self._held.nbytes

    def hold(self, w: np.ndarray) -> None:
        """Take the weights for every later `forward`."""
        group, outputs, depth, *kernel = self._weights
        channels = 2 * PAIRS
        padded = np.zeros(
            (group, outputs, steps_of(depth) * channels, math.prod(kernel)), np.float32
        )
        padded[:, :, :depth] = w.reshape(group, outputs, depth, -1)
        steps = padded.reshape(group, outputs, -1, channels, math.prod(kernel)).swapaxes(3, 4)
        self._held = storage.aligned_zeros(group * self._packing.words, np.dtype(np.float32))
        for matrix, part in zip(steps, self._held.view(np.uint32).reshape(group, -1)):
            self._packing.run(matrix.reshape(-1), part)

    def forward(self, x: Any, w: None, b: Any, y: Any, relu_slope: float | None = None) -> None:
        """Set y to x * w + b with the held weights, then to y·relu_slope where y < 0, if given."""
        bias = self._no_bias if b is None else b.reshape(-1)
        slope = factors(1.0 if relu_slope is None else relu_slope)
        with workspace.shared.lend(self._words) as lines:
            args = x.reshape(-1), lines, self._phases, self._round, self._image
            parallel_for(_round_planes, self._planes, *args)
            args = lines, self._offsets, self._held, bias, slope, y.reshape(-1), self._kernels
            parallel_for(_convolution_units, self._units, *args, self._sizes)


def _taps(geometry: ConvolutionGeometry) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Return the phases that taps read, and for each tap (number of its phase, row, column).

    Row and column are what the tap reads for the first output, in its phase's plane.
    """
    (rows, columns), (down, across), dilation = geometry.kernel, geometry.stride, geometry.dilation
    taps = [
        (divmod(i * dilation[0], down), divmod(j * dilation[1], across))
        for i, j in itertools.product(range(rows), range(columns))
    ]
    phases = sorted({(i[1], j[1]) for i, j in taps})
    return phases, np.array([(phases.index((i[1], j[1])), i[0], j[0]) for i, j in taps], np.int64)


@jit
def _round_planes(begin, end, x, lines, phases, kernel, sizes):
    depth, rows, columns, steps, height, width, lanes, down, across, top, left = sizes
    for unit in range(begin, end):
        phase, step = unit % len(phases), unit // len(phases) % steps
        part = unit // len(phases) // steps  # an image and a group of its channels
        first_row, first_column = phases[phase, 0] - top, phases[phase, 1] - left
        # The rows and columns of the plane that lie in the image.
        i, j = max(0, -(first_row // down)), max(0, -(first_column // across))
        i_end = max(i, min(height, (rows - first_row + down - 1) // down))
        j_end = max(j, min(width, (columns - first_column + across - 1) // across))
        plane = lines[unit * height * width * PAIRS : (unit + 1) * height * width * PAIRS]
        plane[: i * width * PAIRS] = 0
        plane[i_end * width * PAIRS :] = 0
        channel = step * 2 * PAIRS
        source = x.ctypes.data + 4 * (part * depth + channel) * rows * columns
        for row in range(i, i_end):
            at = row * width * PAIRS
            plane[at : at + j * PAIRS] = 0
            plane[at + j_end * PAIRS : at + width * PAIRS] = 0
            first = (row * down + first_row) * columns + first_column
            for column in range(j, j_end, lanes):
                call(
                    kernel,
                    source + 4 * (first + column * across),
                    4 * rows * columns,
                    depth - channel,
                    plane.ctypes.data + LINE * (row * width + column),
                    min(lanes, j_end - column),
                )


@jit
def _convolution_units(begin, end, lines, offsets, w, bias, slope, y, kernels, sizes):
    group, bands, parts, blocks, outputs, rows, columns, steps = sizes[:8]
    height, across, width, image_lines = sizes[8:]
    all_pixels, lanes = (height - 1) * width + across, kernels[7]
    sums, valid = aligned(rows * columns), np.empty(rows, np.int64)
    switch_tiles(kernels, 1)
    for unit in range(begin, end):
        band, part = unit % bands, unit // bands % parts
        image = unit // bands // parts  # an image and a group of its channels
        channels = min(columns, outputs - band * columns)
        channel = image % group * outputs + band * columns
        out = (image // group * group * outputs + channel) * height * across
        for block in range(blocks * part // parts, blocks * (part + 1) // parts):
            first = block * rows
            call(
                kernels[2 * int(block == blocks - 1) + int(band == bands - 1)],
                lines.ctypes.data + LINE * (image * image_lines + first),
                offsets.ctypes.data,
                w.ctypes.data + LINE * (image % group * bands + band) * columns * steps,
                steps,
                sums.ctypes.data,
            )
            count, column = 0, first % width
            pixel = first // width * across + min(column, across)
            for row in range(min(rows, all_pixels - first)):
                valid[count] = row
                count += int(column < across)
                column = column + 1 if column + 1 < width else 0
            for i in range(0, count, lanes):
                call(
                    kernels[6],
                    sums.ctypes.data,
                    4 * (columns if channels > columns // 2 else columns // 2),
                    valid.ctypes.data + 8 * i,
                    min(lanes, count - i),
                    bias.ctypes.data + 4 * channel,
                    slope.ctypes.data,
                    y.ctypes.data + 4 * (out + pixel + i),
                    4 * height * across,
                    channels,
                )
    switch_tiles(kernels, 0)
