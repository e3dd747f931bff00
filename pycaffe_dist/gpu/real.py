"""A real GPU, through CuPy: its arrays, NVRTC for the kernels, cuBLAS for matrix products."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import cupy
import cupyx
import numpy as np
from cupy.cuda import driver, runtime
from cupy_backends.cuda.libs import cublas

from pycaffe_dist.device import use
from pycaffe_dist.errors import DeviceError
from pycaffe_dist.gpu.base import GPU, Graph, MemoryUse, product
from pycaffe_dist.gpu.cublas import Cublas
from pycaffe_dist.kernels.cuda.source import Signature, Source, common

# The most blocks of 256 threads that a loop over elements gets for each multiprocessor: a few times
# the number that can be resident.
_BLOCKS_PER_MULTIPROCESSOR = 32
_STREAMS = ("compute", "copy", "exchange", "collective")
_ALIGNMENT = 64

_CUDA_TYPES = {
    "float16": runtime.CUDA_R_16F,
    "bfloat16": runtime.CUDA_R_16BF,
    "float32": runtime.CUDA_R_32F,
    "float64": runtime.CUDA_R_64F,
}


@functools.cache
def _cuda_type(dtype: np.dtype) -> int:
    return _CUDA_TYPES[dtype.name]


@functools.lru_cache(maxsize=256)
def _factors(alpha: float, beta: float, wide: Any) -> tuple[np.ndarray, int, int]:
    """Return two numbers in memory and their addresses, for cuBLAS to read in its call."""
    numbers = np.array([alpha, beta], wide)
    return numbers, numbers.ctypes.data, numbers.ctypes.data + numbers.itemsize


# The numbers of the GPUs that this process has opened.
_opened: set[int] = set()


class RealGPU(GPU):
    """GPU ``index`` of the GPUs that CUDA shows to this process.

    Its streams do not wait for CUDA's default stream, nor for each other.
    """

    def __init__(self, index: int):
        super().__init__()
        self.index = index
        _opened.add(index)
        runtime.setDevice(index)
        self._device = cupy.cuda.Device(index)
        properties = runtime.getDeviceProperties(index)
        self.name = properties["name"].decode()
        self.capability = self._device.compute_capability
        self.most_blocks = _BLOCKS_PER_MULTIPROCESSOR * properties["multiProcessorCount"]
        self._streams = {name: cupy.cuda.Stream(non_blocking=True) for name in _STREAMS}
        self._modules: dict[Any, cupy.RawModule] = {}
        self._cublas: Cublas | None = None
        self._graph_memories: weakref.WeakSet[GraphMemory] = weakref.WeakSet()

    @property
    def xp(self) -> Any:
        """CuPy."""
        return cupy

    def enter(self) -> int:
        """Make this GPU and its compute stream CuPy's current ones in the calling thread.

        A thread that has not used it must call setDevice even if it is the current one.
        """
        before = runtime.getDevice()
        runtime.setDevice(self.index)
        self._streams["compute"].__enter__()
        return before

    def leave(self, before: int) -> None:
        """Restore the previous GPU and stream.

        Except GPU 0, where every thread begins, unless it is in use: making a GPU the current one
        takes some hundred megabytes of its memory.
        """
        self._streams["compute"].__exit__()
        if before in _opened:
            runtime.setDevice(before)

    def host_zeros(self, count: int, dtype: Any) -> np.ndarray:
        # Pinned memory comes in pages, and vector kernels may read a little past the end.
        self.refuse_in_capture("pinned memory is allocated")
        dtype = np.dtype(dtype)
        slack = _ALIGNMENT // dtype.itemsize
        with use(self):
            return cupyx.zeros_pinned(count + slack, dtype)[:count]

    def copy_to_device(self, source: np.ndarray, target: Any) -> None:
        self.refuse_in_capture("a host array is copied")
        _copy(target.data.ptr, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice)

    def copy_to_host(self, source: Any, target: np.ndarray) -> None:
        _copy(target.ctypes.data, source.data.ptr, source.nbytes, runtime.memcpyDeviceToHost)

    def graph_memory(self) -> GraphMemory:
        self._graph_memories.add(memory := GraphMemory())
        return memory

    def allocating_from(self, memory: GraphMemory) -> Any:
        if not memory.pool.total_bytes():
            # What the same work has used so far would stay free, beside the graphs' memory.
            cupy.get_default_memory_pool().free_all_blocks()
        return cupy.cuda.using_allocator(memory.pool.malloc)

    @contextlib.contextmanager
    def _captured(self, memory: Any) -> Iterator[Callable[[], Graph]]:
        stream = self._streams["compute"]
        with use(self):
            self._blas()  # which must not be opened in a capture
            stream.begin_capture()
            try:
                yield lambda: RealGraph(captured, memory)
            except BaseException:
                with contextlib.suppress(RuntimeError):  # it is invalid now
                    stream.end_capture()
                raise
            captured = stream.end_capture()

    def stream(self, name: str) -> Any:
        if name != "compute":
            self.refuse_in_capture(f"the {name} stream is used")
        return self._streams[name]

    def cuda_stream(self) -> int:
        return cupy.cuda.get_current_stream().ptr

    def record(self) -> Any:
        event = cupy.cuda.Event(disable_timing=True)
        event.record()
        return event

    def wait(self, event: Any) -> None:
        cupy.cuda.get_current_stream().wait_event(event)

    def synchronize_event(self, event: Any) -> None:
        self.refuse_in_capture("the host waits")
        with use(self):
            event.synchronize()

    def is_reached(self, event: Any) -> bool:
        with use(self):
            return event.done

    def synchronize_stream(self) -> None:
        self.refuse_in_capture("the host waits")
        cupy.cuda.get_current_stream().synchronize()

    def synchronize(self) -> None:
        with use(self):
            runtime.deviceSynchronize()

    def libraries(self) -> list[str]:
        found = [
            f"CuPy {cupy.__version__}",
            f"CUDA driver {_version(runtime.driverGetVersion())}",
            f"CUDA runtime {_version(runtime.runtimeGetVersion())}",
        ]
        with contextlib.suppress(DeviceError):
            found.append(f"NCCL {_nccl_version(self.nccl().get_version())}")
        # The front end may be installed without the library, which it loads at its first use.
        with contextlib.suppress(ImportError, OSError, RuntimeError):
            import cudnn

            found.append(f"cuDNN {cudnn.backend_version()} (front end {cudnn.__version__})")
        return found

    @property
    def identity(self) -> str:
        return self._device.pci_bus_id

    def nccl(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is missing; the error has seven lines
            from cupy.cuda import nccl

        if not nccl.available:
            raise DeviceError("CuPy finds no NCCL: pip install 'pycaffe-dist[nccl]'")
        return nccl

    def mpi_refusal(self, cuda_aware: bool | None) -> str:
        words = {True: "", False: "MPI is not CUDA-aware", None: "MPI does not say that it is"}
        return words[cuda_aware]

    def memory(self) -> MemoryUse:
        with use(self):
            pools = [cupy.get_default_memory_pool()]
            pools += [memory.pool for memory in self._graph_memories]
            used, held = (
                sum(each) for each in zip(*((p.used_bytes(), p.total_bytes()) for p in pools))
            )
            free, total = runtime.memGetInfo()
            return MemoryUse(used, held, free, total)

    def function(
        self, source: Source, signature: Signature, binding: Mapping[str, np.dtype]
    ) -> Callable[..., None]:
        key = source.path, tuple(binding.items())
        if key not in self._modules:
            self._modules[key] = cupy.RawModule(
                code=f'{common()}\n#line 1 "{source.path.name}"\n{source.text}',
                options=("--std=c++17",),
                name_expressions=tuple(
                    dict.fromkeys(each.instance(binding) for each in source.signatures.values())
                ),
            )
        # The compiled function for this device. CuPy's own launch looks it up each time, and checks
        # each argument's type.
        function = self._modules[key].get_function(signature.instance(binding)).kernel
        current_stream = cupy.cuda.get_current_stream

        def launch(grid: tuple, block: tuple, address: int, shared: int, args: tuple) -> None:
            stream = current_stream().ptr
            driver.launchKernel(function.ptr, *grid, *block, shared, stream, address, 0)

        return launch

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
        m, n, k, stack, strides = product(a, b, c, trans_a, trans_b)
        if not c.size:
            return
        if k == 0:
            c[...] = c * beta if beta else 0
            return
        dtype = c.dtype
        wide = np.float64 if dtype == np.float64 else np.float32
        _, ones, zeros = _factors(alpha, beta, wide)
        kind = _cuda_type(a.dtype)
        # cuBLAS has column-major matrices: it computes cᵀ = op(b)ᵀ·op(a)ᵀ.
        head = int(trans_b), int(trans_a), n, m, k, ones
        left = b.data.ptr, kind, k if trans_b else n
        right = a.data.ptr, kind, m if trans_a else k
        out = c.data.ptr, _cuda_type(dtype), n
        tail = self._compute_type(a.dtype, tf32), cublas.CUBLAS_GEMM_DEFAULT
        blas = self._blas()
        if c.ndim == 2:
            blas.gemm_ex(*head, *left, *right, zeros, *out, *tail)
            return
        blas.gemm_strided_batched_ex(
            *(*head, *left, strides[1], *right, strides[0]),
            *(zeros, *out, strides[2], stack, *tail),
        )

    def _blas(self) -> Cublas:
        """Return cuBLAS for the current stream."""
        if self._cublas is None:
            self._cublas = Cublas(self.capability)
        self._cublas.use_stream(cupy.cuda.get_current_stream().ptr)
        return self._cublas

    def _compute_type(self, dtype: np.dtype, tf32: bool) -> int:
        if dtype == np.float64:
            return cublas.CUBLAS_COMPUTE_64F
        if tf32 and dtype == np.float32 and int(self.capability) >= 80:
            return cublas.CUBLAS_COMPUTE_32F_FAST_TF32
        return cublas.CUBLAS_COMPUTE_32F


def _copy(target: int, source: int, nbytes: int, kind: int) -> None:
    """Enqueue a copy between two addresses on the current stream."""
    # Not by the methods of CuPy's arrays, which refuse to be captured in a graph.
    if nbytes:
        runtime.memcpyAsync(target, source, nbytes, kind, cupy.cuda.get_current_stream().ptr)


class GraphMemory:
    """A pool that only graphs and what leads to them use: nothing else overwrites their arrays."""

    def __init__(self) -> None:
        self.pool = cupy.cuda.MemoryPool()


class RealGraph(Graph):
    """A CUDA graph; ``memory`` has the arrays that it makes."""

    def __init__(self, graph: Any, memory: Any):
        self._graph, self._memory = graph, memory

    def launch(self) -> None:
        self._graph.launch()


def _nccl_version(number: int) -> str:
    """Return NCCL's version number as text: 22501 is 2.25.1, and 2708 was 2.7.8."""
    major = 1000 if number < 10000 else 10000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def _version(number: int) -> str:
    """Return CUDA's version number as text: 12090 is 12.9."""
    return f"{number // 1000}.{number % 1000 // 10}"
