"""The microkernel of convolutions by rows.

Every argument is a 64-bit integer: an address, a stride or offset in bytes, or a count, which is at
least 1 where it says how often a loop runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from pycaffe_dist.kernels.jit.codegen.emitter import Emitter
from pycaffe_dist.kernels.jit.codegen.objects import ENTRY
from pycaffe_dist.kernels.jit.codegen.target import Target

# taps[k] = the (pixel, displacement in floats) pairs that kernel column k touches
Taps = tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True)
class RowKernel:
    """A tile of one output row: ``pixels`` neighbours times ``vectors`` of output channels.

    Lanes are output channels; activations are broadcast in place.  The pixels that each kernel
    column reaches are fixed here, so padding costs nothing::

        sum[i] = bias
        for t < taps: for c < channels: for k: for (i, d) in self.taps[k]:
            sum[i] += x[rows[t].offset + c·channel_step + columns[k] + 4·d]
                      · w[rows[t].index·row_step + (c·K + k)·vector bytes·vectors …]
        y[channel·plane + 4·i] = sum[i][channel], rectified, for channel < valid

    Arguments: x, channel_step, rows (``taps`` pairs of int64: input offset, kernel row), taps,
    channels, columns (an int64 offset for each kernel column), w, row_step, bias, slope, y, plane,
    valid.
    """

    pixels: int
    vectors: int
    taps: Taps

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 13)
        x, channel_step, rows, taps, channels, columns, w, row_step, bias, *output = e.arguments
        # With constant column offsets LLVM would keep the broadcasts that neighbouring columns
        # share in registers, and spill sums.
        offsets = {k: e.load_int(columns, 8 * k) for k, pairs in enumerate(self.taps) if pairs}
        vector_bytes = 4 * e.lanes
        per_channel = vector_bytes * self.vectors * len(self.taps)

        def one_channel(state: list[ir.Value]) -> list[ir.Value]:
            at_x, at_w, *sums = state
            for k, offset in offsets.items():
                base = e.add(at_x, offset)
                weights = [
                    e.load(at_w, vector_bytes * (k * self.vectors + j)) for j in range(self.vectors)
                ]
                for i, displacement in self.taps[k]:
                    value = e.broadcast(base, 4 * displacement)
                    for j, weight in enumerate(weights):
                        at = i * self.vectors + j
                        sums[at] = e.multiply_add(value, weight, sums[at])
            return [e.add(at_x, channel_step), e.add(at_w, per_channel), *sums]

        def one_tap(state: list[ir.Value]) -> list[ir.Value]:
            row, *sums = state
            index = e.builder.mul(e.load_int(row, 8), row_step)
            start = [e.add(x, e.load_int(row)), e.add(w, index)]
            return [e.add(row, 16), *e.repeat(channels, [*start, *sums], one_channel)[2:]]

        start = [e.load(bias, vector_bytes * j) for j in range(self.vectors)] * self.pixels
        sums = e.repeat(taps, [rows, *start], one_tap)[1:]
        self._store(e, sums, *output)
        e.builder.ret_void()
        return e.module

    def _store(self, e: Emitter, sums: list, slope, y, plane, valid) -> None:
        slope, last = e.broadcast(slope), e.builder.sub(valid, e.int(1))
        for j in reversed(range(self.vectors)):
            for first in reversed(range(0, self.pixels, e.lanes)):
                count = min(e.lanes, self.pixels - first)
                tile = [sums[i * self.vectors + j] for i in range(first, first + count)]
                tile = [e.rectify(value, slope) for value in tile]
                # Lanes beyond the last channel are written to that channel's row, which is stored
                # last and overwrites them.
                for lane, row in reversed(list(enumerate(e.transpose(tile)))):
                    channel = e.minimum(j * e.lanes + lane, last)
                    where = e.add(e.builder.mul(channel, plane), 4 * first)
                    e.store_first(row, count, y, where)
