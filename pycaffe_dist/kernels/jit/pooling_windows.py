"""Microkernels of pooling: one output row from the input rows that its windows cover.

Each first combines the rows, which are contiguous, into one row of scratch memory, and then the
columns of that row.  The caller fills the scratch row's padding on both sides with neutral values,
so no window needs a special case at the border.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from llvmlite import ir

from pycaffe_dist.kernels.jit.codegen.emitter import INT32, Emitter
from pycaffe_dist.kernels.jit.codegen.objects import ENTRY
from pycaffe_dist.kernels.jit.codegen.target import Target

# An index that loses against every real one.
NOWHERE = 2**31 - 1


def _vector_loop(e: Emitter, width: ir.Value, body) -> None:
    """Run ``body(byte offset, mask)`` over a row of ``width`` floats.

    The last vector ends with the row, so the mask is None, except for a row shorter than a vector.
    """
    build = e.builder
    wide, narrow, go = (e.function.append_basic_block() for _ in range(3))
    build.cbranch(build.icmp_signed(">=", width, e.int(e.lanes)), wide, narrow)
    build.position_at_end(wide)
    last = build.mul(build.sub(width, e.int(e.lanes)), e.int(4))

    def step(state: list[ir.Value]) -> list[ir.Value]:
        late = build.icmp_signed(">", state[0], last)
        body(build.select(late, last, state[0]), None)
        return [e.add(state[0], 4 * e.lanes)]

    e.repeat(build.sdiv(build.add(width, e.int(e.lanes - 1)), e.int(e.lanes)), [e.int(0)], step)
    build.branch(go)
    build.position_at_end(narrow)
    body(e.int(0), e.mask_below(width))
    build.branch(go)
    build.position_at_end(go)


def _strided(e: Emitter, address: ir.Value, offset: ir.Value, k: int, stride: int) -> ir.Value:
    """Load the vector of elements offset·stride + k + stride·lane of a row."""
    start = e.builder.mul(offset, e.int(stride))
    if stride == 1:
        return e.load(address, e.add(start, 4 * k))
    if stride == 2:
        low = e.load(address, e.add(start, 4 * k))
        high = e.load(address, e.add(start, 4 * (k + e.lanes)))
        lanes = ir.Constant(e.indices, [2 * lane for lane in range(e.lanes)])
        return e.builder.shuffle_vector(low, high, lanes)
    value = e.undefined
    for lane in range(e.lanes):
        pointer = e.place(address, e.add(start, 4 * (k + stride * lane)), e.vector.element)
        value = e.builder.insert_element(value, e.builder.load(pointer), ir.Constant(INT32, lane))
    return value


@dataclass(frozen=True)
class MaximumKernel:
    """One row of maximum pooling and of the flat indices of the maxima.

    Arguments: x (the first row that the windows cover), x_row, rows, width, index (flat, of x[0]),
    best, where (scratch rows, at column 0), y, mask (int32), count.  The caller has filled the
    scratch rows' padding with -inf and `NOWHERE`; the first window starts ``pad`` before column 0.
    Code for ``whole`` rows, as many as a window inside the image has, is unrolled.
    """

    columns: int
    stride: int
    pad: int
    whole: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR."""
        e = Emitter(target, ENTRY, 10)
        x, x_row, rows, width, index, best, where, y, mask, count = e.arguments
        build = e.builder
        self._combine_rows(e, x, x_row, rows, width, index, best, where)

        def columns_of_window(offset: ir.Value, valid: ir.Value | None) -> None:
            top, top_place = self._column(e, best, where, offset, 0)
            for k in range(1, self.columns):
                value, place = self._column(e, best, where, offset, k)
                # Of equal maxima the first in row-major order wins.
                equal = build.fcmp_ordered("==", value, top)
                earlier = build.and_(equal, build.icmp_signed("<", place, top_place))
                take = build.or_(self.beats(e, value, top), earlier)
                top = build.select(take, value, top)
                top_place = build.select(take, place, top_place)
            for value, to in ((top, y), (build.bitcast(top_place, e.vector), mask)):
                if valid is None:
                    e.store(value, to, offset)
                else:
                    e.store_some(value, count, to)

        _vector_loop(e, count, columns_of_window)
        build.ret_void()
        return e.module

    def _combine_rows(self, e: Emitter, x, x_row, rows, width, index, best, where) -> None:
        """Write the maxima of the columns of ``rows`` rows, and their indices, to scratch rows."""
        build = e.builder
        nothing = ir.Constant(e.vector, [float("-inf")] * e.lanes)
        nowhere = ir.Constant(e.indices, [NOWHERE] * e.lanes)
        lanes = ir.Constant(e.indices, list(range(e.lanes)))
        row_step = self._splat(e, width)

        def rows_of_column(offset: ir.Value, valid: ir.Value | None, unrolled: bool) -> None:
            column = build.add(build.sdiv(offset, e.int(4)), index)
            first, top = build.add(self._splat(e, column), lanes), e.load(x, offset, valid)

            def next_row(state: list[ir.Value]) -> list[ir.Value]:
                at, place, top, top_place = state
                value = e.load(at, offset, valid)
                take = self.beats(e, value, top)
                return [
                    build.add(at, x_row),
                    build.add(place, row_step),
                    build.select(take, value, top),
                    build.select(take, place, top_place),
                ]

            state = [x, first, top, first]
            if unrolled:
                state[:2] = build.add(x, x_row), build.add(first, row_step)
                for _ in range(1, self.whole):
                    state = next_row(state)
            else:
                state = e.repeat(rows, state, next_row)
            top, place = state[2:]
            if valid is not None:
                top, place = build.select(valid, top, nothing), build.select(valid, place, nowhere)
            e.store(top, best, offset)
            e.store(build.bitcast(place, e.vector), where, offset)

        full, partial, go = (e.function.append_basic_block() for _ in range(3))
        build.cbranch(build.icmp_signed("==", rows, e.int(self.whole)), full, partial)
        for block, unrolled in ((full, True), (partial, False)):
            build.position_at_end(block)
            _vector_loop(e, width, functools.partial(rows_of_column, unrolled=unrolled))
            build.branch(go)
        build.position_at_end(go)

    def _column(self, e: Emitter, best: ir.Value, where: ir.Value, offset: ir.Value, k: int):
        value = _strided(e, best, offset, k - self.pad, self.stride)
        place = _strided(e, where, offset, k - self.pad, self.stride)
        return value, e.builder.bitcast(place, e.indices)

    @staticmethod
    def beats(e: Emitter, value: ir.Value, top: ir.Value) -> ir.Value:
        """Return where a value replaces the maximum so far."""
        # A NaN wins, so that it reaches the output.
        nan = e.builder.fcmp_unordered("uno", value, value)
        return e.builder.or_(e.builder.fcmp_ordered(">", value, top), nan)

    @staticmethod
    def _splat(e: Emitter, value: ir.Value) -> ir.Value:
        nothing = ir.Constant(e.indices, ir.Undefined)
        low = e.builder.trunc(value, INT32)
        single = e.builder.insert_element(nothing, low, ir.Constant(INT32, 0))
        lanes = ir.Constant(e.indices, [0] * e.lanes)
        return e.builder.shuffle_vector(single, nothing, lanes)


