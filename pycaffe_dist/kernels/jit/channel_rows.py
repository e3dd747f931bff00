"""Microkernels for the rows of channels: a channel has one row of values in each image.

A compiler's loops leave many values of a short row to slow code behind the loop.  Here the length
of a row is known, so that all of it is in vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from pycaffe_dist.kernels.jit.codegen.emitter import Emitter
from pycaffe_dist.kernels.jit.codegen.objects import ENTRY
from pycaffe_dist.kernels.jit.codegen.target import Target

# The most vectors of a row without a loop, and the vectors in each step of a loop.
MOST_VECTORS, STEP = 16, 4
# Bytes by which lines of the cache are fetched ahead: those of sums, and those to write to.
AHEAD = 1024

State = list[ir.Value]
# Sets ``state`` for a vector at an offset, in bytes; a mask has the lanes that are in the row.
Body = Callable[[ir.Value | int, ir.Constant | None, int, State], State]


def takes_rows(length: int) -> bool:
    """Tell whether there are microkernels for rows of this length."""
    return length > 1


def _over_row(e: Emitter, length: int, state: State, body: Body) -> State:
    """Run ``body(offset, mask, number, state)`` for each vector of a row; return the last state.

    Neighbouring vectors have other numbers, below `STEP`.
    """
    lanes, first = e.lanes, 0
    if length > MOST_VECTORS * lanes:
        steps = length // (STEP * lanes)
        first = steps * STEP * lanes

        def step(carried: State) -> State:
            at, *inner = carried
            for number in range(STEP):
                inner = body(e.add(at, 4 * lanes * number), None, number, inner)
            return [e.add(at, 4 * lanes * STEP), *inner]

        state = e.repeat(e.int(steps), [e.int(0), *state], step)[1:]
    for number, start in enumerate(range(first, length, lanes)):
        used = min(lanes, length - start)
        bits = [int(i < used) for i in range(lanes)]
        mask = None if used == lanes else ir.Constant(e.bits, bits)
        state = body(4 * start, mask, number % STEP, state)
    return state


def _store(
    e: Emitter, value: ir.Value, address: ir.Value, offset: ir.Value | int, length: int
) -> None:
    """Store a vector of a row, of which only the last may be in the row in part."""
    used = e.lanes if isinstance(offset, ir.Value) else min(e.lanes, length - offset // 4)
    e.store_first(value, used, address, offset)


@dataclass(frozen=True)
class AffineRows:
    """y = (x - shift)·scale + bias of each channel; what is not positive times a slope.

    With ``keeps`` the copy gets x.  Arguments are those of `GradientRows`: rows, x, y, copy, shift,
    scale, bias, two without a use, slope.  y may be x.
    """

    length: int
    keeps: bool

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop."""
        e = Emitter(target, ENTRY, 10)
        rows, *starts, _, _, slope = e.arguments
        build, low = e.builder, e.broadcast(slope)

        def one_row(state: State) -> State:
            at_x, at_y, at_copy, *vectors = state
            a, s, b = (e.broadcast(vector) for vector in vectors)

            def vector(offset, mask, number, nothing: State) -> State:
                e.prefetch(e.add(at_y, AHEAD), offset, level=1, write=True)
                value = e.load(at_x, offset, mask)
                result = e.multiply_add(build.fsub(value, a), s, b)
                if self.keeps:
                    _store(e, value, at_copy, offset, self.length)
                _store(e, rectified(e, result, result, low), at_y, offset, self.length)
                return []

            _over_row(e, self.length, [], vector)
            steps = [4 * self.length] * 3 + [4] * 3
            return [e.add(value, step) for value, step in zip(state, steps)]

        e.repeat(rows, starts, one_row)
        build.ret_void()
        return e.module


