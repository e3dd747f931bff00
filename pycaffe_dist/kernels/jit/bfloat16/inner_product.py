"""Inner products with held weights: y = x·Wᵀ + b."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist import storage
from pycaffe_dist.kernels.compiling import aligned, jit
from pycaffe_dist.kernels.jit import workspace
from pycaffe_dist.kernels.jit.bfloat16.kernels import LINE
from pycaffe_dist.kernels.jit.bfloat16.packing import MatrixPacking, steps_of
from pycaffe_dist.kernels.jit.bfloat16.units import Unit, switch_tiles
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.constants import factors
from pycaffe_dist.threads import parallel_for


class InnerProduct:
    """y (M, N) = x (M, K) · wᵀ + b with w (N, K), or (K, N) if ``transposed``."""

    def __init__(self, unit: Unit, m: int, n: int, k: int, transposed: bool = False):
        rows, steps = unit.rows_for(m), steps_of(k)
        bands, blocks = -(-m // rows), -(-n // unit.columns)
        self._transposed = transposed
        self._x = MatrixPacking(m, k, rows)
        self._w = MatrixPacking(n, k, unit.columns, turned=True)
        last = m - (bands - 1) * rows, n - (blocks - 1) * unit.columns
        self._kernels = unit.kernels(rows, *last)
        self._offsets = np.arange(steps) * (LINE * rows)
        self._blocks = blocks
        self._sizes = np.array([m, n, rows, unit.columns, steps], np.int64)
        self._no_bias = np.zeros(n, np.float32)
        self._held = np.empty(0, np.float32)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return self._held.nbytes

    def hold(self, w: np.ndarray) -> None:
        """Take the weights for every later `forward`."""
        self._held = storage.aligned_zeros(self._w.words, np.dtype(np.float32))
        self._w.run(w.reshape(-1), self._held.view(np.uint32), self._transposed)

    def forward(self, x: Any, w: None, b: Any, y: Any, relu_slope: float | None = None) -> None:
        """Set y to x·Wᵀ + b with the held weights, then to y·relu_slope where y < 0, if given."""
        bias = self._no_bias if b is None else b.reshape(-1)
        slope = factors(1.0 if relu_slope is None else relu_slope)
        with workspace.shared.lend(self._x.words) as packed:
            self._x.run(x.reshape(-1), packed.view(np.uint32))
            args = packed, self._offsets, self._held, bias, slope, y.reshape(-1), self._kernels
            parallel_for(_product_units, self._blocks, *args, self._sizes)


@jit
def _product_units(begin, end, x, offsets, w, bias, slope, y, kernels, sizes):
    samples, outputs, rows, columns, steps = sizes
    bands = (samples + rows - 1) // rows
    sums = aligned(rows * columns)
    switch_tiles(kernels, 1)
    for block in range(begin, end):
        n = block * columns
        valid = min(columns, outputs - n)
        width = columns if valid > columns // 2 else columns // 2
        for band in range(bands):
            call(
                kernels[2 * int(band == bands - 1) + int(n + columns >= outputs)],
                x.ctypes.data + band * rows * steps * LINE,
                offsets.ctypes.data,
                w.ctypes.data + block * columns * steps * LINE,
                steps,
                sums.ctypes.data,
            )
            for i in range(min(rows, samples - band * rows)):
                to = y[(band * rows + i) * outputs + n :]
                row = sums[i * width :]
                for j in range(valid):
                    value = row[j] + bias[n + j]
                    to[j] = value * slope[0] if value < 0 else value
    switch_tiles(kernels, 0)
