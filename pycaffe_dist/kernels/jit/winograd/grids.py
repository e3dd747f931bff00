"""How planes are cut into Winograd's tiles."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pycaffe_dist.kernels.compiling import aligned_zeros, jit
from pycaffe_dist.kernels.im2col import ConvolutionGeometry
from pycaffe_dist.kernels.jit.codegen.calling import call

# Bytes of a plane's rows, with lanes for channels, that stay in the first-level cache.
PADDED_BYTES = 1 << 15


class Grids(NamedTuple):
    """Planes of height × width as strips × tiles of grids, ``step`` pixels apart, ``reach`` wide.

    ``piece`` strips of a plane are handled together, ``pieces`` times in each plane; ``top`` and
    ``left`` are padding, ``pitch`` is the length of a padded row.
    """

    height: int
    width: int
    strips: int
    tiles: int
    step: int
    reach: int
    top: int
    left: int
    pitch: int
    piece: int
    pieces: int
    lanes: int


def cut(
    spatial: tuple[int, ...],
    counts: tuple[int, ...],
    step: int,
    reach: int,
    pads: tuple[int, ...],
    lanes: int,
    most: int,
) -> Grids:
    """Return the grids of a plane; a piece has ``most`` tiles at most, or is one strip."""
    strips, tiles = counts
    pitch = (tiles - 1) * step + reach
    rows = PADDED_BYTES // (4 * lanes * pitch)
    piece = max(1, min((rows - reach) // step + 1, most // tiles, strips))
    piece = -(-strips // -(-strips // piece))
    pieces = -(-strips // piece)
    return Grids(
        *(spatial[0], spatial[1], strips, tiles, step, reach, pads[0], pads[1]),
        *(pitch, piece, pieces, lanes),
    )


@jit
def padded_rows(grids: Grids) -> np.ndarray:
    """Return zeros for a piece's padded rows, and for the last vector, which ends beyond them."""
    rows = (grids.piece - 1) * grids.step + grids.reach
    return aligned_zeros((rows * grids.pitch + grids.lanes) * grids.lanes)


@jit
def tiles_before(piece: int, grids: Grids) -> int:
    """Return the number of tiles in the pieces before ``piece``, over all images."""
    image, rest = piece // grids.pieces, piece % grids.pieces
    return (image * grids.strips + rest * grids.piece) * grids.tiles


@jit
def _read_piece(
    planes: int, channels: int, piece: int, grids: Grids, padded: np.ndarray, gather: int
) -> int:
    """Read a piece of ``channels`` planes, from address ``planes`` on; return its strips.

    ``padded`` are `padded_rows` of these grids.
    """
    first = piece % grids.pieces * grids.piece
    count = min(grids.piece, grids.strips - first)
    top, rows = first * grids.step - grids.top, (count - 1) * grids.step + grids.reach
    low = min(rows, max(0, -top))
    high = max(low, min(rows, grids.height - top))
    line = grids.pitch * grids.lanes
    padded[: low * line] = 0
    if high > low:
        call(
            gather,
            planes + 4 * (top + low) * grids.width,
            4 * grids.height * grids.width,
            4 * grids.width,
            high - low,
            grids.width,
            channels,
            padded.ctypes.data + 4 * (low * line + grids.left * grids.lanes),
            4 * line,
        )
    padded[high * line : rows * line] = 0
    return count


@jit
def transform_piece(
    planes: int,
    channels: int,
    piece: int,
    grids: Grids,
    padded: np.ndarray,
    gather: int,
    transform: int,
    to: int,
    steps: tuple[int, int, int],
) -> None:
    """Read a piece as `_read_piece` does, and write its transformed grids from address ``to`` on.

    ``steps`` are the bytes from row to row and column to column of a grid, and from grid to grid.
    """
    strips = _read_piece(planes, channels, piece, grids, padded, gather)
    vector, line = 4 * grids.lanes, 4 * grids.lanes * grids.pitch
    call(
        transform,
        padded.ctypes.data,
        line,
        vector,
        grids.step * vector,
        grids.step * line,
        to,
        steps[0],
        steps[1],
        steps[2],
        steps[2] * grids.tiles,
        grids.tiles,
        strips,
    )


def threes(count: int) -> list[int]:
    """Split ``count`` vectors of lanes into tiles of three; the rest into two or one."""
    if count % 3 == 1 and count > 1:
        return [3] * (count // 3 - 1) + [2, 2]
    return [3] * (count // 3) + [count % 3] * (count % 3 > 0)


def odd_lines(floats: int) -> int:
    """Return a size of at least ``floats`` whose multiples use different cache sets."""
    return (-(-floats // 16) | 1) * 16


class Direction(NamedTuple):
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
    ) -> Direction:
        """Return the shapes of the data gradient if ``backward``, else of forward."""
        inner, outer = x_shape[2:], geometry.output_shape(x_shape[2:])
        inputs, outputs = w_shape[1], w_shape[0] // geometry.group
        if not backward:
            return cls(inputs, outputs, inner, outer, geometry.pad)
        pads = tuple(kernel - 1 - pad for kernel, pad in zip(geometry.kernel, geometry.pad))
        return cls(outputs, inputs, outer, inner, pads)

    def multiplications(self, taps: int, stride: int = 1) -> int:
        """Return the number of products, without padding, of a pair of channels in an image."""
        return math.prod(
            sum(0 <= y * stride + k - pad < extent for y in range(out) for k in range(taps))
            for extent, out, pad in zip(self.inner, self.outer, self.pads)
        )
