"""Products of a few rows with weights, bound by the memory traffic of the weights.

`TransposedProduct` has a row of the first matrix in each lane; with few rows most lanes are empty.
Here lanes are steps of k, and the weights are read once, in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.jit.codegen.calling import call
from pycaffe_dist.kernels.jit.codegen.emitter import Emitter
from pycaffe_dist.kernels.jit.codegen.objects import ENTRY, address_of
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.constants import factors
from pycaffe_dist.threads import parallel_for

# With more rows than this the sums do not fit into the registers.
MOST_ROWS = 4
# Outputs of a tile, whose weights are read side by side; bytes of weights that are worth a thread.
OUTPUTS = 4
BYTES_PER_CHUNK = 1 << 17


@dataclass(frozen=True)
class DotKernel:
    """Dot products of ``rows`` rows of x with ``outputs`` rows of w::

        y[r·y_row + 4·n] = Σ x[r·x_row + 4·k] · w[n·w_row + 4·k] + bias[n], rectified

    Arguments: x, x_row, w, w_row, steps (whole vectors of k), rest (the lanes after them, 0 to all
    but one), bias, slope, y, y_row.
    """

    rows: int
    outputs: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop."""
        e = Emitter(target, ENTRY, 10)
        x, x_row, w, w_row, steps, rest, *output = e.arguments
        build, vector_bytes = e.builder, 4 * e.lanes
        xs = [build.mul(x_row, e.int(r)) for r in range(self.rows)]
        ws = [build.mul(w_row, e.int(n)) for n in range(self.outputs)]

        def step(at_x: ir.Value, at_w: ir.Value, sums: list, mask=None) -> list[ir.Value]:
            values = [e.load(at_x, offset, mask) for offset in xs]
            found = []
            for n, offset in enumerate(ws):
                weights = e.load(at_w, offset, mask)
                for r, value in enumerate(values):
                    found.append(e.multiply_add(value, weights, sums[n * self.rows + r]))
            return found

        def one_step(state: list[ir.Value]) -> list[ir.Value]:
            at_x, at_w, *sums = state
            return [e.add(at_x, vector_bytes), e.add(at_w, vector_bytes), *step(at_x, at_w, sums)]

        start = [x, w, *[e.zero] * (self.rows * self.outputs)]
        at_x, at_w, *sums = e.repeat(steps, start, one_step)
        before, more, go = build.block, *(e.function.append_basic_block() for _ in range(2))
        build.cbranch(build.icmp_signed(">", rest, e.int(0)), more, go)
        build.position_at_end(more)
        last = step(at_x, at_w, sums, e.mask_below(rest))
        build.branch(go)
        build.position_at_end(go)
        for at, (value, other) in enumerate(zip(sums, last)):
            phi = build.phi(e.vector)
            phi.add_incoming(value, before)
            phi.add_incoming(other, more)
            sums[at] = phi
        self._store(e, sums, *output)
        build.ret_void()
        return e.module

    def _store(self, e: Emitter, sums: list, bias, slope, y, y_row) -> None:
        """Store the sum of the lanes of each vector."""
        factor = e.broadcast(slope)
        for at, value in enumerate(sums):
            width = e.lanes // 2
            while width:
                turned = [(i + width) % e.lanes for i in range(e.lanes)]
                value = e.builder.fadd(value, e.shuffle(value, value, turned))
                width //= 2
            n, r = divmod(at, self.rows)
            value = e.rectify(e.builder.fadd(value, e.broadcast(bias, 4 * n)), factor)
            e.store_first(value, 1, y, e.add(e.builder.mul(y_row, e.int(r)), 4 * n))


@jit
def _dot_units(begin, end, x, w, bias, slope, y, kernels, lanes):
    depth, outputs = x.shape[1], y.shape[1]
    for tile in range(begin, end):
        first = tile * OUTPUTS
        count = min(OUTPUTS, outputs - first)
        for n in range(first, first + (count if count < OUTPUTS else 1)):
            call(
                kernels[int(count == OUTPUTS)],
                x.ctypes.data,
                4 * depth,
                w.ctypes.data + 4 * n * depth,
                4 * depth,
                depth // lanes,
                depth % lanes,
                bias.ctypes.data + 4 * n,
                slope.ctypes.data,
                y.ctypes.data + 4 * n,
                4 * outputs,
            )


def suits(target: Target | None, rows: int, depth: int) -> bool:
    """Tell whether `DotProduct` is the faster one for products of this size."""
    return target is not None and rows <= MOST_ROWS and depth >= target.lanes


class DotProduct:
    """y (M, N) = a (M, K) · wᵀ with w (N, K), for M up to `MOST_ROWS` and K of a vector or more."""

    def __init__(self, target: Target, m: int, n: int, k: int):
        kernels = [address_of(DotKernel(m, outputs), target) for outputs in (1, OUTPUTS)]
        self._kernels, self._lanes = np.array(kernels, np.int64), target.lanes
        self._no_bias = np.zeros(n, np.float32)
        self._tiles, self._grain = -(-n // OUTPUTS), max(1, BYTES_PER_CHUNK // (4 * OUTPUTS * k))

    def run(self, a: Any, w: Any, y: Any, bias: Any = None, slope: float = 1.0) -> None:
        """Set y to a·wᵀ + bias (of N elements); multiply negative results by slope."""
        bias = self._no_bias if bias is None else bias.reshape(-1)
        args = a, w.reshape(-1), bias, factors(slope), y, self._kernels, self._lanes
        parallel_for(_dot_units, self._tiles, *args, grain=self._grain)
