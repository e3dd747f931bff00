"""Microkernels of filters from one plane to one plane, such as depthwise convolutions.

Lanes are neighbouring pixels of a row.  Rows are read and written in place.  The code itself fixes
which pixels of a vector lie beside the row; these are not read.  A table has the offsets of the
input rows of each output row; an offset below 0 is a row of padding, for which the caller's row of
zeros is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from pycaffe_dist.kernels.jit.codegen.emitter import Emitter
from pycaffe_dist.kernels.jit.codegen.objects import ENTRY
from pycaffe_dist.kernels.jit.codegen.target import Target

# The strides along a row that have microkernels.
STRIDES = (1, 2)
# Taps are unrolled in machine code; the weights or sums of more taps do not fit the registers.
MOST_TAPS = 25
# The fewest vectors with equal code that are worth a loop.
LOOPED = 3


@dataclass(frozen=True)
class Row:
    """One axis of a filter: its taps, and the sizes of its input and output."""

    taps: int
    stride: int
    pad: int
    dilation: int
    inputs: int
    outputs: int


def _starts(count: int, lanes: int) -> list[int]:
    """Return the first of each vector of ``count`` elements; the last vector ends with them."""
    if count <= lanes:
        return [0]
    return [*range(0, count - lanes, lanes), count - lanes]


def _over_vectors(
    e: Emitter,
    starts: list[int],
    is_plain: Callable[[int], bool],
    state: list[ir.Value],
    body: Callable[[int | None, ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """Run ``body(start, index, state)`` for every vector of a row; it returns the next state.

    ``index`` is the first element of the vector.  Many vectors away from the row's ends have the
    same code: they run in a loop, with None as their start.
    """
    groups = itertools.groupby(starts, lambda start: start % e.lanes == 0 and is_plain(start))
    for plain, group in groups:
        run = list(group)
        if plain and len(run) >= LOOPED:

            def step(carried: list[ir.Value]) -> list[ir.Value]:
                return [e.add(carried[0], e.lanes), *body(None, carried[0], carried[1:])]

            state = e.repeat(e.int(len(run)), [e.int(run[0]), *state], step)[1:]
            continue
        for start in run:
            state = body(start, e.int(start), state)
    return state


def _read(
    e: Emitter, line: ir.Value, start: int | None, index: ir.Value, column: int, row: Row
) -> ir.Value:
    """Load the elements (start + lane)·stride + column of a row, zeros beside it."""
    at = e.add(line, e.builder.mul(index, e.int(4 * row.stride)))
    parts = []
    for part in range(row.stride):
        first = column + part * e.lanes
        mask = None
        if start is not None:
            inside = [
                0 <= start * row.stride + first + lane < row.inputs for lane in range(e.lanes)
            ]
            if not any(inside):
                parts.append(e.zero)
                continue
            mask = None if all(inside) else ir.Constant(e.bits, [int(one) for one in inside])
        parts.append(e.load(at, 4 * first, mask))
    if row.stride == 1:
        return parts[0]
    return e.shuffle(*parts, [2 * lane for lane in range(e.lanes)])


def _lies_inside(row: Row, start: int, lanes: int) -> bool:
    """Tell whether a vector of outputs reads only elements inside the row."""
    first = start * row.stride - row.pad
    last = (start + lanes) * row.stride - 1 + (row.taps - 1) * row.dilation - row.pad
    return first >= 0 and last < row.inputs


def _line(e: Emitter, source: ir.Value, rows: ir.Value, at: int, zeros: ir.Value) -> ir.Value:
    """Return the address of the row of ``source`` at an offset from a table, or of the zeros."""
    offset = e.load_int(rows, at)
    absent = e.builder.icmp_signed("<", offset, e.int(0))
    return e.builder.select(absent, zeros, e.add(source, offset))


@dataclass(frozen=True)
class FilterKernel:
    """A plane of sums of a window's pixels times weights, of ``lines`` rows of taps::

        y[r, o] = bias + Σ w[t, k] · x[rows[r, t] + o·stride + k·dilation - pad], rectified

    Arguments: x, rows (``lines`` int64 offsets for each row of y), height (of y), zeros (a row), w,
    bias, slope, y.
    """

    row: Row
    lines: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 8)
        x, rows, height, zeros, w, bias, slope, y = e.arguments
        row = self.row
        taps = [(t, k) for t in range(self.lines) for k in range(row.taps)]
        weights = [e.broadcast(w, 4 * i) for i in range(len(taps))]
        bias, slope = e.broadcast(bias), e.broadcast(slope)

        def one_row(state: list[ir.Value]) -> list[ir.Value]:
            at_rows, out = state
            lines = [_line(e, x, at_rows, 8 * t, zeros) for t in range(self.lines)]

            def vector(start: int | None, index: ir.Value, nothing: list) -> list:
                total = bias
                for (t, k), weight in zip(taps, weights):
                    column = k * row.dilation - row.pad
                    value = _read(e, lines[t], start, index, column, row)
                    total = e.multiply_add(value, weight, total)
                where = e.builder.mul(index, e.int(4))
                e.store_first(e.rectify(total, slope), min(e.lanes, row.outputs), out, where)
                return []

            _over_vectors(
                e,
                _starts(row.outputs, e.lanes),
                lambda start: _lies_inside(row, start, e.lanes),
                [],
                vector,
            )
            return [e.add(at_rows, 8 * self.lines), e.add(out, 4 * row.outputs)]

        e.repeat(height, [rows, y], one_row)
        e.builder.ret_void()
        return e.module


@dataclass(frozen=True)
class SpreadKernel:
    """The gradient of `FilterKernel` with respect to x, from up to ``lines`` rows of dy::

        dx[r, i] = Σ w[rows[r, l].weights + 4·k] · dy[rows[r, l].offset + (i + pad - k·dilation)
                   / stride] over l < lines and all k for which that is an element

    Arguments: dy, rows (for each row of dx ``lines`` pairs of int64, an offset and its weights'
    offset), height (of dx), zeros (a row), w, dx.
    """

    row: Row
    lines: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 6)
        dy, rows, height, zeros, w, dx = e.arguments
        row, stride = self.row, self.row.stride
        # dy is read without a stride, once for each remainder of the columns of dx.
        read = Row(row.taps, 1, 0, 1, row.outputs, 0)
        taps = [
            [
                (k, (phase + row.pad - k * row.dilation) // stride)
                for k in range(row.taps)
                if (phase + row.pad - k * row.dilation) % stride == 0
            ]
            for phase in range(stride)
        ]
        columns = [column for phase in taps for _, column in phase]
        starts = _starts(-(-row.inputs // stride), e.lanes)

        def is_plain(start: int) -> bool:
            inside = all(
                start + column >= 0 and start + column + e.lanes <= row.outputs
                for column in columns
            )
            return inside and (start + e.lanes) * stride <= row.inputs

        def one_row(state: list[ir.Value]) -> list[ir.Value]:
            at_rows, out = state
            lines, weights = [], []
            for i in range(self.lines):
                lines.append(_line(e, dy, at_rows, 16 * i, zeros))
                own = e.add(w, e.load_int(at_rows, 16 * i + 8))
                weights.append([e.broadcast(own, 4 * k) for k in range(row.taps)])

            def vector(start: int | None, index: ir.Value, nothing: list) -> list:
                phases = []
                for phase in taps:
                    total = e.zero
                    for line, own in zip(lines, weights):
                        for k, column in phase:
                            value = _read(e, line, start, index, column, read)
                            total = e.multiply_add(value, own[k], total)
                    phases.append(total)
                for part, value in enumerate(e.interleave(phases)):
                    first = part * e.lanes
                    left = row.inputs - start * stride - first if start is not None else e.lanes
                    if left > 0:
                        where = e.builder.mul(index, e.int(4 * stride))
                        where = e.add(where, 4 * first)
                        e.store_first(value, min(e.lanes, left), out, where)
                return []

            _over_vectors(e, starts, is_plain, [], vector)
            return [e.add(at_rows, 16 * self.lines), e.add(out, 4 * row.inputs)]

        e.repeat(height, [rows, dx], one_row)
        e.builder.ret_void()
        return e.module


@dataclass(frozen=True)
class CorrelationKernel:
    """The gradient of `FilterKernel` with respect to the weights, by lanes::

        sums[t, k][lane] += Σ dy[r, o] · x[rows[r, t] + o·stride + k·dilation - pad]

    over the elements of dy that come into a lane.  Arguments: x, rows (``lines`` int64 offsets for
    each row of dy), height (of dy), zeros (a row), dy, sums.
    """

    row: Row
    lines: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 6)
        x, rows, height, zeros, dy, sums = e.arguments
        row = self.row
        taps = [(t, k) for t in range(self.lines) for k in range(row.taps)]
        starts = _starts(row.outputs, e.lanes)
        whole = row.outputs // e.lanes * e.lanes

        def gradient(start: int | None, at: ir.Value) -> ir.Value:
            """Load dy; elements that an earlier vector has already read become zero."""
            if start is None:
                return e.load(at)
            fresh = [start % e.lanes == 0 or start + lane >= whole for lane in range(e.lanes)]
            fresh = [one and start + lane < row.outputs for lane, one in enumerate(fresh)]
            return e.load(
                at, 0, None if all(fresh) else ir.Constant(e.bits, [int(one) for one in fresh])
            )

        def one_row(state: list[ir.Value]) -> list[ir.Value]:
            at_rows, at_dy, *totals = state
            lines = [_line(e, x, at_rows, 8 * t, zeros) for t in range(self.lines)]

            def vector(start: int | None, index: ir.Value, totals: list) -> list:
                value = gradient(start, e.add(at_dy, e.builder.mul(index, e.int(4))))
                new = []
                for (t, k), total in zip(taps, totals):
                    column = k * row.dilation - row.pad
                    pixels = _read(e, lines[t], start, index, column, row)
                    new.append(e.multiply_add(value, pixels, total))
                return new

            totals = _over_vectors(
                e, starts, lambda start: _lies_inside(row, start, e.lanes), totals, vector
            )
            return [e.add(at_rows, 8 * self.lines), e.add(at_dy, 4 * row.outputs), *totals]

        totals = [e.load(sums, 4 * e.lanes * i) for i in range(len(taps))]
        state = e.repeat(height, [rows, dy, *totals], one_row)
        for i, total in enumerate(state[2:]):
            e.store(total, sums, 4 * e.lanes * i)
        e.builder.ret_void()
        return e.module
