"""Runs compiled kernels one after the other, in chunks that threads draw without the interpreter.

A record describes a loop by `RECORD` 64-bit words: the address of its kernel, of a `CallKernel`,
the number of indices, of chunks, the address of the arguments, of a flag that a failed kernel
sets, and in the cache line after these the number of the next chunk.

A thread that runs records shows the present one to others in a control block, with a cache line for
each of these: the record's address or 0, how many threads may be working on it, whether records are
being run, and whether others shall leave, with the number of pauses before a thread gives way.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

from llvmlite import ir

from pycaffe_dist import threads
from pycaffe_dist.kernels.jit.codegen.emitter import INT32, INT64, Emitter
from pycaffe_dist.kernels.jit.codegen.objects import ENTRY, Specification
from pycaffe_dist.kernels.jit.codegen.target import Target, host_target
from pycaffe_dist.kernels.jit.codegen.waiting import pause

RECORD = 16
KERNEL, CALLER, COUNT, CHUNKS, ARGUMENTS, FAILED = range(0, 48, 8)
NEXT = 64
SHOWN, WORKING, RUNNING, LEAVING = 0, 64, 8 * threads.RUNNING, 8 * threads.LEAVING
PAUSES = 8 * threads.PAUSES
# The sizes of `CallKernel`: surplus integers do no harm.
SIZES = 24, 48, 96, 192
# Arguments of a kernel that are no integers or addresses; all of them fit into registers.
MOST_REALS = 8
# What a compiled function that returns None returns if it ends well.
_ENDS = 0, -2


@dataclass(frozen=True)
class CallKernel:
    """Calls a compiled function with ``integers`` more words, and `MOST_REALS` real numbers.

    Arguments: the function, its two first arguments, the address of the others, and of a flag that
    is set if the function fails.
    """

    integers: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR."""
        e = Emitter(target, ENTRY, 5)
        function, begin, end, words, failed = e.arguments
        build, double = e.builder, ir.DoubleType()
        # Room for a result and for the description of an error.
        room = [build.ptrtoint(build.alloca(INT64), INT64) for _ in range(2)]
        integers = [e.load_int(words, 8 * i) for i in range(self.integers)]
        places = range(8 * self.integers, 8 * (self.integers + MOST_REALS), 8)
        reals = [build.load(e.place(words, place, double)) for place in places]
        given = [*room, begin, end, *integers, *reals]
        kind = ir.FunctionType(INT32, [value.type for value in given])
        status = build.call(build.inttoptr(function, kind.as_pointer()), given)
        ends = [build.icmp_signed("==", status, ir.Constant(INT32, code)) for code in _ENDS]
        with build.if_then(build.not_(build.or_(*ends)), likely=False):
            build.store_atomic(e.int(1), e.place(failed, 0, INT64), "release", 8)
        build.ret_void()
        return e.module


@dataclass(frozen=True)
class RunKernel:
    """Runs records; other threads may draw chunks of records that have several.

    Arguments: the first record, their number, the control block, the address of a function that
    lets other threads of the system run.
    """

    machine: str

    def build(self, target: Target) -> ir.Module:
        """Return the IR."""
        e = Emitter(target, ENTRY, 4)
        records, count, control, give_way = e.arguments
        build = e.builder
        _store(e, e.int(1), control, RUNNING)

        def one(state: list[ir.Value]) -> list[ir.Value]:
            (record,) = state
            _store(e, e.int(0), record, NEXT)
            several = build.icmp_signed(">", e.load_int(record, CHUNKS), e.int(1))
            with build.if_then(several):
                _store(e, record, control, SHOWN)
            _draw(e, record)
            with build.if_then(several):
                _store(e, e.int(0), control, SHOWN)
                self._wait(e, control, give_way)
            return [e.add(record, 8 * RECORD)]

        e.repeat(count, [records], one)
        _store(e, e.int(0), control, RUNNING)
        build.ret_void()
        return e.module

    def _wait(self, e: Emitter, control: ir.Value, give_way: ir.Value) -> None:
        """Wait until no thread works on the record."""
        build = e.builder
        look, rest, done = (e.function.append_basic_block() for _ in range(3))
        before = build.block
        build.branch(look)
        build.position_at_end(look)
        turn = build.phi(INT64)
        turn.add_incoming(e.int(0), before)
        build.cbranch(_is_zero(e, _load(e, control, WORKING)), done, rest)
        build.position_at_end(rest)
        _rest(e, self.machine, turn, control, give_way)
        turn.add_incoming(e.add(turn, 1), build.block)
        build.branch(look)
        build.position_at_end(done)


