"""The emulated GPU's memory: allocations between guards, and pools that keep them for graphs."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from pycaffe_dist.errors import DeviceError

# Written before and after every allocation, and checked after every launch.
GUARD_BYTES = 64
_GUARD = 0xA5
GARBAGE = 0xFF  # what an `empty` array holds: NaN, as floats


class _Guarded(np.ndarray):
    """The bytes of one allocation with its guards."""


class _Lease(np.ndarray):
    """The same bytes while arrays use them: a pool gets them back when the last one is gone."""


class Pool:
    """Allocations that return here when no array uses them any more, for arrays of their size."""

    def __init__(self) -> None:
        self._all: list[np.ndarray] = []
        self._free: dict[int, list[np.ndarray]] = {}
        self.is_closed = False  # whether to refuse new allocations

    def take(self, count: int) -> np.ndarray:
        """Return memory of ``count`` bytes; raises DeviceError if a capture needs a new piece."""
        free = self._free.setdefault(count, [])
        if not free:
            if self.is_closed:
                raise DeviceError(f"{count} bytes are allocated while a graph is captured")
            self._all.append(_new(count))
            free.append(self._all[-1])
        raw = free.pop()
        lease = raw.view(_Lease)
        weakref.finalize(lease, free.append, raw)
        return lease


class _Current(threading.local):
    pool: Pool | None = None


_here = _Current()


@contextlib.contextmanager
def allocating_from(pool: Pool) -> Iterator[None]:
    """Let this thread's arrays come from ``pool``."""
    before, _here.pool = _here.pool, pool
    try:
        yield
    finally:
        _here.pool = before


def uses_pool() -> bool:
    """Tell whether this thread's arrays come from a pool."""
    return _here.pool is not None


def _new(count: int) -> np.ndarray:
    return np.full(count + 3 * GUARD_BYTES, _GUARD, np.uint8).view(_Guarded)


def _start(raw: np.ndarray) -> int:
    return GUARD_BYTES + -raw.ctypes.data % GUARD_BYTES


def allocate(shape: Any, dtype: Any, fill: int = GARBAGE) -> np.ndarray:
    """Return a host array between guards, all its bytes equal to ``fill``."""
    dtype = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = _new(count) if _here.pool is None else _here.pool.take(count)
    inner = raw[_start(raw) : _start(raw) + count]
    inner[...] = fill
    # Its base is the whole allocation, which has the guards.
    return np.ndarray(shape, dtype, buffer=inner)


def _owner(array: np.ndarray) -> np.ndarray:
    """Return the array that owns the memory of ``array``, with its guards if it has any."""
    while type(array) is not _Guarded or isinstance(array.base, _Guarded):
        if not isinstance(array.base, np.ndarray):
            break
        array = array.base
    return array


def guards_are_intact(array: np.ndarray) -> bool:
    """Tell whether the guards of the allocation of ``array`` are unchanged."""
    base = _owner(array)
    if type(base) is not _Guarded:
        return True  # the result of an array function
    raw = base.view(np.ndarray)
    start, count = _start(raw), raw.size - 3 * GUARD_BYTES
    return bool((raw[:start] == _GUARD).all() and (raw[start + count :] == _GUARD).all())


def is_part_of(array: np.ndarray, others: list[np.ndarray]) -> bool:
    """Tell whether an array lies in the memory of any of ``others``."""
    owner = _owner(array)
    return any(_owner(other) is owner for other in others)


class Place:
    """Where an array lies, for a graph: like a pointer, it keeps no memory."""

    def __init__(self, array: np.ndarray):
        self._owner = weakref.ref(_owner(array))
        self._shape, self._dtype, self._strides = array.shape, array.dtype, array.strides
        self._address, self._size = array.ctypes.data, array.size
        self._low, high = np.lib.array_utils.byte_bounds(array)
        self._bytes = high - self._low

    def array(self) -> np.ndarray:
        """Return the array; raises DeviceError if its memory has been freed."""
        memory: Any = self._owner()
        if memory is None:
            raise DeviceError("a graph uses an array whose memory was freed after its capture")
        if not self._size:
            return np.empty(self._shape, self._dtype)
        begin = memory.ctypes.data
        if type(memory) is not _Guarded:  # it may have any layout
            begin, memory = self._low, (ctypes.c_char * self._bytes).from_address(self._low)
        offset = self._address - begin
        return np.ndarray(self._shape, self._dtype, memory, offset, self._strides)
