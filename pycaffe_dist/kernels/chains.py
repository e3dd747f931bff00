"""Chains: loops that are known in advance, run one after the other in machine code.

Between two loops of a chain no thread needs the interpreter.  See `jit.codegen.chains`.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from pycaffe_dist import threads
from pycaffe_dist.kernels.jit.codegen import chains as code
from pycaffe_dist.kernels.jit.codegen.objects import address_of
from pycaffe_dist.storage import aligned_zeros


class _Code(NamedTuple):
    """This machine's functions; ``callers`` by the number of words."""

    run: Callable[[int, int, int, int], None]
    serve: Callable[[int, int, int], None]
    callers: dict[int, int]
    give_way: int


@functools.cache
def _code() -> _Code | None:
    """Return the functions, or None on machines for which there are none."""
    yields = getattr(ctypes.CDLL(None), "sched_yield", None)
    addresses = [address_of(*kernel) for kernel in code.chain_kernels()]
    if not addresses or yields is None:
        return None
    run, serve = (
        ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * count)(address)
        for count, address in zip((4, 3), addresses)
    )
    callers = dict(zip(code.SIZES, addresses[2:]))
    return _Code(run, serve, callers, ctypes.cast(yields, ctypes.c_void_p).value or 0)


class _Loop(NamedTuple):
    """A loop of `parallel_for`: its kernel's address and arguments, as a chain needs them."""

    arrays: tuple  # in which the arguments are
    n: int
    grain: int
    address: int
    integers: list[int]
    reals: list[int]


class Chain:
    """Loops in machine code; `run` runs all.  The arrays stay where they are."""

    def __init__(self, loops: Sequence[_Loop], functions: _Code):
        self._loops, self._functions = tuple(loops), functions
        self._failed = ctypes.c_int64(0)
        self._arguments: list[np.ndarray] = []
        self._records = aligned_zeros(len(loops) * code.RECORD, np.dtype(np.int64))
        for row, loop in zip(self._records.reshape(len(loops), -1), loops):
            size = next(size for size in code.SIZES if size >= len(loop.integers))
            words = np.zeros(size + code.MOST_REALS, np.int64)
            words[: len(loop.integers)] = loop.integers
            words[size : size + len(loop.reals)] = loop.reals
            self._arguments.append(words)
            chunks = threads.chunks_of(loop.n, loop.grain)
            place, flag = words.ctypes.data, ctypes.addressof(self._failed)
            row[:6] = loop.address, functions.callers[size], loop.n, chunks, place, flag
        self._count, self._first = len(loops), self._records.ctypes.data

    def run(self) -> None:
        """Run the loops; raises MemoryError if one of them failed."""
        functions = self._functions
        threads.lead(self._run, functions.serve, functions.give_way)
        if self._failed.value:
            self._failed.value = 0
            raise MemoryError("a kernel failed, which only want of memory makes it do")

    def _run(self, control: int) -> None:
        self._functions.run(self._first, self._count, control, self._functions.give_way)


def chained(calls: Sequence[tuple[Callable[..., Any], tuple]]) -> list[Callable[[], Any]]:
    """Return functions that make the calls of a pass, in their order."""
    found: list[Callable[[], Any]] = []
    functions = _code()
    loops = [functions and _loop(*call) for call in calls]
    for is_loop, group in itertools.groupby(zip(loops, calls), lambda pair: bool(pair[0])):
        some = list(group)
        if functions and is_loop:
            found.append(Chain([loop for loop, _ in some if loop], functions).run)
        else:
            found += [functools.partial(function, *args) for _, (function, args) in some]
    return found


def _loop(function: Callable[..., Any], args: tuple) -> _Loop | None:
    """Return a call as a loop of a chain; None if it is none, or has an unusual argument."""
    if function is not threads.spread or not hasattr(args[0], "overloads"):
        return None
    kernel, n, arguments, grain = args
    signature = tuple(kernel.typeof_pyval(arg) for arg in (0, 1, *arguments))
    result = kernel.overloads.get(signature)
    if result is None or result.fndesc.restype != types.none:
        return None
    packer = result.target_context.get_arg_packer(result.fndesc.argtypes)
    try:
        words = [word for arg, kind in zip(arguments, signature[2:]) for word in _words(arg, kind)]
        wanted = [_is_real(kind) for kind in packer.argument_types[2:]]
    except ValueError:
        return None
    integers, reals = ([word for kind, word in words if kind is which] for which in (False, True))
    fits = len(integers) <= code.SIZES[-1] and len(reals) <= code.MOST_REALS
    if not fits or wanted != [real for real, _ in words]:
        return None
    address = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    return _Loop(arguments, n, grain, address, integers, reals)


def _is_real(kind: ir.Type) -> bool:
    if isinstance(kind, ir.FloatType | ir.DoubleType):
        return True
    if isinstance(kind, ir.PointerType) or (isinstance(kind, ir.IntType) and kind.width <= 64):
        return False
    raise ValueError("an argument that does not fit a register")


def _words(value: Any, kind: types.Type) -> Iterator[tuple[bool, int]]:
    """Yield the parts of an argument: whether each is a real number, and its bits."""
    if isinstance(kind, types.Array):
        # Nobody counts references to the memory, which the chain keeps.
        parts = 0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides
        yield from ((False, part) for part in parts)
    elif isinstance(kind, types.BaseTuple):
        for part, of_kind in zip(value, kind.types):
            yield from _words(part, of_kind)
    elif isinstance(kind, types.Float):
        bits = np.array(value, f"f{kind.bitwidth // 8}").view(f"i{kind.bitwidth // 8}")
        yield True, int(bits)
    elif isinstance(kind, types.Integer | types.Boolean):
        yield False, int(np.array(int(value)).astype(np.int64))
    elif isinstance(kind, types.NoneType):
        yield False, 0
    else:
        raise ValueError(f"an argument of type {kind}")
