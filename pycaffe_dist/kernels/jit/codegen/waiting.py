"""Waits for another thread without sleeping: waking up takes longer than a small kernel."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from pycaffe_dist.kernels.jit.codegen.emitter import INT64, Emitter
from pycaffe_dist.kernels.jit.codegen.objects import ENTRY, address_of
from pycaffe_dist.kernels.jit.codegen.target import Target, host_target


@dataclass(frozen=True)
class SwapKernel:
    """Stores a value for one thread, and waits a while for a value of another thread.

    Stores ``value`` at ``to``, then reads ``watch`` up to ``spins`` times until it is at least
    ``wanted``; then it pauses ``delay`` times more.  Arguments: to, value, watch, wanted, spins,
    delay.
    """

    machine: str

    def build(self, target: Target) -> ir.Module:
        """Return the IR."""
        e = Emitter(target, ENTRY, 6)
        to, value, watch, wanted, spins, delay = e.arguments
        build = e.builder
        look, again, found, done = (e.function.append_basic_block() for _ in range(4))
        build.store_atomic(value, e.place(to, 0, INT64), "release", 8)
        before = build.block
        build.branch(look)
        build.position_at_end(look)
        left = build.phi(INT64)
        left.add_incoming(spins, before)
        seen = build.load_atomic(e.place(watch, 0, INT64), "acquire", 8)
        build.cbranch(build.icmp_signed(">=", seen, wanted), found, again)
        build.position_at_end(again)
        pause(e, self.machine)
        remaining = build.sub(left, e.int(1))
        left.add_incoming(remaining, again)
        build.cbranch(build.icmp_signed(">", remaining, e.int(0)), look, done)
        build.position_at_end(found)

        def rest(state: list[ir.Value]) -> list[ir.Value]:
            pause(e, self.machine)
            return state

        e.repeat(delay, [], rest)
        build.branch(done)
        build.position_at_end(done)
        build.ret_void()
        return e.module


def pause(e: Emitter, machine: str) -> None:
    """Let the processor rest for a moment, on a machine of this kind, if it can."""
    names = {"x86_64": "llvm.x86.sse2.pause", "AMD64": "llvm.x86.sse2.pause"}
    name = names.get(machine)
    if name is None:
        return
    kind = ir.FunctionType(ir.VoidType(), [])
    function = e.module.globals.get(name) or ir.Function(e.module, kind, name)
    e.builder.call(function, [])


def swap_kernel() -> tuple[SwapKernel, Target]:
    """Return the specification of this machine's `swap_function`, and its target."""
    return SwapKernel(platform.machine()), host_target()


def swap_function() -> Callable[[int, int, int, int, int, int], None]:
    """Return `SwapKernel` as a Python function that releases the interpreter lock."""
    address = address_of(*swap_kernel())
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(address)
