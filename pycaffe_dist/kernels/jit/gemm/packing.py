"""Packing: the operand whose values are broadcast, rearranged for a tile's rows."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.gemm.kernels import PanelKernel, TransposeKernel
from pycaffe_dist.threads import parallel_for

VALUES_PER_CHUNK = 1 << 15


class RowPacking:
    """packed[tile, k, i] = scale · a[tile·rows + i, k] for a (M, K); missing rows are 0."""

    def __init__(self, target: Target, rows: int, m: int, k: int):
        self._tiles, self._grain = -(-m // rows), max(1, VALUES_PER_CHUNK // (rows * k))
        lanes = target.lanes
        heights = [min(lanes, rows - first) for first in range(0, rows, lanes)]
        kernels = [address_of(TransposeKernel(height), target) for height in heights]
        self._transposes = np.array(list(zip(kernels, heights)), np.int64)
        vectors = len(heights)
        self._copy = address_of(PanelKernel(vectors, False), target)
        # A copied row has whole vectors.  Behind the last rows these would not fit.
        single = -(-vectors * lanes // rows) if m >= vectors * lanes else k
        self._sizes = np.array([rows, m, k, lanes, min(single, k)], np.int64)

    def run(self, a: np.ndarray, packed: np.ndarray, transposed: bool, scale: float) -> None:
        """Pack a (M, K), or (K, M) if ``transposed``; all flat."""
        args = a.reshape(-1), packed, np.float32(scale), self._sizes
        if transposed:
            parallel_for(_pack_columns, self._tiles, *args, self._copy, grain=self._grain)
        else:
            parallel_for(_pack_rows, self._tiles, *args, self._transposes, grain=self._grain)


@jit
def _pack_rows(begin, end, a, packed, scale, sizes, transposes):
    rows, count, depth, lanes, _ = sizes
    for tile in range(begin, end):
        to = packed.ctypes.data + 4 * tile * rows * depth
        _clear_unless_full(packed, tile, sizes)
        for part in range(len(transposes)):
            kernel, height = transposes[part]
            first = tile * rows + part * lanes
            valid = min(height, count - first)
            if valid <= 0:
                break
            for k in range(0, depth, lanes):
                source = a.ctypes.data + 4 * (first * depth + k)
                target = to + 4 * (k * rows + part * lanes)
                call(kernel, source, 4 * depth, target, 4 * rows, valid, min(lanes, depth - k))
        _multiply(packed[tile * rows * depth : (tile + 1) * rows * depth], scale)


@jit
def _pack_columns(begin, end, a, packed, scale, sizes, copy):
    rows, count, depth, _, single = sizes
    for tile in range(begin, end):
        target = packed[tile * rows * depth : (tile + 1) * rows * depth]
        first = tile * rows
        _clear_unless_full(packed, tile, sizes)
        if depth > single:
            source = a.ctypes.data + 4 * first
            call(copy, source, 4 * count, depth - single, 1, target.ctypes.data, 4 * rows, 0, 0)
        for k in range(depth - single, depth):
            for i in range(min(rows, count - first)):
                target[k * rows + i] = a[k * count + first + i]
        _multiply(target, scale)


@jit
def _clear_unless_full(packed, tile, sizes):
    """Clear a tile that misses rows: numbers that happen to be there could slow products down."""
    rows, count, depth = sizes[:3]
    if (tile + 1) * rows > count:
        packed[tile * rows * depth : (tile + 1) * rows * depth] = 0


@jit
def _multiply(values, scale):
    if scale != 1:
        for i in range(values.size):
            values[i] *= scale
