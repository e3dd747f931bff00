"""Whether Winograd is worth its transforms, and the best tiles: a model of the cycles."""

from __future__ import annotations

from typing import Literal

from pycaffe_dist.kernels.im2col import ConvolutionGeometry
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.winograd.convolution import ENOUGH_TILES, keeps_filters
from pycaffe_dist.kernels.jit.winograd.grids import Direction
from pycaffe_dist.kernels.jit.winograd.phases import phase_shapes

Pass = Literal["forward", "data", "weights"]

# A tile's outputs along each side; the kernels that `toom_cook.POINTS` allows.
TILES = (4, 2)
KERNELS = (3, 5)
# Measured cycles to transform one tile of a vector of channels, by the size of transformed tiles:
# inputs that are stored first (with the traffic of the third-level cache), inputs that are used at
# once, outputs, and the weights of one input channel.
KEPT_CYCLES = {4: 250, 6: 550, 8: 950}
INPUT_CYCLES = {4: 190, 6: 420, 8: 700}
OUTPUT_CYCLES = {4: 160, 6: 320, 8: 500}
WEIGHT_CYCLES = {4: 160, 6: 300, 8: 500}
# The same in inference, where weights come from memory and are transformed at once: up to
# `FEW_WEIGHTS` bytes of weights, and more.  The other kernels read a vector in `READ_CYCLES`.
HELD_WEIGHT_CYCLES = {4: (180, 255), 6: (390, 640), 8: (700, 1100)}
FEW_WEIGHTS, READ_CYCLES = 1 << 20, 9
# Cycles in which the row kernel packs one weight.
PACKING_CYCLES = 4
# The fractions of the peak that products reach here, after the first steps of each, and elsewhere.
EFFICIENCY, DIRECT_EFFICIENCY = 0.85, {"forward": 0.88, "data": 0.88, "weights": 0.85}
STARTING_STEPS = 6
LEAST_GAIN, LEAST_GAIN_ALONE = 1.1, 1.05
# Cycles to split strided inputs into phases, for one value.
SPLITTING_CYCLES = 2
# The number of images over which the model spreads the work on the weights, whatever the batch: a
# rank with a part of the batch must compute the same as one process with the whole batch.
NOMINAL_IMAGES = 16


def best_tile(
    target: Target,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    geometry: ConvolutionGeometry,
    direction: Pass,
    alone: bool = False,
) -> int:
    """Return the tiles with which Winograd is fastest, or 0 where it is not worth it.

    ``alone``: for these images and for weights that are held, whatever is best for larger batches.
    """
    kernel = geometry.kernel
    square = len(kernel) == 2 and kernel[0] == kernel[1] and kernel[0] in KERNELS
    if (
        not square
        or {*geometry.stride, *geometry.dilation} != {1}
        or max(geometry.pad) >= kernel[0]
    ):
        return 0
    shapes = Direction.of(x_shape, w_shape, geometry, direction == "data")
    direct = _direct_cycles(target, shapes, geometry, direction)
    weights, images = shapes.inputs * shapes.outputs * kernel[0] ** 2, x_shape[0] if alone else 0
    if images:
        direct += weights / target.lanes * READ_CYCLES / images
    elif direction != "weights":
        direct += weights * PACKING_CYCLES / NOMINAL_IMAGES
    cycles = {tile: _cycles(target, shapes, kernel[0], tile, direction, images) for tile in TILES}
    best = min(TILES, key=lambda tile: cycles[tile])
    least = LEAST_GAIN_ALONE if alone else LEAST_GAIN
    return best if cycles[best] * least < direct else 0


def best_phase_tile(
    target: Target,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    geometry: ConvolutionGeometry,
    direction: Pass,
    alone: bool = False,
) -> int:
    """Return the tiles for the phases of a strided convolution, or 0; always 0 for "data"."""
    phases = phase_shapes(x_shape, w_shape, geometry)
    if phases is None or direction == "data" or phases[1][-1] not in KERNELS:
        return 0
    shapes = Direction.of(x_shape, w_shape, geometry, False)
    direct = _direct_cycles(target, shapes, geometry, direction)
    shapes = Direction.of(*phases, False)
    splitting = SPLITTING_CYCLES * shapes.inputs * shapes.inner[0] * shapes.inner[1]
    taps, images = phases[1][-1], x_shape[0] if alone else 0
    cycles = {tile: _cycles(target, shapes, taps, tile, direction, images) for tile in TILES}
    best = min(TILES, key=lambda tile: cycles[tile])
    return best if (cycles[best] + splitting) * LEAST_GAIN < direct else 0


def _direct_cycles(
    target: Target, shapes: Direction, geometry: ConvolutionGeometry, direction: Pass
) -> float:
    """Return the cycles of the other kernels' products for one image and group."""
    pairs = shapes.inputs * -(-shapes.outputs // target.lanes)
    products = pairs * shapes.multiplications(geometry.kernel[0], geometry.stride[0])
    return products / (2 * DIRECT_EFFICIENCY[direction])


def _cycles(
    target: Target, shapes: Direction, taps: int, tile: int, direction: Pass, images: int
) -> float:
    """Return the cycles for one image and group, of ``images`` in inference, or of a batch."""
    size, tiles = taps + tile - 1, 1
    for extent in shapes.outer:
        tiles *= -(-extent // tile)
    inputs, outputs = -(-shapes.inputs // target.lanes), -(-shapes.outputs // target.lanes)
    steps = shapes.inputs + (STARTING_STEPS if direction != "weights" else 0)
    products = size**2 * steps * outputs / (2 * EFFICIENCY)
    filter_bytes = 4 * size**2 * shapes.inputs * outputs * target.lanes
    served = tiles * images if images else ENOUGH_TILES
    kept = direction == "weights" or not keeps_filters(filter_bytes, served)
    read = KEPT_CYCLES if kept else INPUT_CYCLES
    written = KEPT_CYCLES if direction == "weights" else OUTPUT_CYCLES
    per_weight = WEIGHT_CYCLES[size] / NOMINAL_IMAGES
    if images:
        many = 4 * taps**2 * shapes.inputs * shapes.outputs > FEW_WEIGHTS
        per_weight = HELD_WEIGHT_CYCLES[size][many] / images
    weights = shapes.inputs * outputs * per_weight
    return tiles * (products + inputs * read[size] + outputs * written[size]) + weights
