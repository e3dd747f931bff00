"""The interface of a GPU: arrays, copies, kernels, matrix products, streams and memory figures."""

from __future__ import annotations

import abc
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from pycaffe_dist.device import Device
from pycaffe_dist.errors import DeviceError
from pycaffe_dist.gpu.mirror import MirroredStorage
from pycaffe_dist.gpu.watch import Watch
from pycaffe_dist.log import logger

Shape = tuple[int, ...]


class MemoryUse(NamedTuple):
    """Bytes of a GPU's memory: used by arrays, held by the pool, free, and in total."""

    used: int
    held: int
    free: int
    total: int


class Graph(abc.ABC):
    """Work that was captured, for the same arrays each time."""

    @abc.abstractmethod
    def launch(self) -> None:
        """Enqueue the work on the current stream."""


class GPU(Device, abc.ABC):
    """One GPU as a device.  All work runs in the order of the current stream.

    ``index`` counts the GPUs that this process sees; ``capability`` is the compute capability
    (``"90"``); ``most_blocks`` is the largest grid for a loop over elements.  Float32 factors of
    convolutions, and of other matrix products, may round to TF32 only if the switch is on.
    With ``times_plans``, the fastest of cuDNN's plans and our own kernels runs each convolution.
    ``fallbacks`` counts the calls of our own kernels for operations that cuDNN refused, by the
    operation and the reason.
    """

    is_gpu = True
    index: int
    name: str
    capability: str
    most_blocks: int
    tf32_convolutions: bool = False
    tf32_products: bool = False
    times_plans: bool = False
    # What takes note of the part of an iteration that is running.
    watch: Watch | None = None

    def __init__(self) -> None:
        self._checks: list[tuple[Any, np.ndarray, Callable[[np.ndarray], None]]] = []
        self.fallbacks: Counter[str] = Counter()
        self._capturing = 0  # the thread that captures a graph

    def check_later(self, array: Any, check: Callable[[np.ndarray], None]) -> None:
        """Call ``check`` with the values of a small array when the host waits for the next time.

        For errors found by a kernel, which ``check`` raises.
        """

        def make() -> np.ndarray:
            return self.host_zeros(array.size, array.dtype)

        values = self.watch.check(check, make) if self.watch else make()
        self.copy_to_host(array, values)
        if not self.watch:
            self._checks.append((self.record(), values, check))

    def check_again(self, watch: Watch) -> None:
        """Make the checks of a part that was just enqueued when the host waits the next time."""
        if watch.checks:
            event = self.record()
            self._checks += [(event, values, check) for values, check in watch.checks]

    def settle(self) -> None:
        """Wait for the values of all open checks, and make them."""
        checks, self._checks = self._checks, []
        for event, values, check in checks:
            self.synchronize_event(event)
            check(values)

    def note_work(self, kind: str, name: str, nbytes: int) -> None:
        """Called for work that this interface does not see; for `pycaffe_dist.gpu.trace`."""

    def warn_of_fallbacks(self) -> None:
        for refused, calls in self.fallbacks.items():
            logger.debug("%d calls of our own kernels for %s", calls, refused)
        if self.fallbacks:
            logger.warning(
                "cuDNN refused %d operations: our own kernels ran %d times in its place; the "
                "first is %s",
                *(len(self.fallbacks), self.fallbacks.total(), next(iter(self.fallbacks))),
            )

    def empty(self, shape: Any, dtype: Any) -> Any:
        """Return an array with undefined contents."""
        return self.xp.empty(shape, dtype)

    def zeros(self, shape: Any, dtype: Any) -> Any:
        """Return an array of zeros."""
        return self.xp.zeros(shape, dtype)

    def storage(self, dtype: np.dtype) -> MirroredStorage:
        """Return memory for a blob's values, here and on the host."""
        return MirroredStorage(dtype, self)

    @abc.abstractmethod
    def host_zeros(self, count: int, dtype: Any) -> np.ndarray:
        """Return flat zeros on the host, in memory that copies can overlap with (pinned)."""

    def host_array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return self.host_zeros(math.prod(shape), dtype).reshape(shape)

    @abc.abstractmethod
    def copy_to_device(self, source: np.ndarray, target: Any) -> None:
        """Enqueue a copy of a host array on the current stream; both are contiguous, of one size
        and type.

        The host array must not change until the stream has done the copy.
        """

    @abc.abstractmethod
    def copy_to_host(self, source: Any, target: np.ndarray) -> None:
        """Enqueue a copy to a host array on the current stream; both are contiguous, of one size
        and type.

        The host array has the values when the stream has done the copy.
        """

    def to_device(self, array: np.ndarray) -> Any:
        """Return a copy of a host array on this GPU."""
        source = np.ascontiguousarray(array)
        target = self.empty(array.shape, array.dtype)
        self.copy_to_device(source, target)
        self.synchronize_stream()
        return target

    def to_host(self, array: Any, out: np.ndarray | None = None) -> np.ndarray:
        """Return a copy of an array of this GPU on the host, in ``out`` if that is given."""
        target = np.empty(array.shape, array.dtype) if out is None else out
        self.copy_to_host(self.xp.ascontiguousarray(array), target)
        self.synchronize_stream()
        return target

    def at_every_pass(self, action: Callable[[], None]) -> None:
        if self.watch is None:
            action()
        else:
            self.watch.act(action)

    @contextmanager
    def watched(self, watch: Watch) -> Iterator[None]:
        """Let ``watch`` take note of what runs."""
        self.watch = watch
        try:
            yield
        finally:
            self.watch = None

    @abc.abstractmethod
    def graph_memory(self) -> Any:
        """Return a new pool of memory for the arrays that are made in the parts of one net."""

    @abc.abstractmethod
    def allocating_from(self, memory: Any) -> AbstractContextManager[None]:
        """Return a context in which this thread's arrays come from a `graph_memory`."""

    def capture(self, memory: Any, work: Callable[[], None]) -> Graph:
        """Return what ``work`` enqueues as a graph, without running it; keeps ``memory``.

        Inside, the host cannot wait or copy its own arrays. Raises DeviceError for that, and what
        ``work`` raises.
        """
        with self.allocating_from(memory), self._captured(memory) as graph:
            self._capturing = get_ident()
            try:
                work()
            finally:
                self._capturing = 0
        return graph()

    @abc.abstractmethod
    def _captured(self, memory: Any) -> AbstractContextManager[Callable[[], Graph]]:
        """Return a context that captures; afterwards its value returns the graph."""

    def refuse_in_capture(self, what: str) -> None:
        """Raise DeviceError while this thread captures a graph."""
        if self._capturing and self._capturing == get_ident():
            raise DeviceError(f"{what} while a graph is captured")

    @abc.abstractmethod
    def function(
        self, source: Any, signature: Any, binding: Mapping[str, np.dtype]
    ) -> Callable[[tuple[int, int, int], tuple[int, int, int], int, int, tuple], None]:
        """Return a kernel compiled for some types.

        It is called with the grid, the block, the address of pointers to the arguments, the bytes
        of dynamic shared memory, and the arguments themselves, for checks of the arrays; behind
        them may be arrays that the kernel finds in a table.
        """

    @abc.abstractmethod
    def gemm(
        self,
        a: Any,
        b: Any,
        c: Any,
        trans_a: bool = False,
        trans_b: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
        tf32: bool = False,
    ) -> None:
        """Compute ``c = alpha·op(a)·op(b) + beta·c`` for contiguous matrices, or stacks of them.

        Matrices are (M, K), (K, N) and (M, N) after op.  A third axis in front, which a or b may
        lack, counts independent products. a, b and c have one dtype; c may be float32 where a and b
        have 16 bits.  ``beta=0`` does not read c.  With ``tf32``, float32 factors
        may round to TF32.
        """

    @abc.abstractmethod
    def stream(self, name: str) -> Any:
        """Return a context that makes a stream current.

        ``name`` is ``compute``, ``copy``, ``exchange`` (between GPU and host) or ``collective``
        (NCCL).
        """

    def cuda_stream(self) -> int | None:
        """Return the address of the current CUDA stream, or None where there is no CUDA."""
        return None

    @abc.abstractmethod
    def record(self) -> Any:
        """Return an event that is reached when the current stream has done all its present work."""

    @abc.abstractmethod
    def wait(self, event: Any) -> None:
        """Let the current stream wait for an event; the host goes on."""

    @abc.abstractmethod
    def synchronize_event(self, event: Any) -> None:
        """Let the host wait for an event."""

    @abc.abstractmethod
    def is_reached(self, event: Any) -> bool:
        """Tell whether an event is reached."""

    @abc.abstractmethod
    def synchronize_stream(self) -> None:
        """Let the host wait for the current stream."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Let the host wait for all streams."""

    @abc.abstractmethod
    def libraries(self) -> list[str]:
        """Return the libraries that the GPU uses, with their versions."""

    @property
    @abc.abstractmethod
    def identity(self) -> str:
        """A name of this GPU that is unique on its host, the same in every process."""

    @abc.abstractmethod
    def nccl(self) -> Any:
        """Return CuPy's module for NCCL; raises DeviceError when there is none."""

    @abc.abstractmethod
    def mpi_refusal(self, cuda_aware: bool | None) -> str:
        """Return why MPI cannot send from this GPU's memory; empty if it can.

        ``cuda_aware`` is what MPI says of itself, None if it says nothing.
        """

    @abc.abstractmethod
    def memory(self) -> MemoryUse:
        """Return the figures of the GPU's memory."""


class Product(NamedTuple):
    """Sizes of a matrix product: c (M, N), a sum of ``k`` terms each, ``stack`` times.

    ``strides`` are the distances between matrices of a, b and c; 0 if all products share one.
    """

    m: int
    n: int
    k: int
    stack: int
    strides: tuple[int, int, int]


def product(a: Any, b: Any, c: Any, trans_a: bool, trans_b: bool) -> Product:
    """Return the sizes of op(a)·op(b); raises DeviceError if they do not fit c."""
    return _product(a.shape, b.shape, c.shape, trans_a, trans_b)


@functools.lru_cache(maxsize=4096)
def _product(a: Shape, b: Shape, c: Shape, trans_a: bool, trans_b: bool) -> Product:
    m, k = a[-2:][::-1] if trans_a else a[-2:]
    depth, n = b[-2:][::-1] if trans_b else b[-2:]
    if k != depth or c[-2:] != (m, n):
        raise DeviceError(f"gemm: {(m, k)} times {(depth, n)} does not give {c}")
    strides = [math.prod(shape[-2:]) if len(shape) > 2 else 0 for shape in (a, b, c)]
    return Product(m, n, k, c[0] if len(c) > 2 else 1, (strides[0], strides[1], strides[2]))
