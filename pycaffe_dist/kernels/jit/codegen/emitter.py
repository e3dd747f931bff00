"""A thin layer over llvmlite's IR builder: vectors, masks, loops and transposes of float32."""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding as llvm
from llvmlite import ir

from pycaffe_dist.kernels.jit.codegen.target import Target

FLOAT = ir.FloatType()
INT64, INT32, BIT = ir.IntType(64), ir.IntType(32), ir.IntType(1)
BYTES = ir.IntType(8).as_pointer()


class Emitter:
    """Builds one function ``void name(int64, …)``; addresses and strides are in bytes."""

    def __init__(self, target: Target, name: str, arguments: int):
        self.target, self.lanes = target, target.lanes
        self.vector = ir.VectorType(FLOAT, target.lanes)
        self.indices = ir.VectorType(INT32, target.lanes)
        self.bits = ir.VectorType(BIT, target.lanes)
        self.zero = ir.Constant(self.vector, [0.0] * target.lanes)
        self.undefined = ir.Constant(self.vector, ir.Undefined)
        self.module = ir.Module(name)
        self.module.triple = target.triple or llvm.get_process_triple()
        kind = ir.FunctionType(ir.VoidType(), [INT64] * arguments)
        self.function = ir.Function(self.module, kind, name)
        self.arguments = list(self.function.args)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))

    def int(self, value: int) -> ir.Constant:
        """Return a 64-bit constant."""
        return ir.Constant(INT64, value)

    def add(self, value: ir.Value, step: int | ir.Value) -> ir.Value:
        """Return value + step."""
        return self.builder.add(value, self.int(step) if isinstance(step, int) else step)

    def place(self, address: ir.Value, offset: ir.Value | int, kind: ir.Type) -> ir.Value:
        """Return a pointer to ``kind`` at ``address + offset``."""
        offset = self.int(offset) if isinstance(offset, int) else offset
        base = self.builder.inttoptr(address, BYTES)
        return self.builder.bitcast(self.builder.gep(base, [offset]), kind.as_pointer())

    def load_int(self, address: ir.Value, offset: ir.Value | int = 0) -> ir.Value:
        """Load a 64-bit integer."""
        return self.builder.load(self.place(address, offset, INT64))

    def load(
        self,
        address: ir.Value,
        offset: ir.Value | int = 0,
        mask=None,
        other: ir.Value | None = None,
    ) -> ir.Value:
        """Load a vector; lanes outside ``mask`` are not read: they are from ``other``, or zero."""
        pointer = self.place(address, offset, self.vector)
        if mask is not None:
            kinds = [pointer.type, INT32, self.bits, self.vector]
            function = self._intrinsic("llvm.masked.load", self.vector, kinds, ".p0")
            return self.builder.call(
                function, [pointer, ir.Constant(INT32, 4), mask, other or self.zero]
            )
        value = self.builder.load(pointer)
        value.align = 4
        return value

    def gather(self, address: ir.Value, offsets: list[int], mask: ir.Value) -> ir.Value:
        """Load a vector of the floats at ``address + offsets``; lanes outside ``mask`` are zero."""
        build, kind = self.builder, ir.VectorType(INT64, self.lanes)
        nothing = ir.Constant(kind, ir.Undefined)
        single = build.insert_element(nothing, address, ir.Constant(INT32, 0))
        bases = build.shuffle_vector(single, nothing, ir.Constant(self.indices, [0] * self.lanes))
        pointers = ir.VectorType(FLOAT.as_pointer(), self.lanes)
        places = build.inttoptr(build.add(bases, ir.Constant(kind, offsets)), pointers)
        kinds = [pointers, INT32, self.bits, self.vector]
        suffix = f".v{self.lanes}p0"
        function = self._intrinsic("llvm.masked.gather", self.vector, kinds, suffix)
        return build.call(function, [places, ir.Constant(INT32, 4), mask, self.zero])

    def prefetch(
        self,
        address: ir.Value,
        offset: ir.Value | int = 0,
        level: int = 2,
        write: bool = False,
    ) -> None:
        """Ask a level of caches for a line that will be read; the address need not exist."""
        kinds = [BYTES, INT32, INT32, INT32]
        name = "llvm.prefetch.p0"
        function = self.module.globals.get(name) or ir.Function(
            self.module, ir.FunctionType(ir.VoidType(), kinds), name
        )
        # LLVM counts the levels backwards from 4; the last flag stands for data.
        flags = [ir.Constant(INT32, flag) for flag in (int(write), 4 - level, 1)]
        self.builder.call(function, [self.place(address, offset, ir.IntType(8)), *flags])

    def store(self, value: ir.Value, address: ir.Value, offset=0, mask=None) -> None:
        """Store a vector, or its lanes inside ``mask``."""
        pointer = self.place(address, offset, self.vector)
        if mask is not None:
            kinds = [self.vector, pointer.type, INT32, self.bits]
            function = self._intrinsic("llvm.masked.store", ir.VoidType(), kinds, ".p0")
            self.builder.call(function, [value, pointer, ir.Constant(INT32, 4), mask])
            return
        self.builder.store(value, pointer).align = 4

    def store_first(self, value: ir.Value, count: int, address: ir.Value, offset=0) -> None:
        """Store the first ``count`` lanes; ``count`` is a constant."""
        if count == self.lanes:
            self.store(value, address, offset)
        elif self.target.level == "avx512":
            mask = ir.Constant(self.bits, [int(i < count) for i in range(self.lanes)])
            self.store(value, address, offset, mask)
        else:
            # Masked stores are slow on AVX2 and missing below it: store halves, quarters, elements.
            start, piece = 0, self.lanes // 2
            offset = self.int(offset) if isinstance(offset, int) else offset
            while piece:
                if count - start >= piece:
                    lanes = ir.Constant(
                        ir.VectorType(INT32, piece), list(range(start, start + piece))
                    )
                    part = self.builder.shuffle_vector(value, self.undefined, lanes)
                    where = self.builder.add(offset, self.int(4 * start))
                    pointer = self.place(address, where, part.type)
                    self.builder.store(part, pointer).align = 4
                    start += piece
                piece //= 2

    def load_first(self, count: int, address: ir.Value, offset=0) -> ir.Value:
        """Load the first ``count`` lanes; ``count`` is a constant, and the others are zero."""
        if count == self.lanes:
            return self.load(address, offset)
        mask = ir.Constant(self.bits, [int(i < count) for i in range(self.lanes)])
        return self.load(address, offset, mask)

    def store_some(self, value: ir.Value, count: ir.Value, address: ir.Value) -> None:
        """Store the first ``count`` lanes, not all of them; a masked store may be slow."""
        build, piece = self.builder, self.lanes // 2
        while piece:
            lanes = ir.Constant(ir.VectorType(INT32, piece), list(range(piece)))
            wanted = build.icmp_signed("!=", build.and_(count, self.int(piece)), self.int(0))
            there, go = (self.function.append_basic_block() for _ in range(2))
            build.cbranch(wanted, there, go)
            build.position_at_end(there)
            part = build.shuffle_vector(value, self.undefined, lanes)
            build.store(part, self.place(address, 0, part.type)).align = 4
            build.branch(go)
            build.position_at_end(go)
            rest = self.shuffle(value, value, [(i + piece) % self.lanes for i in range(self.lanes)])
            value = build.select(wanted, rest, value)
            address = build.select(wanted, self.add(address, 4 * piece), address)
            piece //= 2

    def broadcast(self, address: ir.Value, offset: ir.Value | int = 0) -> ir.Value:
        """Load one float into all lanes."""
        scalar = self.builder.load(self.place(address, offset, FLOAT))
        scalar.align = 4
        single = self.builder.insert_element(self.undefined, scalar, ir.Constant(INT32, 0))
        lanes = ir.Constant(self.indices, [0] * self.lanes)
        return self.builder.shuffle_vector(single, self.undefined, lanes)

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Return a·b + c, fused where the hardware can."""
        if not self.target.fused:
            return self.builder.fadd(self.builder.fmul(a, b), c)
        function = self._intrinsic("llvm.fma", self.vector, [self.vector] * 3)
        return self.builder.call(function, [a, b, c])

    def mask_below(self, count: ir.Value) -> ir.Value:
        """Return the mask of the lanes with an index below ``count``."""
        count = self.builder.trunc(count, INT32)
        nothing = ir.Constant(self.indices, ir.Undefined)
        single = self.builder.insert_element(nothing, count, ir.Constant(INT32, 0))
        zeros = ir.Constant(self.indices, [0] * self.lanes)
        limit = self.builder.shuffle_vector(single, nothing, zeros)
        lane = ir.Constant(self.indices, list(range(self.lanes)))
        return self.builder.icmp_signed("<", lane, limit)

    def minimum(self, constant: int, limit: ir.Value) -> ir.Value:
        """Return min(constant, limit) of signed 64-bit integers."""
        value = self.int(constant)
        return self.builder.select(self.builder.icmp_signed("<", value, limit), value, limit)

    def rectify(self, value: ir.Value, slope: ir.Value) -> ir.Value:
        """Return value·slope where value < 0, else value; a NaN stays a NaN."""
        negative = self.builder.fcmp_ordered("<", value, self.zero)
        return self.builder.select(negative, self.builder.fmul(value, slope), value)

    def larger(self, value: ir.Value, top: ir.Value) -> ir.Value:
        """Return the larger of two vectors' elements; a NaN in either is the result."""
        build = self.builder
        most = build.select(build.fcmp_ordered(">", value, top), value, top)
        # The maximum is top where either is a NaN.
        return build.select(build.fcmp_unordered("uno", value, value), value, most)

    def repeat(
        self,
        count: ir.Value,
        state: list[ir.Value],
        body: Callable[[list[ir.Value]], list[ir.Value]],
    ) -> list[ir.Value]:
        """Run ``state = body(state)`` ``count`` >= 1 times; return the last state."""
        build = self.builder
        before, start = build.block, self.function.append_basic_block()
        build.branch(start)
        build.position_at_end(start)
        left = build.phi(INT64)
        left.add_incoming(count, before)
        carried = [build.phi(value.type) for value in state]
        for phi, value in zip(carried, state):
            phi.add_incoming(value, before)
        new = body(carried)
        remaining, end = build.sub(left, self.int(1)), build.block
        left.add_incoming(remaining, end)
        for phi, value in zip(carried, new):
            phi.add_incoming(value, end)
        after = self.function.append_basic_block()
        build.cbranch(build.icmp_signed(">", remaining, self.int(0)), start, after)
        build.position_at_end(after)
        return new

    def transpose(self, rows: list[ir.Value]) -> list[ir.Value]:
        """Transpose a square of vectors; missing rows are zero.

        Undefined rows would be cheaper, but lead to shuffles at which LLVM's AVX-512 code generator
        ends the process ("Illegal shuffle mask").
        """
        rows = rows + [self.zero] * (self.lanes - len(rows))
        width = self.lanes // 2
        while width:
            low = [i if not i & width else self.lanes + i - width for i in range(self.lanes)]
            high = [i + width if not i & width else self.lanes + i for i in range(self.lanes)]
            for i in range(self.lanes):
                if not i & width:
                    a, b = rows[i], rows[i + width]
                    rows[i] = self.shuffle(a, b, low)
                    rows[i + width] = self.shuffle(a, b, high)
            width //= 2
        return rows

    def interleave(self, parts: list[ir.Value]) -> list[ir.Value]:
        """Return one or two vectors with their elements interleaved, as equally many vectors."""
        if len(parts) == 1:
            return parts
        turns = [i // 2 + i % 2 * self.lanes for i in range(2 * self.lanes)]
        return [
            self.shuffle(*parts, turns[: self.lanes]),
            self.shuffle(*parts, turns[self.lanes :]),
        ]

    def shuffle(self, a: ir.Value, b: ir.Value, lanes: list[int]) -> ir.Value:
        """Return the elements of a and b, concatenated, at the given indices."""
        return self.builder.shuffle_vector(a, b, ir.Constant(self.indices, lanes))

    def _intrinsic(self, name: str, result: ir.Type, arguments: list, suffix: str = ""):
        full = f"{name}.v{self.lanes}f32{suffix}"
        found = self.module.globals.get(full)
        return found or ir.Function(self.module, ir.FunctionType(result, arguments), full)
