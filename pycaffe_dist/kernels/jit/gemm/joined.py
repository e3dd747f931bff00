"""Matrix products with many narrow images, whose columns are joined to fill the tiles."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.jit import workspace
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.gemm.kernels import PanelKernel
from pycaffe_dist.kernels.jit.gemm.products import VECTORS, FlatProduct
from pycaffe_dist.threads import parallel_for

# Wider images fill their tiles well enough: copying them costs more.
NARROW_TILES = 2


def is_narrow(target: Target, pixels: int, images: int) -> bool:
    """Tell whether images are worth joining."""
    width = VECTORS * target.lanes
    return images > 1 and pixels % width != 0 and pixels < NARROW_TILES * width


class JoinedProduct:
    """y[i] (M, N) = A (M, K) · b[i] (K, N) for ``images``, as one product."""

    def __init__(self, target: Target, m: int, n: int, k: int, images: int):
        self._product = FlatProduct(target, m, images * n, k, laid_out=True)
        self._m, self._k, lanes = m, k, target.lanes
        self._copies = np.array(
            [address_of(PanelKernel(1, masked), target) for masked in (False, True)], np.int64
        )
        self._sizes = np.array([images, n, VECTORS * lanes, lanes], np.int64)
        self._tiles = -(-images * n // (VECTORS * lanes))
        self._width = VECTORS * lanes

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return self._product.scratch_bytes

    def pack(self, a: np.ndarray) -> None:
        """Copy A for every later `run` without an a."""
        self._product.pack(a)

    def run(
        self,
        a: np.ndarray | None,
        b: np.ndarray,
        y: np.ndarray,
        transposed: bool = False,
        bias: np.ndarray | None = None,
        slope: float = 1.0,
    ) -> None:
        """Set y to A·b + bias per row, rectified with ``slope``; see `FlatProduct.run`."""
        columns = self._tiles * self._width
        with workspace.shared.lend((self._k + self._m) * columns) as memory:
            panels, joined = memory[: self._k * columns], memory[self._k * columns :]
            common = self._copies, self._sizes
            parallel_for(_join, self._tiles, b.reshape(-1), panels, self._k, *common)
            self._product.run(a, panels, joined, transposed, bias, slope)
            images = int(self._sizes[0])
            parallel_for(_part, images, joined, y.reshape(-1), self._m, *common)


@jit
def _copy(source, source_row, target, target_row, rows, columns, lanes, copies):
    """Copy a few columns of a matrix; addresses, and bytes between rows."""
    for first in range(0, columns, lanes):
        left = min(lanes, columns - first)
        kernel = copies[int(left < lanes)]
        at, to = source + 4 * first, target + 4 * first
        call(kernel, at, source_row, rows, 1, to, target_row, 0, left)


@jit
def _join(begin, end, b, panels, depth, copies, sizes):
    """Fill panels (tile, k, column) with the columns of all images, side by side."""
    images, pixels, width, lanes = sizes
    for tile in range(begin, end):
        column, last = tile * width, min((tile + 1) * width, images * pixels)
        row = (last - column + lanes - 1) // lanes * lanes
        target = panels.ctypes.data + 4 * column * depth
        while column < last:
            image, p = column // pixels, column % pixels
            count = min(pixels - p, last - column)
            source = b.ctypes.data + 4 * (image * depth * pixels + p)
            _copy(source, 4 * pixels, target, 4 * row, depth, count, lanes, copies)
            column, target = column + count, target + 4 * count


@jit
def _part(begin, end, joined, y, rows, copies, sizes):
    """Copy the columns of images to the images."""
    images, pixels, _, lanes = sizes
    for image in range(begin, end):
        source = joined.ctypes.data + 4 * image * pixels
        target = y.ctypes.data + 4 * image * rows * pixels
        _copy(source, 4 * images * pixels, target, 4 * pixels, rows, pixels, lanes, copies)
