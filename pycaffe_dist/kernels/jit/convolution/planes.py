"""Microkernels of filters from one plane to one plane, such as depthwise convolutions.

Lanes are neighbouring pixels of a row.  Rows are read and written in place.  The code itself fixes
which pixels of a vector lie beside the row; these are not read.  A table has the offsets of the
input rows of each output row; an offset below 0 is a row of padding, for which a row of the caller
is read.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from pycaffe_dist.kernels.jit.codegen.emitter import Emitter
from pycaffe_dist.kernels.jit.codegen.objects import ENTRY
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.convolution.tables import Reads, vector_starts
from pycaffe_dist.kernels.jit.gemm.kernels import LINE

# The strides along a row that have microkernels.
STRIDES = (1, 2)
# Taps are unrolled in machine code; the weights or sums of more taps do not fit the registers.
MOST_TAPS = 25
# The fewest vectors with equal code that are worth a loop.
LOOPED = 3
# Bytes by which planes are fetched ahead: the hardware does not look beyond a page.
AHEAD = 4096


@dataclass(frozen=True)
class Row:
    """One axis of a filter: its taps, and the sizes of its input and output."""

    taps: int
    stride: int
    pad: int
    dilation: int
    inputs: int
    outputs: int


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


def _phases(
    e: Emitter,
    line: ir.Value,
    start: int | None,
    index: ir.Value,
    column: int,
    row: Row,
    beside: ir.Value | None = None,
) -> list[ir.Value]:
    """Load the elements (start + lane)·stride + column + phase of a row for each phase < stride.

    Elements beside the row are those of ``beside``, or zeros.
    """
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
                parts.append(beside or e.zero)
                continue
            mask = None if all(inside) else ir.Constant(e.bits, [int(one) for one in inside])
        parts.append(e.load(at, 4 * first, mask, beside))
    if row.stride == 1:
        return parts
    lanes = range(e.lanes)
    return [e.shuffle(*parts, [2 * lane + phase for lane in lanes]) for phase in range(row.stride)]


def _read(
    e: Emitter, line: ir.Value, start: int | None, index: ir.Value, column: int, row: Row
) -> ir.Value:
    """Load the elements (start + lane)·stride + column of a row, zeros beside it."""
    return _phases(e, line, start, index, column, row)[0]


def _read_taps(
    e: Emitter, line: ir.Value, start: int | None, index: ir.Value, row: Row
) -> list[ir.Value]:
    """Load the elements of each tap; neighbouring taps share loads where there is a stride."""
    columns = [k * row.dilation - row.pad for k in range(row.taps)]
    found: dict[int, ir.Value] = {}
    for column in columns:
        if column not in found:
            base = column - column % row.stride
            base = base if base in columns else column
            for phase, value in enumerate(_phases(e, line, start, index, base, row)):
                found[base + phase] = value
    return [found[column] for column in columns]


def _lies_inside(row: Row, start: int, lanes: int) -> bool:
    """Tell whether a vector of outputs reads only elements inside the row."""
    first = start * row.stride - row.pad
    last = (start + lanes) * row.stride - 1 + (row.taps - 1) * row.dilation - row.pad
    return first >= 0 and last < row.inputs


def _line(e: Emitter, source: ir.Value, rows: ir.Value, at: int, padding: ir.Value) -> ir.Value:
    """Return the address of the row of ``source`` at an offset from a table, or of the padding."""
    offset = e.load_int(rows, at)
    absent = e.builder.icmp_signed("<", offset, e.int(0))
    return e.builder.select(absent, padding, e.add(source, offset))


def _fetch(e: Emitter, address: ir.Value, count: int, write: bool = False) -> None:
    """Ask for the lines of the cache that lie `AHEAD` of ``count`` floats."""
    for offset in range(AHEAD, AHEAD + 4 * count, LINE):
        e.prefetch(address, offset, write=write)


@dataclass(frozen=True)
class FilterKernel:
    """A plane of sums of a window's pixels times weights::

        y[r, o] = bias + Σ w[t, k] · x[row t of r, o·stride + k·dilation - pad], rectified

    A step has as many rows of y as ``reads``, which says where in the step's table the rows of x
    of each are.  Arguments: x, rows (`step_table`), steps, zeros (a row), w, bias, slope, y.
    """

    row: Row
    reads: Reads

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 8)
        x, rows, steps, zeros, w, bias, slope, y = e.arguments
        row, lines = self.row, 1 + max(map(max, self.reads))
        count = row.taps * len(self.reads[0])
        weights = [e.broadcast(w, 4 * i) for i in range(count)]
        bias, slope = e.broadcast(bias), e.broadcast(slope)

        # The floats of x that are new in each step.
        fresh = row.inputs * (self.reads[-1][0] + 1 if len(self.reads) > 1 else lines)

        def one_step(state: list[ir.Value]) -> list[ir.Value]:
            at_rows, at_x = state
            out = e.add(y, e.load_int(at_rows))
            _fetch(e, at_x, fresh)
            _fetch(e, out, row.outputs * len(self.reads), write=True)
            addresses = [_line(e, x, at_rows, 8 * (1 + i), zeros) for i in range(lines)]

            def vector(start: int | None, index: ir.Value, nothing: list) -> list:
                totals = [bias] * len(self.reads)
                for i, address in enumerate(addresses):
                    values = _read_taps(e, address, start, index, row)
                    for j, own in enumerate(self.reads):
                        for t in (t for t, read in enumerate(own) if read == i):
                            for value, weight in zip(values, weights[t * row.taps :]):
                                totals[j] = e.multiply_add(value, weight, totals[j])
                where = e.add(out, e.builder.mul(index, e.int(4)))
                for j, total in enumerate(totals):
                    result = e.rectify(total, slope)
                    e.store_first(result, min(e.lanes, row.outputs), where, 4 * j * row.outputs)
                return []

            _over_vectors(
                e,
                vector_starts(row.outputs, e.lanes),
                lambda start: _lies_inside(row, start, e.lanes),
                [],
                vector,
            )
            return [e.add(at_rows, 8 * (1 + lines)), e.add(at_x, 4 * fresh)]

        e.repeat(steps, [rows, x], one_step)
        e.builder.ret_void()
        return e.module


@dataclass(frozen=True)
class TapsKernel:
    """The pixels of each tap of one row of windows, whose ``lines`` rows are in all channels::

        to[((c·lines + t)·taps + k)·pitch + o] = x[c][rows[t], o·stride + k·dilation - pad]

    Arguments: x, x_plane (bytes of a channel), rows (``lines`` int64 offsets), channels, zeros (a
    row), to.
    """

    row: Row
    lines: int
    pitch: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 6)
        x, x_plane, rows, channels, zeros, to = e.arguments
        row, step = self.row, 4 * self.pitch

        def one_channel(state: list[ir.Value]) -> list[ir.Value]:
            at_x, out = state
            lines = [_line(e, at_x, rows, 8 * t, zeros) for t in range(self.lines)]

            def vector(start: int | None, index: ir.Value, nothing: list) -> list:
                where = e.add(out, e.builder.mul(index, e.int(4)))
                for t, line in enumerate(lines):
                    for k, value in enumerate(_read_taps(e, line, start, index, row)):
                        place = step * (t * row.taps + k)
                        e.store_first(value, min(e.lanes, row.outputs), where, place)
                return []

            _over_vectors(
                e,
                vector_starts(row.outputs, e.lanes),
                lambda start: _lies_inside(row, start, e.lanes),
                [],
                vector,
            )
            return [e.add(at_x, x_plane), e.add(out, step * self.lines * row.taps)]

        e.repeat(channels, [x, to], one_channel)
        e.builder.ret_void()
        return e.module


@dataclass(frozen=True)
class PlaneMaximumKernel:
    """A plane of maxima of windows of ``lines`` rows; a NaN is larger than all other values::

        y[r, o] = max x[rows[r, t], o·stride + k - pad]

    Arguments: x, rows (`window_rows`), height (of y), lowest (a row of -inf), y.  The rows of a
    window are combined first; taps that begin in the vector before take the values of that one.
    No row of y before has read the last ``fresh`` rows of a window.
    """

    row: Row
    lines: int
    fresh: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 5)
        x, rows, height, lowest, y = e.arguments
        row = self.row
        last = row.taps - 1 - row.pad
        base = last - last % row.stride
        taps = [divmod(k - row.pad - base, row.stride) for k in range(row.taps)]
        kept = sorted({phase for shift, phase in taps if shift})
        nothing = ir.Constant(e.vector, [float("-inf")] * e.lanes)

        def one_row(state: list[ir.Value]) -> list[ir.Value]:
            at_rows, out = state
            lines = [_line(e, x, at_rows, 8 * t, lowest) for t in range(self.lines)]
            for line in lines[-self.fresh :]:
                _fetch(e, line, row.inputs)
            _fetch(e, out, row.outputs, write=True)

            def columns(start: int | None, index: ir.Value) -> list[ir.Value]:
                """Return the maxima of the columns of the windows, by phase."""
                read = [_phases(e, line, start, index, base, row, nothing) for line in lines]
                return [functools.reduce(e.larger, phase) for phase in zip(*read)]

            def vector(start: int | None, index: ir.Value, before: list) -> list:
                found, earlier = columns(start, index), dict(zip(kept, before))
                values = [
                    e.shuffle(earlier[phase], found[phase], _turned(e.lanes, shift))
                    if shift
                    else found[phase]
                    for shift, phase in taps
                ]
                left = e.lanes if start is None else min(e.lanes, row.outputs - start)
                top = functools.reduce(e.larger, values)
                e.store_first(top, left, out, e.builder.mul(index, e.int(4)))
                return [found[phase] for phase in kept]

            def is_plain(start: int) -> bool:
                first, end = start * row.stride + base, (start + e.lanes) * row.stride + base
                return first >= 0 and end <= row.inputs and start + e.lanes <= row.outputs

            before = columns(-e.lanes, e.int(-e.lanes))
            starts = list(range(0, row.outputs, e.lanes))
            _over_vectors(e, starts, is_plain, [before[phase] for phase in kept], vector)
            return [e.add(at_rows, 8 * self.lines), e.add(out, 4 * row.outputs)]

        e.repeat(height, [rows, y], one_row)
        e.builder.ret_void()
        return e.module


def _turned(lanes: int, shift: int) -> list[int]:
    """Return the places, in two vectors, of the elements ``shift`` <= 0 before the second one."""
    return [lanes + shift + lane for lane in range(lanes)]


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
        starts = vector_starts(-(-row.inputs // stride), e.lanes)

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
        starts = vector_starts(row.outputs, e.lanes)
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
