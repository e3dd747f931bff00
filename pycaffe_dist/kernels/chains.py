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


class Chain:
    """Loops, each as (kernel, n, args, grain) of `parallel_for`; `run` runs all.

    The arrays stay where they are, and the numbers do not change.  Raises ValueError if a kernel's
    arguments are not understood.
    """

    def __init__(self, loops: Sequence[tuple], functions: _Code):
        self._loops, self._functions = tuple(loops), functions
        self._failed = ctypes.c_int64(0)
        self._arguments: list[np.ndarray] = []
        self._records = aligned_zeros(len(loops) * code.RECORD, np.dtype(np.int64))
        for row, (kernel, n, args, grain) in zip(self._records.reshape(len(loops), -1), loops):
            address, integers, reals = _compiled(kernel, args)
            size = next((size for size in code.SIZES if size >= len(integers)), 0)
            if not size or len(reals) > code.MOST_REALS:
                raise ValueError("too many arguments")
            words = np.zeros(size + code.MOST_REALS, np.int64)
            words[: len(integers)], words[size : size + len(reals)] = integers, reals
            self._arguments.append(words)
            chunks = threads.chunks_of(n, grain)
            place, flag = words.ctypes.data, ctypes.addressof(self._failed)
            row[:6] = address, functions.callers[size], n, chunks, place, flag
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
    for is_loop, group in itertools.groupby(calls, _is_compiled):
        some = list(group)
        try:
            if functions is None or not is_loop:
                raise ValueError("no machine code")
            found.append(Chain([args for _, args in some], functions).run)
        except ValueError:
            found += [functools.partial(function, *args) for function, args in some]
    return found


def _is_compiled(call: tuple[Callable[..., Any], tuple]) -> bool:
    function, args = call
    return function is threads.spread and hasattr(args[0], "overloads")


def _compiled(kernel: Any, args: tuple) -> tuple[int, list[int], list[int]]:
    """Return the address of a kernel for arguments, and these as integers and as real numbers."""
    signature = tuple(kernel.typeof_pyval(arg) for arg in (0, 1, *args))
    result = kernel.overloads.get(signature)
    if result is None or result.fndesc.restype != types.none:
        raise ValueError("not compiled")
    words = [word for arg, kind in zip(args, signature[2:]) for word in _words(arg, kind)]
    packer = result.target_context.get_arg_packer(result.fndesc.argtypes)
    wanted = [_is_real(kind) for kind in packer.argument_types[2:]]
    if wanted != [real for real, _ in words]:
        raise ValueError("another convention for arguments")
    address = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    integers, reals = ([word for kind, word in words if kind is which] for which in (False, True))
    return address, integers, reals


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
    else:
        raise ValueError(f"an argument of type {kind}")