@dataclass(frozen=True)
class LargestKernel:
    """One row of maximum pooling without indices.

    Arguments are those of `MaximumKernel`: x, x_row, rows, width, one without a use, best, one
    without a use, y, one without a use, count.
    """

    columns: int
    stride: int
    pad: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR."""
        e = Emitter(target, ENTRY, 10)
        x, x_row, rows, width, _, best, _, y, _, count = e.arguments
        build = e.builder
        nothing = ir.Constant(e.vector, [float("-inf")] * e.lanes)

        def larger(value: ir.Value, top: ir.Value) -> ir.Value:
            return build.select(MaximumKernel.beats(e, value, top), value, top)

        def rows_of_column(offset: ir.Value, valid: ir.Value | None) -> None:
            def one_row(state: list[ir.Value]) -> list[ir.Value]:
                at, top = state
                return [build.add(at, x_row), larger(e.load(at, offset, valid), top)]

            top = e.repeat(rows, [x, nothing], one_row)[1]
            e.store(top if valid is None else build.select(valid, top, nothing), best, offset)

        def columns_of_window(offset: ir.Value, valid: ir.Value | None) -> None:
            columns = (k - self.pad for k in range(self.columns))
            values = [_strided(e, best, offset, k, self.stride) for k in columns]
            top = functools.reduce(lambda top, value: larger(value, top), values)
            if valid is None:
                e.store(top, y, offset)
            else:
                e.store_some(top, count, y)

        _vector_loop(e, width, rows_of_column)
        _vector_loop(e, count, columns_of_window)
        build.ret_void()
        return e.module


@dataclass(frozen=True)
class AverageKernel:
    """One row of average pooling.

    Arguments: x (the first row that the windows cover), x_row, rows, width, sums (a scratch row, at
    column 0, with zeros around it), shares (1 / the divisor of each output, readable to a whole
    vector), y, count.
    """

    columns: int
    stride: int
    pad: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR."""
        e = Emitter(target, ENTRY, 8)
        x, x_row, rows, width, sums, shares, y, count = e.arguments
        build = e.builder

        def rows_of_column(offset: ir.Value, valid: ir.Value | None) -> None:
            def one_row(state: list[ir.Value]) -> list[ir.Value]:
                at, total = state
                total = build.fadd(total, e.load(at, offset, valid))
                return [build.add(at, x_row), total]

            e.store(e.repeat(rows, [x, e.zero], one_row)[1], sums, offset)

        def columns_of_window(offset: ir.Value, valid: ir.Value | None) -> None:
            total = e.zero
            for k in range(self.columns):
                part = _strided(e, sums, offset, k - self.pad, self.stride)
                total = build.fadd(total, part)
            value = build.fmul(total, e.load(shares, offset))
            if valid is None:
                e.store(value, y, offset)
            else:
                e.store_some(value, count, y)

        _vector_loop(e, width, rows_of_column)
        _vector_loop(e, count, columns_of_window)
        build.ret_void()
        return e.module