@dataclass(frozen=True)
class ServeKernel:
    """Draws chunks of the records that another thread shows.

    Returns after it has looked ``spins`` times while no records were being run, or if it shall
    leave.  Arguments: the control block, spins, the address of a function that lets other threads
    of the system run.
    """

    machine: str

    def build(self, target: Target) -> ir.Module:
        """Return the IR."""
        e = Emitter(target, ENTRY, 3)
        control, spins, give_way = e.arguments
        build = e.builder
        look, work, idle, done = (e.function.append_basic_block() for _ in range(4))
        before = build.block
        build.branch(look)
        build.position_at_end(look)
        left, turn, last = (build.phi(INT64) for _ in range(3))
        left.add_incoming(spins, before)
        for number in (turn, last):
            number.add_incoming(e.int(0), before)
        shown = _load(e, control, SHOWN)
        # A record that had no chunk left has none until another, or none, is shown.
        build.cbranch(
            build.or_(_is_zero(e, shown), build.icmp_signed("==", shown, last)), idle, work
        )

        build.position_at_end(work)
        # Announced before the second look: after hiding a record its owner looks for us.
        place = e.place(control, WORKING, INT64)
        build.atomic_rmw("add", place, e.int(1), "seq_cst")
        record = _load(e, control, SHOWN)
        with build.if_then(build.not_(_is_zero(e, record))):
            _draw(e, record)
        build.atomic_rmw("sub", place, e.int(1), "seq_cst")
        left.add_incoming(spins, build.block)
        turn.add_incoming(e.int(0), build.block)
        last.add_incoming(record, build.block)
        build.branch(look)

        build.position_at_end(idle)
        runs = build.not_(_is_zero(e, _load(e, control, RUNNING)))
        _rest(e, self.machine, build.select(runs, turn, e.int(0)), control, give_way)
        fewer = build.select(runs, left, build.sub(left, e.int(1)))
        stays = build.icmp_signed(">", fewer, e.int(0))
        stays = build.and_(stays, _is_zero(e, _load(e, control, LEAVING)))
        left.add_incoming(fewer, build.block)
        turn.add_incoming(e.add(turn, 1), build.block)
        last.add_incoming(shown, build.block)
        build.cbranch(stays, look, done)
        build.position_at_end(done)
        build.ret_void()
        return e.module


def _load(e: Emitter, address: ir.Value, offset: int) -> ir.Value:
    return e.builder.load_atomic(e.place(address, offset, INT64), "seq_cst", 8)


def _store(e: Emitter, value: ir.Value, address: ir.Value, offset: int) -> None:
    e.builder.store_atomic(value, e.place(address, offset, INT64), "seq_cst", 8)


def _is_zero(e: Emitter, value: ir.Value) -> ir.Value:
    return e.builder.icmp_signed("==", value, e.int(0))


def _rest(e: Emitter, machine: str, turn: ir.Value, control: ir.Value, give_way: ir.Value) -> None:
    """Pause; after many turns let other threads run, which may be the one that is waited for."""
    build = e.builder
    long = build.icmp_signed(">=", turn, e.load_int(control, PAUSES))
    with build.if_else(long) as (then, otherwise):
        with then:
            kind = ir.FunctionType(INT32, []).as_pointer()
            build.call(build.inttoptr(give_way, kind), [])
        with otherwise:
            pause(e, machine)


def _draw(e: Emitter, record: ir.Value) -> None:
    """Run chunks of a record until none is left."""
    build = e.builder
    kernel, caller, count, chunks, arguments, failed = (
        e.load_int(record, place) for place in range(KERNEL, FAILED + 8, 8)
    )
    kind = ir.FunctionType(ir.VoidType(), [INT64] * 5).as_pointer()
    function = build.inttoptr(caller, kind)
    draw, run, done = (e.function.append_basic_block() for _ in range(3))
    build.branch(draw)
    build.position_at_end(draw)
    chunk = build.atomic_rmw("add", e.place(record, NEXT, INT64), e.int(1), "seq_cst")
    build.cbranch(build.icmp_signed("<", chunk, chunks), run, done)
    build.position_at_end(run)
    limits = (build.sdiv(build.mul(count, number), chunks) for number in (chunk, e.add(chunk, 1)))
    build.call(function, [kernel, *limits, arguments, failed])
    build.branch(draw)
    build.position_at_end(done)


def chain_kernels() -> list[tuple[Specification, Target]]:
    """Return `RunKernel`, `ServeKernel` and the `CallKernel` of each size, with their target.

    None for machines whose convention for calls does not give integers and real numbers registers
    of their own, in order.
    """
    machine, unit = platform.machine(), host_target()
    if machine not in ("x86_64", "aarch64"):
        return []
    kinds: list[Specification] = [RunKernel(machine), ServeKernel(machine)]
    return [(kind, unit) for kind in (*kinds, *map(CallKernel, SIZES))]
