"""GPUs, streams, events, graphs and memory, over the parts of the emulated GPU."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from cupy import _machine
from cupy._machine import CUDARuntimeError, check_stream
from cupy.cuda import driver, runtime
from pycaffe_dist.gpu import emulated_memory
from pycaffe_dist.gpu.emulated_graph import Recording
from pycaffe_dist.kernels.cuda.arguments import POINTER
from pycaffe_dist.kernels.cuda.source import Signature, Source, argument_types

__all__ = ["driver", "runtime"]


class Device:
    """A GPU of the runtime, by its number."""

    compute_capability = "90"

    def __init__(self, device: int):
        self.pci_bus_id = f"0000:{device:02X}:00.0"


class Stream:
    """A stream; only of streams that wait for no other, and for the GPU that is current."""

    def __init__(self, *, non_blocking: bool):
        if not non_blocking:
            raise ValueError("the stream would wait for CUDA's default stream")
        self.ptr = _machine.new_address()
        self.device_id = runtime.getDevice()
        self._recording: Recording | None = None
        self._pool: MemoryPool | None = None
        _machine.streams[self.ptr] = self

    def __enter__(self) -> Stream:
        if self.device_id != runtime.getDevice():
            raise RuntimeError(f"the stream of GPU {self.device_id} is entered on another GPU")
        _here.entered.append(self.device_id)
        _here.streams[self.device_id].append(self)
        return self

    def __exit__(self, *args: object) -> None:
        _here.streams[_here.entered.pop()].pop()

    def wait_event(self, event: Event) -> None:
        _machine.gpu().wait(event._marker)

    def synchronize(self) -> None:
        _machine.gpu().synchronize_stream()

    def begin_capture(self) -> None:
        """Begin to record; what is recorded may use only free memory of the current pool."""
        if _here.pool is None:
            raise RuntimeError("a capture takes its arrays from a pool: enter using_allocator")
        # A graph keeps no memory.
        self._pool, self._recording = _here.pool, Recording(weakref.proxy(_here.pool))
        self._recording.__enter__()

    def end_capture(self) -> Graph:
        if self._recording is None or self._pool is None:
            raise CUDARuntimeError("cudaErrorIllegalState: the stream does not capture")
        self._recording.__exit__()
        graph = Graph(self._recording, self._pool)
        self._recording = self._pool = None
        return graph

    @property
    def _is_recorded(self) -> bool:
        """Whether a graph takes what is enqueued."""
        return self._recording is not None


class _Null:
    """CUDA's default stream, which none of ours waits for."""

    ptr = 0


class _Current(threading.local):
    pool: MemoryPool | None = None

    def __init__(self) -> None:
        self.entered: list[int] = []
        self.streams: defaultdict[int, list[Any]] = defaultdict(lambda: [_Null])


_here = _Current()


def get_current_stream() -> Any:
    return _here.streams[runtime.getDevice()][-1]


class Event:
    """An event that keeps no times."""

    def __init__(self, *, disable_timing: bool):
        if not disable_timing:
            raise ValueError("the event would keep times")
        self._marker: Any = None

    def record(self) -> None:
        check_stream(get_current_stream().ptr)
        self._marker = _machine.gpu().record()

    def synchronize(self) -> None:
        _machine.gpu().synchronize_event(self._marker)

    @property
    def done(self) -> bool:
        return _machine.gpu().is_reached(self._marker)


class Graph:
    """What a stream has recorded; it must not outlive the pool that its arrays are from."""

    def __init__(self, recording: Recording, pool: MemoryPool):
        self._recording, self._pool = recording, weakref.ref(pool)

    def launch(self) -> None:
        check_stream(get_current_stream().ptr)
        if self._pool() is None:
            raise CUDARuntimeError("the pool of a graph's arrays was freed")
        self._recording.launch()


class Memory:
    """Bytes outside of pools."""

    def __init__(self, size: int):
        self._bytes = np.empty(size + 256, np.uint8)
        self.ptr, self.size = -(-self._bytes.ctypes.data // 256) * 256, size


class MemoryPool(emulated_memory.Pool):
    """A pool of memory."""

    def malloc(self, size: int) -> np.ndarray:
        return self.take(size)

    def total_bytes(self) -> int:
        return sum(each.nbytes for each in self._all)

    def used_bytes(self) -> int:
        free = itertools.chain(*self._free.values())
        return self.total_bytes() - sum(each.nbytes for each in free)

    def free_all_blocks(self) -> None:
        free = {id(each) for each in itertools.chain(*self._free.values())}
        self._all = [each for each in self._all if id(each) not in free]
        for each in self._free.values():
            each.clear()


@contextlib.contextmanager
def using_allocator(allocator: Callable[[int], Any]) -> Iterator[None]:
    """Let this thread's arrays come from the pool whose ``malloc`` is given."""
    before, _here.pool = _here.pool, allocator.__self__
    try:
        with emulated_memory.allocating_from(_here.pool):
            yield
    finally:
        _here.pool = before


class Function:
    """A kernel for the current GPU, at an address while this object lives."""

    def __init__(self, source: Source, signature: Signature, binding: Mapping[str, np.dtype]):
        self._types = argument_types(signature, binding)
        self._launch = _machine.gpu().function(source, signature, binding)
        self.ptr = _machine.new_address()
        _machine.functions[self.ptr] = self

    def _run(self, grid: tuple, block: tuple, shared: int, parameters: int) -> None:
        """Run the kernel, or record it with its arguments; ``parameters`` has their addresses."""
        places = (ctypes.c_void_p * len(self._types)).from_address(parameters)
        arguments = [_value(type_, place) for type_, place in zip(self._types, places)]
        self._launch(grid, block, parameters, shared, tuple(arguments))


def _value(type_: str, address: int) -> Any:
    dtype = np.dtype(np.uintp if type_ == POINTER else type_)
    memory = (ctypes.c_char * dtype.itemsize).from_address(address)
    return np.frombuffer(memory, dtype)[0].item()
