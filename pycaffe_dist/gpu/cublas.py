"""cuBLAS's products by its C functions: CuPy's refuse to run while a graph is captured."""

from __future__ import annotations

import ctypes
from typing import Any

import cupy
from cupy.cuda import runtime
from cupy_backends.cuda.libs import cublas

from pycaffe_dist.errors import DeviceError

# The workspace that NVIDIA recommends, by the compute capability.
_WORKSPACE, _WORKSPACE_OF_HOPPER = 4 << 20, 32 << 20

_INT, _SIZE, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_HEAD: list[Any] = [_POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER]  # up to alpha
_MATRIX: list[Any] = [_POINTER, _INT, _INT]  # its address, type and distance of columns
_TAIL: list[Any] = [_INT, _INT]  # the type of computing, and the algorithm


class Cublas:
    """A handle with a fixed workspace, for one stream at a time.

    So products have the same bits inside and outside of graphs. Raises DeviceError when the library
    cannot be loaded, and when a function fails.
    """

    def __init__(self, capability: str):
        name = f"libcublas.so.{runtime.runtimeGetVersion() // 1000}"
        self._handle = cublas.create()
        try:
            library = ctypes.CDLL(name)  # the one that CuPy has loaded
        except OSError as error:
            raise DeviceError(f"cuBLAS cannot be loaded: {error}") from None
        self._set_workspace = library.cublasSetWorkspace_v2
        self._set_workspace.argtypes = [_POINTER, _POINTER, ctypes.c_size_t]
        self._gemm_ex = library.cublasGemmEx
        self._gemm_ex.argtypes = [*_HEAD, *_MATRIX, *_MATRIX, _POINTER, *_MATRIX, *_TAIL]
        self._batched = library.cublasGemmStridedBatchedEx
        strided = [*_MATRIX, _SIZE]
        self._batched.argtypes = [*_HEAD, *strided, *strided, _POINTER, *strided, _INT, *_TAIL]
        size = _WORKSPACE_OF_HOPPER if int(capability) >= 90 else _WORKSPACE
        self._workspace = cupy.cuda.Memory(size)
        self._stream: int | None = None

    def use_stream(self, stream: int) -> None:
        """Let the next products run on a stream; work on the last one must not run beside them."""
        if stream != self._stream:
            cublas.setStream(self._handle, stream)
            # A new stream brings the library's own workspace back.
            memory = self._workspace
            _check(self._set_workspace(self._handle, memory.ptr, memory.size), "cublasSetWorkspace")
            self._stream = stream

    def gemm_ex(self, *args: Any) -> None:
        """Call ``cublasGemmEx``; the arguments are those behind the handle."""
        _check(self._gemm_ex(self._handle, *args), "cublasGemmEx")

    def gemm_strided_batched_ex(self, *args: Any) -> None:
        """Call ``cublasGemmStridedBatchedEx``; the arguments are those behind the handle."""
        _check(self._batched(self._handle, *args), "cublasGemmStridedBatchedEx")


def _check(status: int, name: str) -> None:
    if status:
        raise DeviceError(f"{name} failed with status {status}")