@dataclass(frozen=True)
class GradientRows:
    """dx = (dy - offset - (x - shift)·slope)·scale of each channel.

    With ``rectified``, dy is first multiplied by `low` where `AffineRows` has no positive result.
    Arguments: rows, x, dy, dx, shift, scale, bias, offset, slope, low.  dx may be dy.
    """

    length: int
    rectified: bool

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop."""
        e = Emitter(target, ENTRY, 10)
        rows, *starts, low = e.arguments
        build, factor = e.builder, e.broadcast(low)

        def one_row(state: State) -> State:
            at_x, at_dy, at_dx, *vectors = state
            a, s, b, o, k = (e.broadcast(vector) for vector in vectors)

            def vector(offset, mask, number, nothing: State) -> State:
                centred = build.fsub(e.load(at_x, offset, mask), a)
                gradient = e.load(at_dy, offset, mask)
                if self.rectified:
                    result = e.multiply_add(centred, s, b)
                    gradient = rectified(e, result, gradient, factor)
                rest = build.fsub(build.fsub(gradient, o), build.fmul(centred, k))
                _store(e, build.fmul(rest, s), at_dx, offset, self.length)
                return []

            _over_row(e, self.length, [], vector)
            steps = [4 * self.length] * 3 + [4] * 5
            return [e.add(value, step) for value, step in zip(state, steps)]

        e.repeat(rows, starts, one_row)
        build.ret_void()
        return e.module


@dataclass(frozen=True)
class SumRows:
    """Adds two sums of each row to doubles, by lanes.

    They are the sums of x - shift and of its square; of dy and of dy·(x - shift) with
    ``gradients``; with ``rectified`` dy is first multiplied as in `GradientRows`.  The sums of one
    row are in single precision.  Arguments: rows, x, dy, shift, scale, bias, sums (for each row the
    lanes of the first sum, and of the second), low.
    """

    length: int
    gradients: bool = False
    rectified: bool = False

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop."""
        e = Emitter(target, ENTRY, 8)
        rows, *starts, low = e.arguments
        build, factor = e.builder, e.broadcast(low)
        wide = ir.VectorType(ir.DoubleType(), e.lanes)

        def one_row(state: State) -> State:
            at_x, at_dy, *vectors, sums = state
            a, s, b = (e.broadcast(vector) for vector in vectors)

            def vector(offset, mask, number, partial: State) -> State:
                for source in (at_x, at_dy) if self.gradients else (at_x,):
                    e.prefetch(e.add(source, AHEAD), offset)
                centred = build.fsub(e.load(at_x, offset, mask), a)
                if self.gradients:
                    term = e.load(at_dy, offset, mask)
                    if self.rectified:
                        term = rectified(e, e.multiply_add(centred, s, b), term, factor)
                else:
                    centred = centred if mask is None else build.select(mask, centred, e.zero)
                    term = centred
                first, second = partial[number], partial[STEP + number]
                partial[number] = build.fadd(first, term)
                partial[STEP + number] = e.multiply_add(term, centred, second)
                return partial

            partial = _over_row(e, self.length, [e.zero] * (2 * STEP), vector)
            for which in range(2):
                one, two, three, four = partial[which * STEP : (which + 1) * STEP]
                total = build.fadd(build.fadd(one, two), build.fadd(three, four))
                place = e.place(sums, 8 * e.lanes * which, wide)
                before = build.load(place)
                before.align = 8
                build.store(build.fadd(before, build.fpext(total, wide)), place).align = 8
            steps = [4 * self.length] * 2 + [4] * 3 + [16 * e.lanes]
            return [e.add(value, step) for value, step in zip(state, steps)]

        e.repeat(rows, starts, one_row)
        build.ret_void()
        return e.module


def rectified(e: Emitter, sign: ir.Value, value: ir.Value, low: ir.Value) -> ir.Value:
    """Return value where sign > 0, else value·low."""
    positive = e.builder.fcmp_ordered(">", sign, e.zero)
    return e.builder.select(positive, value, e.builder.fmul(value, low))
