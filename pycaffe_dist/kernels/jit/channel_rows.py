"""Microkernels for rows of a few values: small images, one row for each channel.

A compiler's loops leave most values of such a row to slow code behind the loop.  Here the length of
a row is known, so that all of it is in vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from pycaffe_dist.kernels.jit.codegen.emitter import Emitter
from pycaffe_dist.kernels.jit.codegen.objects import ENTRY
from pycaffe_dist.kernels.jit.codegen.target import Target

# Longer rows are left to loops: there the rest costs little.
MOST_VECTORS = 16


def is_short(target: Target, length: int) -> bool:
    """Tell whether microkernels take rows of this length."""
    return 1 < length <= MOST_VECTORS * target.lanes


@dataclass(frozen=True)
class _Row:
    """The vectors of a row of ``length`` values."""

    e: Emitter
    length: int

    def load(self, address: ir.Value) -> list[ir.Value]:
        """Return the row's values; behind the last one are zeros."""
        return [self.e.load(address, 4 * at, self._mask(at)) for at in self._places]

    def store(self, values: list[ir.Value], address: ir.Value) -> None:
        """Store the row."""
        for at, value in zip(self._places, values):
            self.e.store_first(value, min(self.e.lanes, self.length - at), address, 4 * at)

    @property
    def _places(self) -> range:
        return range(0, self.length, self.e.lanes)

    def _mask(self, at: int) -> ir.Constant | None:
        used = self.length - at
        if used >= self.e.lanes:
            return None
        return ir.Constant(self.e.bits, [int(i < used) for i in range(self.e.lanes)])


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
        row, build, low = _Row(e, self.length), e.builder, e.broadcast(slope)

        def one_row(state: list[ir.Value]) -> list[ir.Value]:
            at_x, at_y, at_copy, *vectors = state
            a, s, b = (e.broadcast(vector) for vector in vectors)
            values, results = row.load(at_x), []
            for value in values:
                result = e.multiply_add(build.fsub(value, a), s, b)
                results.append(rectified(e, result, result, low))
            if self.keeps:
                row.store(values, at_copy)
            row.store(results, at_y)
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
        row, build, factor = _Row(e, self.length), e.builder, e.broadcast(low)

        def one_row(state: list[ir.Value]) -> list[ir.Value]:
            at_x, at_dy, at_dx, *vectors = state
            a, s, b, o, k = (e.broadcast(vector) for vector in vectors)
            results = []
            for value, gradient in zip(row.load(at_x), row.load(at_dy)):
                centred = build.fsub(value, a)
                if self.rectified:
                    result = e.multiply_add(centred, s, b)
                    gradient = rectified(e, result, gradient, factor)
                rest = build.fsub(build.fsub(gradient, o), build.fmul(centred, k))
                results.append(build.fmul(rest, s))
            row.store(results, at_dx)
            steps = [4 * self.length] * 3 + [4] * 5
            return [e.add(value, step) for value, step in zip(state, steps)]

        e.repeat(rows, starts, one_row)
        build.ret_void()
        return e.module


def rectified(e: Emitter, sign: ir.Value, value: ir.Value, low: ir.Value) -> ir.Value:
    """Return value where sign > 0, else value·low."""
    positive = e.builder.fcmp_ordered(">", sign, e.zero)
    return e.builder.select(positive, value, e.builder.fmul(value, low))
