"""Microkernels of products whose factors are bfloat16 and whose sums are float32.

A *pair* is two neighbouring values of k, as bfloat16 in the halves of 32 bits, the first one low.
A *step* of a product is `PAIRS` pairs, which fill a cache line.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from pycaffe_dist.kernels.jit.codegen.emitter import Emitter
from pycaffe_dist.kernels.jit.codegen.objects import ENTRY
from pycaffe_dist.kernels.jit.codegen.target import Target

PAIRS = 16
LINE = 4 * PAIRS
# A tile register has 16 rows of a line; 4 registers hold sums, 2 hold tiles of A and 2 of B.
TILE = 16
_A, _B = 4, 6
_BYTE = ir.IntType(8)


@dataclass(frozen=True)
class TileKernel:
    """A block of ``rows`` × ``columns`` sums in tile registers (AMX)::

        out[i, j] = Σ a[offsets[s] + LINE·i + 4·p] · b[s, p, j]  for s < steps, p < PAIRS

    where a product of pairs is the sum of two products, and a step of B has ``b_columns``.
    Arguments: a, offsets (int64 each, in bytes), b, steps, out.
    """

    rows: int
    columns: int
    b_columns: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop."""
        e = Emitter(target, ENTRY, 5)
        a, offsets, b, steps, out = e.arguments
        b_row = e.int(4 * self.b_columns)
        tiles = [(i, j) for i in range(self.rows // TILE) for j in range(self.columns // TILE)]

        def one_step(state: list[ir.Value]) -> list[ir.Value]:
            at_offset, at_b = state
            at_a = e.add(a, e.load_int(at_offset))
            for i in range(self.rows // TILE):
                _tile(e, "tileloadd64", _A + i, e.place(at_a, i * TILE * LINE, _BYTE), e.int(LINE))
            for j in range(self.columns // TILE):
                _tile(e, "tileloadd64", _B + j, e.place(at_b, j * 4 * TILE, _BYTE), b_row)
            for i, j in tiles:
                _tile(e, "tdpbf16ps", 2 * i + j, _A + i, _B + j)
            return [e.add(at_offset, 8), e.add(at_b, LINE * self.b_columns)]

        for i, j in tiles:
            _tile(e, "tilezero", 2 * i + j)
        e.repeat(steps, [offsets, b], one_step)
        for i, j in tiles:
            at = e.place(out, 4 * TILE * (i * self.columns + j), _BYTE)
            _tile(e, "tilestored64", 2 * i + j, at, e.int(4 * self.columns))
        e.builder.ret_void()
        return e.module


@dataclass(frozen=True)
class TileSwitch:
    """Sets up the tile registers of the calling thread, or gives them back.

    Arguments: the address of the setup, and 1 to set up or 0.
    """

    def build(self, target: Target) -> ir.Module:
        """Return the IR."""
        e = Emitter(target, ENTRY, 2)
        setup, on = e.arguments
        begin, end, done = (e.function.append_basic_block() for _ in range(3))
        e.builder.cbranch(e.builder.icmp_signed("!=", on, e.int(0)), begin, end)
        e.builder.position_at_end(begin)
        _tile(e, "ldtilecfg", e.place(setup, 0, _BYTE))
        e.builder.branch(done)
        e.builder.position_at_end(end)
        _tile(e, "tilerelease")
        e.builder.branch(done)
        e.builder.position_at_end(done)
        e.builder.ret_void()
        return e.module


@dataclass(frozen=True)
class PairKernel:
    """The same block of sums as `TileKernel` in vector registers.

    With ``dots`` the processor multiplies pairs (AVX512-BF16), else they become float32 numbers.
    """

    rows: int
    columns: int
    b_columns: int
    dots: bool

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loops."""
        e = Emitter(target, ENTRY, 5)
        a, offsets, b, steps, out = e.arguments
        multiply, split = (_dot, _unsplit) if self.dots else (_multiply, _split)
        vectors = self.columns // e.lanes

        def one_pair(state: list[ir.Value]) -> list[ir.Value]:
            at_a, at_b, *sums = state
            lanes = [split(e, _bits(e, e.load(at_b, 4 * e.lanes * j))) for j in range(vectors)]
            for i in range(self.rows):
                value = split(e, _bits(e, e.broadcast(at_a, LINE * i)))
                for j, lane in enumerate(lanes):
                    sums[i * vectors + j] = multiply(e, value, lane, sums[i * vectors + j])
            return [e.add(at_a, 4), e.add(at_b, 4 * self.b_columns), *sums]

        def one_step(state: list[ir.Value]) -> list[ir.Value]:
            at_offset, at_b, *sums = state
            start = [e.add(a, e.load_int(at_offset)), at_b, *sums]
            _, at_b, *sums = e.repeat(e.int(PAIRS), start, one_pair)
            return [e.add(at_offset, 8), at_b, *sums]

        start = [offsets, b, *[e.zero] * (self.rows * vectors)]
        for at, value in enumerate(e.repeat(steps, start, one_step)[2:]):
            e.store(value, out, 4 * e.lanes * at)
        e.builder.ret_void()
        return e.module


@dataclass(frozen=True)
class RoundKernel:
    """Rounds pixels of up to 2·PAIRS channels to lines of pairs; reads every ``step``-th pixel::

        out[LINE·j + 4·p] = pair(x[2·p·plane + 4·step·j], x[(2·p + 1)·plane + 4·step·j])

    for j < count, up to the lanes.  Missing channels are 0.  Arguments: x, plane, channels, out,
    count.
    """

    step: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR."""
        e = Emitter(target, ENTRY, 5)
        x, plane, channels, out, count = e.arguments
        mask = e.mask_below(count)
        last_channel, last = (e.builder.sub(n, e.int(1)) for n in (channels, count))

        def near(channel: int) -> ir.Value:
            at = e.add(x, e.builder.mul(plane, e.minimum(channel, last_channel)))
            there = e.builder.icmp_signed("<", e.int(channel), channels)
            return e.builder.select(there, _near(e, self._load(e, at, mask)), zeros)

        zeros = ir.Constant(e.indices, [0] * e.lanes)
        lines = [[] for _ in range(e.lanes)]
        for first in range(0, PAIRS, e.lanes):
            pairs = [_pair(e, near(2 * p), near(2 * p + 1)) for p in range(first, first + e.lanes)]
            for line, part in zip(lines, e.transpose(pairs)):
                line.append(part)
        # Pixels beyond the last one use its memory; it is written last.
        for j in reversed(range(e.lanes)):
            at = e.add(out, e.builder.mul(e.minimum(j, last), e.int(LINE)))
            for part, value in enumerate(lines[j]):
                e.store(value, at, 4 * e.lanes * part)
        e.builder.ret_void()
        return e.module

    def _load(self, e: Emitter, address: ir.Value, mask: ir.Value) -> ir.Value:
        if self.step == 1:
            return e.load(address, 0, mask)
        return e.gather(address, [4 * self.step * lane for lane in range(e.lanes)], mask)


@dataclass(frozen=True)
class EndKernel:
    """Ends sums of pixels (rows) and output channels (columns), which it transposes::

        y[j·plane + 4·i] = sums[rows[i]·sums_row + 4·j] + bias[j] (+ y[…] if ``adds``), rectified

    for i < count, up to the lanes, and j < channels.  Arguments: sums, sums_row, rows (int64 each),
    count, bias, slope, y, plane, channels.
    """

    adds: bool

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop."""
        e = Emitter(target, ENTRY, 9)
        sums, sums_row, rows, count, bias, slope, y, plane, channels = e.arguments
        build, factor, mask = e.builder, e.broadcast(slope), e.mask_below(count)
        last_pixel, vector_bytes = build.sub(count, e.int(1)), 4 * e.lanes
        places = [build.mul(e.minimum(i, last_pixel), e.int(8)) for i in range(e.lanes)]
        offsets = [build.mul(e.load_int(rows, place), sums_row) for place in places]

        def one_vector(state: list[ir.Value]) -> list[ir.Value]:
            at_sums, at_bias, at_y, left = state
            last = build.sub(left, e.int(1))
            # Channels beyond the last one use its memory; it is written last.
            indices = [e.minimum(j, last) for j in range(e.lanes)]
            targets = [e.add(at_y, build.mul(index, plane)) for index in indices]
            values = e.transpose([e.load(at_sums, offset) for offset in offsets])
            for j, (index, to) in enumerate(zip(indices, targets)):
                shift = e.broadcast(at_bias, build.mul(index, e.int(4)))
                values[j] = build.fadd(values[j], shift)
                if self.adds:
                    values[j] = build.fadd(values[j], e.load(to, 0, mask))
            for value, to in reversed([*zip(values, targets)]):
                e.store(e.rectify(value, factor), to, 0, mask)
                e.prefetch(to, 4 * e.lanes * 4, 1, write=True)
            steps = vector_bytes, vector_bytes, build.mul(plane, e.int(e.lanes)), -e.lanes
            return [e.add(value, step) for value, step in zip(state, steps)]

        vectors = build.sdiv(e.add(channels, e.lanes - 1), e.int(e.lanes))
        e.repeat(vectors, [sums, bias, y, channels], one_vector)
        build.ret_void()
        return e.module


def _tile(e: Emitter, name: str, *operands: ir.Value | int) -> None:
    """Emit an instruction for tile registers, which are given by their numbers."""
    values = [
        ir.Constant(_BYTE, operand) if isinstance(operand, int) else operand for operand in operands
    ]
    _call(e, f"llvm.x86.{name}", ir.VoidType(), values)


def _call(e: Emitter, name: str, result: ir.Type, values: list[ir.Value]) -> ir.Value:
    kind = ir.FunctionType(result, [value.type for value in values])
    return e.builder.call(e.module.globals.get(name) or ir.Function(e.module, kind, name), values)


def _bits(e: Emitter, value: ir.Value) -> ir.Value:
    return e.builder.bitcast(value, e.indices)


def _same(e: Emitter, number: int) -> ir.Constant:
    return ir.Constant(e.indices, [number] * e.lanes)


def _split(e: Emitter, pairs: ir.Value) -> list[ir.Value]:
    """Return the first and the second numbers of pairs, as float32."""
    first = e.builder.shl(pairs, _same(e, 16))
    second = e.builder.and_(pairs, _same(e, -65536))
    return [e.builder.bitcast(bits, e.vector) for bits in (first, second)]


def _unsplit(e: Emitter, pairs: ir.Value) -> list[ir.Value]:
    return [pairs]


def _multiply(e: Emitter, a: list[ir.Value], b: list[ir.Value], total: ir.Value) -> ir.Value:
    for left, right in zip(a, b):
        total = e.multiply_add(left, right, total)
    return total


def _dot(e: Emitter, a: list[ir.Value], b: list[ir.Value], total: ir.Value) -> ir.Value:
    return _call(e, "llvm.x86.avx512bf16.dpbf16ps.512", e.vector, [total, *a, *b])


def _near(e: Emitter, value: ir.Value) -> ir.Value:
    """Return numbers rounded to nearest even in their upper 16 bits; a NaN stays a NaN."""
    build, bits = e.builder, _bits(e, value)
    odd = build.and_(build.lshr(bits, _same(e, 16)), _same(e, 1))
    near = build.add(build.add(bits, _same(e, 0x7FFF)), odd)
    size = build.and_(bits, _same(e, 0x7FFFFFFF))
    is_nan = build.icmp_signed(">", size, _same(e, 0x7F800000))
    return build.select(is_nan, build.or_(bits, _same(e, 0x400000)), near)


def _pair(e: Emitter, first: ir.Value, second: ir.Value) -> ir.Value:
    low = e.builder.lshr(first, _same(e, 16))
    high = e.builder.and_(second, _same(e, -65536))
    return e.builder.bitcast(e.builder.or_(low, high), e.vector)
